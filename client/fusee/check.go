package fusee

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Check reads a pool to which no client writes: every replica of every slot, the pair behind
// each, every block. What it calls damage cannot come from correct clients, however many of them
// died. What dead clients leave behind waits for recovery and is reported apart. It changes
// nothing.
func Check(f rdma.Fabric) (client.Report, error) {
	ep, err := f.Open("check")
	if err != nil {
		return client.Report{}, fmt.Errorf("check: %w", err)
	}
	defer ep.Close()
	k, err := newChecker(f, ep)
	if err != nil {
		return client.Report{}, fmt.Errorf("check: %w", err)
	}
	// In this order: words are followed into blocks that have owners, and marks are compared with
	// what slots point at.
	for _, step := range []func() error{k.tables, k.index, k.pairs, k.blocks} {
		if err := step(); err != nil {
			return k.Report, fmt.Errorf("check: %w", err)
		}
	}
	k.summary()
	return k.Report, nil
}

// checker is what a check has found so far. Its steps run in the order of Check, each on what the
// last found.
type checker struct {
	client.Report
	*Client                           // reads the pool; owns nothing in it
	alive   map[rdma.ClientID]bool    // clients that the pool lists, and whether they live
	dead    int                       // how many do not
	owners  map[node.Block]node.Entry // blocks that have objects, by the primaries' entries
	words   []placed                  // live words of the primaries, and words that only backups hold
	used    map[uint64]bool           // units of objects at which some slot points
	keys    map[string]string         // key to slot, to find a key twice

	live, tombstones, unfinished uint64 // slots
	userBytes                    uint64 // of keys and values
	// Blocks and held objects, by the kind of their owner. An object is held if it is neither
	// free nor in use.
	blocksOf, objectsOf [owned]uint64
	// Objects that are free by their marks, and those of them that no bit shows.
	free, unhinted uint64
	// Objects of a block at which some slot points.
	usedIn map[node.Block]int
}

// placed is a word in a slot. With backup set only backups hold it: an unfinished write.
type placed struct {
	slot   race.Slot
	word   race.Word
	backup bool
}

// Kinds of owners of a block.
const (
	byLive = iota
	byDead
	byLeft
	toClean // left, and unclean
	byNode
	owned
)

// newChecker opens the pool, without a cache, and lists its clients.
func newChecker(f rdma.Fabric, ep rdma.Endpoint) (*checker, error) {
	c, err := open(ep, Options{CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	k := &checker{Client: c, alive: map[rdma.ClientID]bool{}, owners: map[node.Block]node.Entry{},
		used: map[uint64]bool{}, keys: map[string]string{}, usedIn: map[node.Block]int{}}
	clients, err := rdma.ListClients(f)
	if err != nil {
		return nil, err
	}
	for _, x := range clients {
		k.alive[x.ID] = x.Alive
		if !x.Alive {
			k.dead++
		}
	}
	return k, nil
}

// broken reports damage, unless dead clients may have left it so: then it waits for recovery.
func (k *checker) broken(format string, args ...any) {
	if k.dead > 0 {
		k.Waits(format, args...)
	} else {
		k.Damaged(format, args...)
	}
}

// tables compares the replicas of the block allocation tables and learns the owner of each block.
func (k *checker) tables() error {
	for _, g := range k.regions {
		b := k.ep.Batch()
		for r := range k.space.Copies(g) {
			b.Read(k.space.Table(g, r), k.space.Blocks()*8)
		}
		if err := k.do(stepCheck, b); err != nil {
			b.Release()
			return fmt.Errorf("read the block allocation tables of region %d: %w", g, err)
		}
		for i := range k.space.Blocks() {
			blk := node.Block{Region: g, Index: i}
			e := node.Entry(le.Uint64(b.Op(0).Buf[8*i:]))
			k.entry(blk, e)
			for r := 1; r < k.space.Copies(g); r++ {
				switch o := node.Entry(le.Uint64(b.Op(r).Buf[8*i:])); {
				case o == e:
				case e.Owner() == node.OfNode && o == 0:
					// The client that got an object of the block was cut off before it recorded
					// the block, and did not use the object: every client records a block before
					// it uses an object of it.
					k.Waits("block %v: replica %d does not know that it is a node's, and nothing of it is used yet",
						blk, r)
				default:
					k.broken("block %v: the primary's table says %v, replica %d's %v", blk, e, r, o)
				}
			}
		}
		b.Release()
	}
	return nil
}

// entry counts a block and notes its owner.
func (k *checker) entry(blk node.Block, e node.Entry) {
	if e == 0 || isVacant(e) {
		return
	}
	if entryClass(e) >= len(k.classes.units) {
		k.Damaged("block %v: %v: there is no such size class", blk, e)
		return
	}
	k.owners[blk] = e
	if kind := k.ownerOf(e); kind < owned {
		k.blocksOf[kind]++
	} else {
		k.Damaged("block %v: %v: there is no such client", blk, e)
	}
}

// ownerOf returns what kind of owner a block has; owned: no known one.
func (k *checker) ownerOf(e node.Entry) int {
	alive, known := k.alive[e.Owner()]
	switch {
	case isUnclean(e):
		return toClean
	case e.Owner() == node.Left:
		return byLeft
	case e.Owner() == node.OfNode:
		return byNode
	case alive:
		return byLive
	case known:
		return byDead
	}
	return owned
}

// checkWords is how many words of the index are read in one trip, from each replica.
const checkWords = 256

// index compares the replicas of all slots and collects the words to follow.
func (k *checker) index() error {
	if n, all := len(k.subtables), len(k.Client.index.Place); n < all {
		k.Damaged("%d of %d subtables are lost: the nodes of all their replicas are gone, and the keys with them",
			all-n, all)
	}
	if n, all := len(k.regions), k.Regions; n < all {
		k.Damaged("%d of %d regions are lost: the nodes of all their replicas are gone, and the pairs with them",
			all-n, all)
	}
	if err := k.eachRun(checkWords, k.slots); err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	return nil
}

// slots compares the replicas of n words of the index.
func (k *checker) slots(from race.Slot, n int) error {
	b := k.ep.Batch()
	defer b.Release()
	for r := range k.Client.index.Copies(from) {
		b.Read(k.Client.index.Address(from, r), n*8)
	}
	if err := k.do(stepCheck, b); err != nil {
		return err
	}
	for i := range n {
		if s := from + race.Slot(i); race.IsSlot(s) {
			k.slot(s, b, i*8)
		}
	}
	return nil
}

// lossy reports whether parts of the pool are gone for good: what is left refers to them, and
// they to what is left.
func (l *layout) lossy() bool {
	return len(l.subtables) < len(l.index.Place) || len(l.regions) < l.Regions
}

// slot compares the replicas of one slot, which are at the same offset of each READ, and collects
// its words.
func (k *checker) slot(s race.Slot, b *rdma.Batch, at int) {
	w := race.Word(le.Uint64(b.Op(0).Buf[at:]))
	switch {
	case w.Live():
		k.words = append(k.words, placed{s, w, false})
	case w.IsPending():
		k.unfinished++
		k.words = append(k.words, placed{s, w.Final(), true})
		k.broken("slot %d: an INSERT has proposed %v and neither committed nor given way", s, w)
	case w != 0:
		k.tombstones++
	}
	differs := false
	for r := 1; r < k.Client.index.Copies(s); r++ {
		o := race.Word(le.Uint64(b.Op(r).Buf[at:]))
		if o == w {
			continue
		}
		differs = true
		k.broken("slot %d: the primary holds %v, replica %d %v", s, w, r, o)
		if o.Live() {
			k.words = append(k.words, placed{s, o, true})
		}
	}
	if differs {
		k.unfinished++
	}
}

// checkPairs is how many pairs are read in one trip, from all replicas.
const checkPairs = 32

// pairs reads the objects at which the words point.
func (k *checker) pairs() error {
	for some := range slices.Chunk(k.words, checkPairs) {
		if err := k.follow(some); err != nil {
			return err
		}
	}
	return nil
}

// follow reads the pairs of some words, on all replicas.
func (k *checker) follow(words []placed) error {
	b := k.ep.Batch()
	defer b.Release()
	var sound []placed
	for _, p := range words {
		if !k.sound(p) {
			continue
		}
		sound = append(sound, p)
		for r := range k.space.CopiesOf(p.word.Unit()) {
			b.Read(k.space.UnitAt(p.word.Unit(), r), p.word.Units()*node.Unit)
		}
	}
	if err := k.do(stepCheck, b); err != nil {
		return fmt.Errorf("read pairs: %w", err)
	}
	first := 0
	for _, p := range sound {
		k.pair(p, b, first)
		first += k.space.CopiesOf(p.word.Unit())
	}
	return nil
}

// sound reports whether a word points at an object of a block that has an owner.
func (k *checker) sound(p placed) bool {
	blk, off, ok := k.space.BlockOf(p.word.Unit())
	e := k.owners[blk]
	if ok && k.isLost(k.space.Place[blk.Region]) {
		return false // it was counted with its region
	}
	if !ok || e == 0 {
		k.Damaged("slot %d: %v points outside of the blocks in use", p.slot, p.word)
		return false
	}
	size := uint64(k.classes.units[entryClass(e)] * node.Unit)
	if int(k.classes.of[p.word.Units()]) != entryClass(e) || (off-k.space.BitmapBytes())%size != 0 {
		k.Damaged("slot %d: %v points into the middle of an object of block %v (%v)", p.slot, p.word, blk, e)
		return false
	}
	if unit := p.word.Unit(); !k.used[unit] {
		k.used[unit] = true
		k.usedIn[blk]++
	} else if !p.backup {
		k.Damaged("slot %d: %v: another slot points at the same object", p.slot, p.word)
	}
	return true
}

// pair compares the replicas of a pair, from the batch's op first on, and the pair with its slot.
// A pair at which only backups point is no pair of the store: its key may be in another slot,
// too.
func (k *checker) pair(p placed, b *rdma.Batch, first int) {
	f, ok := k.pairOf(p.word, b.Op(first).Buf)
	if !ok {
		k.Damaged("slot %d: %v: the object there is not the slot's pair (%s)",
			p.slot, p.word, k.whyNot(p.word, b.Op(first).Buf))
		return
	}
	size := logAt(len(f.key), len(f.value)) + opBytes
	for r := 1; r < k.space.CopiesOf(p.word.Unit()); r++ {
		if !bytes.Equal(b.Op(first).Buf[sumAt:size], b.Op(first + r).Buf[sumAt:size]) {
			k.Damaged("slot %d: %v: replica %d of the pair %q differs from the primary", p.slot, p.word, r, f.key)
		}
	}
	if p.backup {
		return
	}
	k.live++
	k.userBytes += uint64(len(f.key) + len(f.value))
	hash := race.Hash(f.key)
	if race.Print(hash) != p.word.Print() {
		k.Damaged("slot %d: %v: the key %q has fingerprint %02x", p.slot, p.word, f.key, race.Print(hash))
	}
	if !k.Client.index.Candidate(hash, p.slot) {
		k.Damaged("slot %d: the key %q does not belong there", p.slot, f.key)
	}
	here := fmt.Sprint(p.slot)
	if other, twice := k.keys[string(f.key)]; twice {
		k.Damaged("slots %s and %s hold the same key %q", other, here, f.key)
	}
	k.keys[string(f.key)] = here
}

// whyNot returns what is wrong with an object, for people.
func (k *checker) whyNot(w race.Word, p []byte) string {
	f, ok := decode(p)
	switch {
	case !ok:
		return "incomplete, or its checksum is wrong"
	case k.tag(f.incarnation) != w.Tag():
		return fmt.Sprintf("incarnation %d", f.incarnation)
	}
	return fmt.Sprintf("operation %d, %d bytes of key, %d of value", f.op, len(f.key), len(f.value))
}

// blocks compares the marks of all objects with what slots point at, replica by replica.
func (k *checker) blocks() error {
	for _, g := range k.regions {
		for i := range k.space.Blocks() {
			blk := node.Block{Region: g, Index: i}
			e := k.owners[blk]
			if e == 0 {
				continue
			}
			hints, err := k.read(stepCheck, k.space.Bitmap(blk, 0), int(k.space.BitmapBytes()))
			if err != nil {
				return fmt.Errorf("read the free bitmap of block %v: %w", blk, err)
			}
			var replicas [][]head
			for r := range k.space.Copies(g) {
				heads, err := k.heads(blk, entryClass(e), r)
				if err != nil {
					return err
				}
				replicas = append(replicas, heads)
			}
			k.block(blk, e, replicas, hints)
		}
	}
	return nil
}

// block judges one block. An object is free when its mark on the primary says so. On another
// replica a mark matters when that becomes the primary. Then it matters for an object that is in
// use, and for one of a block that waits for an adopter.
func (k *checker) block(blk node.Block, e node.Entry, replicas [][]head, hints []byte) {
	free, held := 0, 0
	for i, h := range replicas[0] {
		used := k.used[k.space.Object(blk, i, k.classes.units[entryClass(e)])]
		switch {
		case h.free() && used:
			k.Damaged("block %v (%v): object %d is free and in use", blk, e, i)
		case h.free():
			free++
			if hints[i/8]>>(i%8)&1 == 0 {
				k.unhinted++
			}
		case !used:
			held++
		}
		for r := 1; r < len(replicas); r++ {
			switch other := replicas[r][i]; {
			case other.free() && used && !h.free():
				k.Damaged("block %v (%v): object %d is in use, and free on replica %d", blk, e, i, r)
			case !other.free() && h.free() && k.ownerOf(e) == byLeft:
				k.broken("block %v (%v): object %d is free, but not on replica %d", blk, e, i, r)
			}
		}
	}
	k.free += uint64(free)
	kind := k.ownerOf(e)
	if kind == owned {
		kind = byDead
	}
	k.objectsOf[kind] += uint64(held)
	// An object that no client can have in hand is leaked.
	if (kind == byLeft || kind == byNode) && held > 0 && !k.lossy() {
		if len(k.alive) > 1 || k.blocksOf[toClean] > 0 {
			// Other clients, live or dead, may have it in hand: freed and resting, or about to be
			// used. Or only the log of an object in an unclean block says that it was replaced.
			k.Waits("block %v (%v): %d objects are neither free nor in use", blk, e, held)
		} else {
			k.Damaged("block %v (%v): %d objects are leaked: neither free nor in use, and there is no client",
				blk, e, held)
		}
	}
}

// summary adds the counts to the report.
func (k *checker) summary() {
	k.Fact("pairs", k.live, k.userBytes)
	k.Fact("slots", k.Client.index.Slots(), k.Client.index.Slots()*8)
	k.Fact("  with a tombstone", k.tombstones, 0)
	k.Fact("  with an unfinished write", k.unfinished, 0)
	k.Fact("blocks of live clients", k.blocksOf[byLive], k.blocksOf[byLive]*k.BlockBytes)
	k.Fact("blocks of dead clients", k.blocksOf[byDead], k.blocksOf[byDead]*k.BlockBytes)
	k.Fact("blocks that clients left", k.blocksOf[byLeft], k.blocksOf[byLeft]*k.BlockBytes)
	k.Fact("unclean blocks of dead clients", k.blocksOf[toClean], k.blocksOf[toClean]*k.BlockBytes)
	if k.NodeCentric {
		k.Fact("blocks of the nodes", k.blocksOf[byNode], k.blocksOf[byNode]*k.BlockBytes)
	}
	k.Fact("objects marked free", k.free, 0)
	k.Fact("  without a hint", k.unhinted, 0)
	k.Fact("objects that live clients hold", k.objectsOf[byLive], 0)
	k.Fact("objects that dead clients hold", k.objectsOf[byDead], 0)
}
