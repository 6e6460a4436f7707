package fusee

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Check reads a pool to which no client writes: every replica of every slot, the pair behind
// each, every block. What it calls damage cannot come from correct clients, however many of them
// died. What dead clients leave behind waits for recovery and is reported apart. It changes
// nothing.
//
// What clients may leave that died, or that failed and still live:
//   - Replicas of a slot that differ, and pending words: a round was cut off. Its client's recovery
//     ends it, or Mend does.
//   - Entries of a block that differ: an allocation, a take-over or a departure was cut off. The
//     owner or its recovery completes it.
//   - Objects that are neither free nor in use: their clients hold them, or an unclean block's logs
//     tell of them.
//   - Hints that are missing or wrong: they are hints.
//
// What no crash leaves, and what is damage:
//   - A word that points outside of the blocks in use, into the middle of an object, or at an
//     object that is free or of another incarnation: no slot gets a word before its object is
//     complete, and what a slot points at is not freed.
//   - Replicas of a pair that differ below the checksum: a writer's first trip writes the same to
//     all.
//   - Two slots with one key: of two INSERTs one gives way.
//   - In a pool without clients, an object that is neither free nor in use: it is leaked.
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
//
// A check reads a pool of any size with bounded batches. What it remembers grows with the number of
// pairs: their keys and the units of their objects.
type checker struct {
	client.Report
	s      *session.Session // reads the pool; owns nothing in it
	t      *memory.Tables
	alive  map[rdma.ClientID]bool    // clients that the pool lists, and whether they live
	dead   int                       // how many do not
	owners map[node.Block]node.Entry // blocks that have objects, by the primaries' entries
	words  []placed                  // live words of the primaries, and words that only backups hold
	used   map[uint64]bool           // units of objects at which some slot points
	keys   map[string]race.Slot      // key to slot, to find a key twice

	live, tombstones, unfinished uint64 // slots
	userBytes                    uint64 // of keys and values
	// Blocks and held objects, by the kind of their owner. An object is held if it is neither
	// free nor in use.
	blocksOf, objectsOf [owned]uint64
	// Objects that are free by their marks, and those of them that no bit shows.
	free, unhinted uint64
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
	s, err := session.Open(ep, 0)
	if err != nil {
		return nil, err
	}
	k := &checker{s: s, t: memory.NewTables(s), alive: map[rdma.ClientID]bool{}, owners: map[node.Block]node.Entry{},
		used: map[uint64]bool{}, keys: map[string]race.Slot{}}
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
//
// Replicas of an entry differ while a change of it is on its way. No client is at work, so a live
// client has none on its way: it has completed it, or will in resync.
func (k *checker) tables() error {
	for _, g := range k.s.LiveRegions {
		b := k.s.Batch()
		for r := range k.s.Space.Copies(g) {
			b.Read(k.s.Space.Table(g, r), k.s.Space.Blocks()*8)
		}
		if err := k.s.Do(session.StepCheck, b); err != nil {
			b.Release()
			return fmt.Errorf("read the block allocation tables of region %d: %w", g, err)
		}
		for i := range k.s.Space.Blocks() {
			blk := node.Block{Region: g, Index: i}
			e := node.Entry(layout.LE.Uint64(b.Op(0).Buf[8*i:]))
			k.entry(blk, e)
			for r := 1; r < k.s.Space.Copies(g); r++ {
				switch o := node.Entry(layout.LE.Uint64(b.Op(r).Buf[8*i:])); {
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
	if e == 0 || layout.IsVacant(e) {
		return
	}
	if layout.EntryClass(e) >= len(k.s.Classes.Units) {
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
//
// An identity that the pool does not list owns nothing: it is listed until its recovery has passed
// its blocks on.
func (k *checker) ownerOf(e node.Entry) int {
	alive, known := k.alive[e.Owner()]
	switch {
	case layout.IsUnclean(e):
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
	if n, all := len(k.s.LiveSubtables), len(k.s.Index.Place); n < all {
		k.Damaged("%d of %d subtables are lost: the nodes of all their replicas are gone, and the keys with them",
			all-n, all)
	}
	if n, all := len(k.s.LiveRegions), k.s.Regions; n < all {
		k.Damaged("%d of %d regions are lost: the nodes of all their replicas are gone, and the pairs with them",
			all-n, all)
	}
	if err := k.s.EachRun(checkWords, k.slots); err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	return nil
}

// slots compares the replicas of n words of the index.
func (k *checker) slots(from race.Slot, n int) error {
	b := k.s.Batch()
	defer b.Release()
	for r := range k.s.Index.Copies(from) {
		b.Read(k.s.Index.Address(from, r), n*8)
	}
	if err := k.s.Do(session.StepCheck, b); err != nil {
		return err
	}
	for i := range n {
		if s := from + race.Slot(i); race.IsSlot(s) {
			k.slot(s, b, i*8)
		}
	}
	return nil
}

// slot compares the replicas of one slot, which are at the same offset of each READ, and collects
// its words.
//
// A word that only backups hold is followed, too: recovery may bring it to the primary, so its
// object has to be complete. A pending word on the primary occurs where slots have one replica.
func (k *checker) slot(s race.Slot, b *rdma.Batch, at int) {
	w := race.Word(layout.LE.Uint64(b.Op(0).Buf[at:]))
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
	for r := 1; r < k.s.Index.Copies(s); r++ {
		o := race.Word(layout.LE.Uint64(b.Op(r).Buf[at:]))
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
	b := k.s.Batch()
	defer b.Release()
	var sound []placed
	for _, p := range words {
		if !k.sound(p) {
			continue
		}
		sound = append(sound, p)
		for r := range k.s.Space.CopiesOf(p.word.Unit()) {
			b.Read(k.s.Space.UnitAt(p.word.Unit(), r), p.word.Units()*node.Unit)
		}
	}
	if err := k.s.Do(session.StepCheck, b); err != nil {
		return fmt.Errorf("read pairs: %w", err)
	}
	first := 0
	for _, p := range sound {
		k.pair(p, b, first)
		first += k.s.Space.CopiesOf(p.word.Unit())
	}
	return nil
}

// sound reports whether a word points at an object of a block that has an owner.
//
// The word of a pair that borrows an object has the units of the object's class, so that each word
// belongs to exactly one class (layout.Classes).
func (k *checker) sound(p placed) bool {
	blk, off, ok := k.s.Space.BlockOf(p.word.Unit())
	e := k.owners[blk]
	if ok && k.s.IsLost(k.s.Space.Place[blk.Region]) {
		return false // it was counted with its region
	}
	if !ok || e == 0 {
		k.Damaged("slot %d: %v points outside of the blocks in use", p.slot, p.word)
		return false
	}
	size := uint64(k.s.Classes.Units[layout.EntryClass(e)] * node.Unit)
	if int(k.s.Classes.Of[p.word.Units()]) != layout.EntryClass(e) || (off-k.s.Space.BitmapBytes())%size != 0 {
		k.Damaged("slot %d: %v points into the middle of an object of block %v (%v)", p.slot, p.word, blk, e)
		return false
	}
	if unit := p.word.Unit(); !k.used[unit] {
		k.used[unit] = true
	} else if !p.backup {
		k.Damaged("slot %d: %v: another slot points at the same object", p.slot, p.word)
	}
	return true
}

// pair compares the replicas of a pair, from the batch's op first on, and the pair with its slot.
// A pair at which only backups point is no pair of the store: its key may be in another slot,
// too.
//
// The mark and the end of the log entry are left out of the comparison: marks are written replica
// by replica, and a commit may be cut off.
func (k *checker) pair(p placed, b *rdma.Batch, first int) {
	f, ok := k.s.PairOf(p.word, b.Op(first).Buf)
	if !ok {
		k.Damaged("slot %d: %v: the object there is not the slot's pair (%s)",
			p.slot, p.word, k.whyNot(p.word, b.Op(first).Buf))
		return
	}
	size := layout.LogAt(len(f.Key), len(f.Value)) + layout.OpBytes
	for r := 1; r < k.s.Space.CopiesOf(p.word.Unit()); r++ {
		if !bytes.Equal(b.Op(first).Buf[layout.SumAt:size], b.Op(first + r).Buf[layout.SumAt:size]) {
			k.Damaged("slot %d: %v: replica %d of the pair %q differs from the primary", p.slot, p.word, r, f.Key)
		}
	}
	if p.backup {
		return
	}
	k.live++
	k.userBytes += uint64(len(f.Key) + len(f.Value))
	hash := race.Hash(f.Key)
	if race.Print(hash) != p.word.Print() {
		k.Damaged("slot %d: %v: the key %q has fingerprint %02x", p.slot, p.word, f.Key, race.Print(hash))
	}
	if !k.s.Index.Candidate(hash, p.slot) {
		k.Damaged("slot %d: the key %q does not belong there", p.slot, f.Key)
	}
	if other, twice := k.keys[string(f.Key)]; twice {
		k.Damaged("slots %d and %d hold the same key %q", other, p.slot, f.Key)
	}
	k.keys[string(f.Key)] = p.slot
}

// whyNot returns what is wrong with an object, for people.
func (k *checker) whyNot(w race.Word, p []byte) string {
	f, ok := layout.Decode(p)
	switch {
	case !ok:
		return "incomplete, or its checksum is wrong"
	case k.s.Tag(f.Incarnation) != w.Tag():
		return fmt.Sprintf("incarnation %d", f.Incarnation)
	}
	return fmt.Sprintf("operation %d, %d bytes of key, %d of value", f.Op, len(f.Key), len(f.Value))
}

// blocks compares the marks of all objects with what slots point at, replica by replica.
//
// It relies on index and pairs: used has all objects at which a slot points, on any replica.
func (k *checker) blocks() error {
	for _, g := range k.s.LiveRegions {
		for i := range k.s.Space.Blocks() {
			blk := node.Block{Region: g, Index: i}
			e := k.owners[blk]
			if e == 0 {
				continue
			}
			hints, err := k.s.Read(session.StepCheck, k.s.Space.Bitmap(blk, 0), int(k.s.Space.BitmapBytes()))
			if err != nil {
				return fmt.Errorf("read the free bitmap of block %v: %w", blk, err)
			}
			var replicas [][]layout.Head
			for r := range k.s.Space.Copies(g) {
				heads, err := k.t.Heads(blk, layout.EntryClass(e), r)
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
func (k *checker) block(blk node.Block, e node.Entry, replicas [][]layout.Head, hints []byte) {
	free, held := 0, 0
	for i, h := range replicas[0] {
		used := k.used[k.s.Space.Object(blk, i, k.s.Classes.Units[layout.EntryClass(e)])]
		switch {
		case h.Free() && used:
			k.Damaged("block %v (%v): object %d is free and in use", blk, e, i)
		case h.Free():
			free++
			if hints[i/8]>>(i%8)&1 == 0 {
				k.unhinted++
			}
		case !used:
			held++
		}
		for r := 1; r < len(replicas); r++ {
			switch other := replicas[r][i]; {
			case other.Free() && used && !h.Free():
				k.Damaged("block %v (%v): object %d is in use (%v), and free on replica %d (%v)",
					blk, e, i, h, r, other)
			case !other.Free() && h.Free() && k.ownerOf(e) == byLeft:
				k.broken("block %v (%v): object %d is free (%v), but not on replica %d (%v)", blk, e, i, h, r, other)
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
	if (kind == byLeft || kind == byNode) && held > 0 && !k.s.Lossy() {
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
	k.Fact("slots", k.s.Index.Slots(), k.s.Index.Slots()*8)
	k.Fact("  with a tombstone", k.tombstones, 0)
	k.Fact("  with an unfinished write", k.unfinished, 0)
	k.Fact("blocks of live clients", k.blocksOf[byLive], k.blocksOf[byLive]*k.s.BlockBytes)
	k.Fact("blocks of dead clients", k.blocksOf[byDead], k.blocksOf[byDead]*k.s.BlockBytes)
	k.Fact("blocks that clients left", k.blocksOf[byLeft], k.blocksOf[byLeft]*k.s.BlockBytes)
	k.Fact("unclean blocks of dead clients", k.blocksOf[toClean], k.blocksOf[toClean]*k.s.BlockBytes)
	if k.s.NodeCentric {
		k.Fact("blocks of the nodes", k.blocksOf[byNode], k.blocksOf[byNode]*k.s.BlockBytes)
	}
	k.Fact("objects marked free", k.free, 0)
	k.Fact("  without a hint", k.unhinted, 0)
	k.Fact("objects that live clients hold", k.objectsOf[byLive], 0)
	k.Fact("objects that dead clients hold", k.objectsOf[byDead], 0)
}
