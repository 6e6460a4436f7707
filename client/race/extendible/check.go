package extendible

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// checker is the state of a Check.
// No client works meanwhile, so the words that it reads do not change while
// they are compared.
type checker struct {
	client.Report
	*layout
	ep rdma.Endpoint
	// alive says of each client that the pool lists whether it is alive, and dead
	// counts those that are not.
	alive map[rdma.ClientID]bool
	dead  int
	// halfway counts rehashes of RTX that are decided and not finished.
	halfway int
	// owners has the words of subtables' memory and of chunks of pairs, by node.
	owners [2][][]node.Entry

	// named has suffixes by the places of their subtables.
	named map[uint64]uint64
	// blocks has slots by the blocks that they name.
	blocks map[uint64]string
	// keys has slots by keys.
	keys map[string]string

	// These are counts for the report: left are slots that keys have left, and
	// behind are buckets with a header of before a rehash.
	pairs, bytes, left, behind, locks uint64
}

// Check walks a pool on which no client works. It changes nothing but an identity
// of its own.
//
// The subtables of the directory have all hashes, each once. Each slot names a
// block of its own with a whole pair. The pair's key belongs in that bucket of
// that subtable, and is in no other slot. Proposals, void words and chunks are
// those of clients that the pool lists. What keys have left behind in slots is no
// damage, nor are locks that are released on sight.
func Check(f rdma.Fabric) (client.Report, error) {
	ep, err := f.Open("check")
	if err != nil {
		return client.Report{}, fmt.Errorf("check: %w", err)
	}
	s, err := Open(ep, Options{})
	if err != nil {
		return client.Report{}, errors.Join(fmt.Errorf("check: %w", err), ep.Close())
	}
	c := &checker{layout: s.layout, ep: ep, alive: map[rdma.ClientID]bool{}, named: map[uint64]uint64{},
		blocks: map[uint64]string{}, keys: map[string]string{}}
	err = c.check(f, s)
	if err != nil {
		err = fmt.Errorf("check: %w", err)
	}
	return c.Report, errors.Join(err, s.Close(), ep.Close())
}

// check does it, in an order that lets it stop where locks hide what is behind
// them.
func (c *checker) check(f rdma.Fabric, s *Store) error {
	clients, err := rdma.ListClients(f)
	if err != nil {
		return err
	}
	for _, x := range clients {
		if c.alive[x.ID] = x.Alive; !x.Alive {
			c.dead++
		}
	}
	// The transactions' part comes first: it says how much of the rest can be
	// judged.
	if err := s.directory.shared.check(c); err != nil {
		return err
	}
	// The words of chunks say whether what the index names was handed out.
	for k, a := range []*chunks.Arena{&c.layout.subtables, &c.layout.pairs} {
		for n := range c.nodes {
			all, err := a.Survey(c.ep, stepReadTable, n, c.Timeout)
			if err != nil {
				return err
			}
			c.owners[k] = append(c.owners[k], all)
		}
	}
	// All nodes have answered, so the walk leaves out nothing.
	tables, hidden, err := c.walk(c.ep)
	if err != nil {
		return err
	}
	if c.format == DTX && hidden > 0 && c.dead > 0 {
		c.Waits("%d entries of the directory are locked by clients that are dead", hidden)
		c.Unseen("the index: what entries have is not known while they are locked")
		return nil
	}
	if c.halfway > 0 {
		c.Waits("%d rehashes that were decided and are not finished", c.halfway)
		c.Unseen("the index: of two entries one may be as it was before")
		return nil
	}
	// A rehash of the original that is under way has an entry that searches do
	// not reach yet.
	if c.locks > 0 && c.format == Locked {
		tables = begun(tables)
	}
	c.directory(tables)
	for _, t := range tables {
		if err := c.subtable(t); err != nil {
			return err
		}
	}
	c.summary(tables)
	return nil
}

// directory expects each hash to belong to one subtable, which searches find.
func (c *checker) directory(tables []subtable) {
	at := map[uint64]subtable{}
	share := uint64(0)
	for _, t := range tables {
		at[t.suffix] = t
		// A subtable of local depth d has one of 2^d parts of the hashes. All
		// of them together are one whole.
		share += 1 << (c.Depth - t.depth)
		if other, twice := c.named[t.place]; twice {
			c.Damaged("suffixes %d and %d have the same subtable", t.suffix, other)
		}
		c.named[t.place] = t.suffix
		n, chunk := c.placeOf(t.place)
		if e := c.owners[0][n][chunk]; e == 0 || e.Class() != classSubtable {
			c.Damaged("the subtable of suffix %d lies in memory that was not handed out: %v", t.suffix, e)
		}
	}
	if share != 1<<c.Depth {
		c.Damaged("the subtables have %d of %d parts of all hashes", share, 1<<c.Depth)
	}
	for _, t := range tables {
		if found, ok := walkTo(at, t.suffix); !ok || found != t.suffix {
			c.Damaged("no search for suffix %d finds its subtable", t.suffix)
		}
	}
}

// begun leaves out subtables to which the original's rehashes are moving pairs:
// searches do not find them yet.
func begun(tables []subtable) (found []subtable) {
	at := map[uint64]subtable{}
	for _, t := range tables {
		at[t.suffix] = t
	}
	for _, t := range tables {
		if suffix, ok := walkTo(at, t.suffix); ok && suffix == t.suffix {
			found = append(found, t)
		}
	}
	return found
}

// walkTo searches for a suffix as clients do: see directory.find.
func walkTo(at map[uint64]subtable, wanted uint64) (suffix uint64, ok bool) {
	for {
		t, there := at[suffix]
		differ := (wanted ^ suffix) & (1<<t.depth - 1)
		if !there || differ == 0 {
			return suffix, there
		}
		suffix = wanted & (differ&-differ<<1 - 1)
	}
}

// placeOf returns where a subtable's memory lies. It is the inverse of place.
func (l *layout) placeOf(place uint64) (n, chunk int) {
	place--
	return int(place / l.subtables.Count), int(place % l.subtables.Count)
}

// subtable looks at the headers and slots of a subtable. A header may be one
// rehash behind.
func (c *checker) subtable(t subtable) error {
	var slots []slotWord
	err := c.readGroups(c.ep, t.place, 0, c.Groups, func(slot race.Slot, w uint64) {
		if race.IsSlot(slot) {
			if w != 0 {
				slots = append(slots, slotWord{slot, word(w)})
			}
			return
		}
		switch h := race.Header(w); {
		case h.Suffix() != t.suffix || h.Depth() > t.depth:
			c.Damaged("%v of the subtable of suffix %d, local depth %d, says %v", slot, t.suffix, t.depth, h)
		case h.Depth() < t.depth:
			c.behind++
		}
	})
	if err != nil {
		return err
	}
	for from := 0; from < len(slots); from += verbsAtOnce {
		if err := c.slots(t, slots[from:min(from+verbsAtOnce, len(slots))]); err != nil {
			return err
		}
	}
	return nil
}

// slots looks at the blocks that some slots name.
func (c *checker) slots(t subtable, some []slotWord) error {
	b := c.ep.Batch()
	defer b.Release()
	// The READs of the batch are those of kept, in order.
	kept := some[:0]
	for _, w := range some {
		if !c.valid(w.word) || w.word.kind() > void {
			c.Damaged("slot %d of suffix %d names no block: %v", w.slot, t.suffix, w.word)
			continue
		}
		b.Read(c.blockAt(c.block(w.word)), w.word.units()*unitBytes)
		kept = append(kept, w)
	}
	if b.Len() == 0 {
		return nil
	}
	if err := rdma.Do(c.ep, b.As(stepReadPairs), c.Timeout); err != nil {
		return fmt.Errorf("read pairs: %w", err)
	}
	for i, w := range kept {
		c.slot(t, w, b.Op(i).Buf)
	}
	return nil
}

// slot looks at the block that a slot names, which was read to p.
func (c *checker) slot(t subtable, w slotWord, p []byte) {
	here := fmt.Sprintf("slot %d of suffix %d", w.slot, t.suffix)
	at, hash, whole := decodeHeader(p)
	mine := whole && at == w.word.as(live)
	switch {
	// No reader takes the word for a pair of this subtable. The next rehash, or
	// a sweep, empties the slot.
	case !mine || race.Suffix(hash, t.depth) != t.suffix:
		c.left++
		return
	case !c.index.Candidate(hash, w.slot) || w.word.print() != race.Print(hash):
		c.Damaged("%s has a pair that belongs elsewhere: %v, hash %#x", here, w.word, hash)
		return
	}
	block := c.block(w.word)
	if other, twice := c.blocks[block]; twice {
		c.Damaged("%s and %s name the same block", here, other)
	}
	c.blocks[block] = here
	if w.word.kind() != live {
		c.unfinished(here, w.word)
		return
	}
	pair, whole := decodePair(p, w.word)
	if !whole {
		c.Damaged("%s: its pair is torn", here)
		return
	}
	if race.Hash(pair.key) != hash {
		c.Damaged("%s: key %.40q has another hash", here, pair.key)
	}
	if other, twice := c.keys[string(pair.key)]; twice {
		c.Damaged("key %.40q is in %s and in %s", pair.key, other, here)
	}
	c.keys[string(pair.key)] = here
	c.pairs, c.bytes = c.pairs+1, c.bytes+uint64(len(pair.key)+len(pair.value))
	if e := c.ownerOf(block); e == 0 || e.Class() != classPairs {
		c.Damaged("%s: its pair lies in memory that was not handed out: %v", here, e)
	}
}

// ownerOf returns the word of the chunk that a block of a pair lies in; 0 for a
// delete record.
func (c *checker) ownerOf(block uint64) node.Entry {
	if block > c.layout.blocks*uint64(c.nodes) {
		return 0
	}
	n, chunk, _ := c.chunkOf(block)
	return c.owners[1][n][chunk]
}

// unfinished expects what an operation has left to be that of a client which the
// pool lists.
func (c *checker) unfinished(here string, w word) {
	owner := rdma.ClientID(0)
	// A void word names the delete record of its client. A proposal names a
	// block in a chunk of its client.
	if pairs := c.layout.blocks * uint64(c.nodes); c.block(w) > pairs {
		owner = rdma.ClientID(c.block(w) - pairs)
	} else {
		owner = c.ownerOf(c.block(w)).Owner()
	}
	alive, known := c.alive[owner]
	switch {
	case !known:
		c.Damaged("%s has a %v of client %d, which there is not", here, w, owner)
	case !alive:
		c.Waits("%s has a %v of client %d", here, w, owner)
	}
}

// slotsLeft names the slots of keys that have moved, or with words that nothing
// explains any more.
const slotsLeft = "slots that keys have left"

// summary adds up, and looks for memory of clients that are gone.
func (c *checker) summary(tables []subtable) {
	var owned, handed [2]uint64
	// A subtable's memory that no entry names was left by a rehash that did not
	// commit. It is claimed again.
	unnamed := uint64(0)
	for k := range c.owners {
		for n, all := range c.owners[k] {
			for i, e := range all {
				if e == 0 {
					continue
				}
				handed[k]++
				if _, ok := c.named[c.place(n, i)]; k == 0 && !ok {
					unnamed++
				}
				if e.Owner() == node.Left {
					continue
				}
				owned[k]++
				if alive, known := c.alive[e.Owner()]; !known {
					c.Damaged("chunk %d of node %d is of client %d, which there is not", i, n, e.Owner())
				} else if !alive {
					c.Waits("chunk %d of node %d is of client %d", i, n, e.Owner())
				}
			}
		}
	}
	c.Fact("pairs", c.pairs, c.bytes)
	c.Fact("subtables", uint64(len(tables)), uint64(len(tables))*c.layout.subtables.Bytes)
	c.Fact("index slots", uint64(len(tables)*c.layout.slots()), 0)
	c.Fact("subtables' memory to be used", unnamed, unnamed*c.layout.subtables.Bytes)
	c.Fact("locks that are held", c.locks, 0)
	c.Fact(slotsLeft, c.left, 0)
	c.Fact("buckets to be told of a rehash", c.behind, 0)
	c.Fact("chunks of pairs", handed[1], handed[1]*c.layout.pairs.Bytes)
	c.Fact("chunks of clients", owned[1], owned[1]*c.layout.pairs.Bytes)
}
