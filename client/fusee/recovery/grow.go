package recovery

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// The index grows, which the paper's does not: by linear hashing (race.Index), one subtable at a
// time, and only under a busy view. Clients ask for it; the master splits.
//
// A busy view makes a split simple. No client writes, no verb of an earlier epoch can land, and
// Mend has just made all replicas of all slots equal. So a split copies words that do not change.
// Only clients that read meanwhile remain:
//
//  1. The new subtable is written on all its replicas: the words of the keys that move, and all
//     tombstones. No client reads it yet. A crash leaves memory that the next attempt writes again.
//  2. The index's size is written on all nodes, with a mark that the split is not over. From the
//     first of these words on clients may read the new subtable, and the old one has everything
//     still. A crash leaves some nodes with the higher size: the next master takes the highest,
//     writes it on all, and goes on with 3.
//  3. What moved is taken away from the old subtable. Only now may a reader miss a key in it. By
//     then every node says that the index has grown: a reader that finds nothing under a busy view
//     asks for the size again (grewMeanwhile in package fusee). A crash leaves the mark, and the
//     next master repeats the step: slots that are empty stay empty.
//  4. The mark is cleared.
//
// Under an idle view the size is what it was when the view became idle. A client that has not
// joined that view cannot read at all, since its verbs end in ErrStale. So a cached slot needs no
// word beside it that says to which size it belongs: what moved away is gone from it.
//
// A write that the growing cut off looks for its word where the pair is by now (race.Index.Where).
// Tombstones are copied, so that a DELETE finds its own on both sides. One tombstone in two slots
// does no harm, since it is never proposed again.

// growFor is for how long splits go on under one busy view: about as long as Mend takes for
// an index of some 100,000 slots.
const growFor = 20 * time.Millisecond

// The keeper lets the index grow through this interface.
var _ cluster.Grower = (*Recoverer)(nil)

// Wants reports whether clients want a larger index than there is, and it may grow. It posts one
// READ.
func (m *Recoverer) Wants(v rdma.View) (bool, error) {
	m.s.View.Enter(v)
	want, err := m.readWanted()
	return err == nil && m.mayGrow(want), err
}

// readWanted returns how many subtables clients want; 0: the index has all that it may have.
func (m *Recoverer) readWanted() (uint64, error) {
	if len(m.s.Index.Place) == m.s.MostSubtables() {
		return 0, nil
	}
	return rdma.ReadWord(m.s.Endpoint, session.StepReadSize, m.s.Wanted(m.s.Holders[0]), m.s.OpTimeout)
}

// mayGrow reports whether the index is smaller than wanted and may grow. No index grows beyond
// the memory that was set aside for it, nor where all nodes of the next subtable are gone. A pool
// that has lost a part may not grow: what is left of the index refers to what is gone.
func (m *Recoverer) mayGrow(want uint64) bool {
	size := len(m.s.Index.Place)
	if want <= uint64(size) || size == m.s.MostSubtables() || m.s.Lossy() {
		return false
	}
	_, lost := kit.Replicas(&m.s.View.View, m.s.Original.Index[size])
	return !lost
}

// Growth implements cluster.Grower.
func (m *Recoverer) Growth() string {
	if m.grown == 0 {
		return ""
	}
	return fmt.Sprintf("the index grew by %d subtables to %d of at most %d",
		m.grown, len(m.s.Index.Place), m.s.MostSubtables())
}

// grow splits subtables until it has taken growFor: as many as clients want, and the others of
// the round, which fill at the same pace. It relies on a busy view, in which Mend has made all
// replicas equal. First it completes a split that another master left. An index for which nodes
// have no memory stays as it is: that must not keep the pool busy.
func (m *Recoverer) grow() error {
	m.grown = 0
	if m.halfway {
		if err := m.endSplit(len(m.s.Index.Place)); err != nil {
			return fmt.Errorf("end a split: %w", err)
		}
	}
	want, err := m.readWanted()
	if err != nil {
		return err
	}
	if m.mayGrow(want) {
		want = max(want, uint64(m.s.Index.RoundEnd()))
	}
	for began := m.s.Now(); m.mayGrow(want) && (m.grown == 0 || m.s.Now()-began < growFor); m.grown++ {
		backed, err := m.backNext()
		if err == nil && backed {
			err = m.split()
		}
		if err != nil {
			return fmt.Errorf("split subtable %d: %w", m.s.Index.NextSplit(), err)
		}
		if !backed {
			break
		}
	}
	return nil
}

// backNext backs the next subtable with memory on all its nodes. It returns false if one has no
// more, or does not know how.
func (m *Recoverer) backNext() (bool, error) {
	place, _ := kit.Replicas(&m.s.View.View, m.s.Original.Index[len(m.s.Index.Place)])
	for _, r := range place {
		err := m.back(r)
		if errors.Is(err, rdma.ErrFull) || errors.Is(err, rdma.ErrNotSupported) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// back backs the memory of a replica of a subtable. It may be repeated.
//
// Memory of an index that may grow is set aside when a pool is made, but not backed: a subtable
// that is never added costs none.
func (m *Recoverer) back(r node.Replica) error {
	size := race.SubtableBytes(m.s.Groups)
	q := rdma.Request{Step: session.StepBack, Proc: node.ProcBack,
		Arg: [6]uint64{m.s.Index.Base + uint64(r.Index)*size, size}}
	if err := m.s.Call(r.Node, &q, m.s.OpTimeout); err != nil {
		return fmt.Errorf("back a subtable with memory on node %d: %w", r.Node, err)
	}
	return nil
}

// settleSize takes the highest of the sizes that nodes have, and writes it on all of them. A
// crash in between leaves nodes that differ, and the highest size is still there.
//
// The highest size counts: a master that died has written it on some nodes only after the new
// subtable was complete, and clients may have read by it.
func (m *Recoverer) settleSize() error {
	b := m.s.Batch()
	defer b.Release()
	for _, n := range m.s.Holders {
		b.Read(m.s.SizeAt(n), 8)
	}
	if err := m.s.Do(session.StepReadSize, b); err != nil {
		return err
	}
	word, same := uint64(0), true
	for i := range b.Len() {
		w := b.Op(i).Word(0)
		same = same && (i == 0 || w == word)
		word = max(word, w)
	}
	size, halfway, err := m.s.SizeOf(word)
	if err != nil {
		return err
	}
	m.s.Resize(&m.s.View.View, size)
	if m.halfway = halfway; same {
		return nil
	}
	return m.writeSize(size, halfway)
}

// writeSize writes the index's size on all nodes that serve.
func (m *Recoverer) writeSize(size int, halfway bool) error {
	b := m.s.Batch()
	defer b.Release()
	for _, n := range m.s.Holders {
		b.WriteWord(m.s.SizeAt(n), m.s.SizeWord(size, halfway))
	}
	return m.s.Do(session.StepWriteSize, b)
}

// split adds a subtable, which is backed with memory, by the steps at the top of this file. Each
// step is complete on all replicas before the next begins.
//
// Readers meet all of this while it happens. Those that know the smaller size find moved keys in
// the old subtable until step 3, and those that know the larger one find them in the new one.
func (m *Recoverer) split() error {
	from, to := m.s.Index.NextSplit(), len(m.s.Index.Place)
	next := m.s.Layout.Index
	place, _ := kit.Place(&m.s.View.View, m.s.Original.Index[:to+1])
	next.Resize(m.s.Subtables, place)
	first, per := m.s.FirstSlot(to), int(m.s.FirstSlot(1))
	words := make([]byte, per*8)
	err := m.eachWord(from, func(s race.Slot, w race.Word, hash uint64, known bool) {
		// The words that the new subtable gets. Tombstones are on both sides.
		if w.Empty() || known && next.Where(s, hash) >= first {
			layout.LE.PutUint64(words[8*(int(s)%per):], uint64(w))
		}
	})
	if err != nil {
		return err
	}
	// Step 1: write the new subtable.
	for at := 0; at < per; at += mendWords {
		n := min(mendWords, per-at)
		b := m.s.Batch()
		for r := range place[to] {
			b.Write(next.Address(first+race.Slot(at), r), words[8*at:8*(at+n)])
		}
		err := m.s.Do(session.StepWriteSubtable, b)
		b.Release()
		if err != nil {
			return err
		}
	}
	// Step 2: clients may read it from here on.
	if err := m.writeSize(to+1, true); err != nil {
		return err
	}
	m.s.Resize(&m.s.View.View, to+1)
	// Steps 3 and 4.
	return m.endSplit(to + 1)
}

// endSplit is steps 3 and 4: it runs when all nodes have the new size with the mark. It takes
// what moved to the last subtable away from where it was, and clears the mark. It may be
// repeated: what was taken away is no longer found.
func (m *Recoverer) endSplit(size int) error {
	// The index as it was before the split says which subtable was split.
	before := m.s.Index
	before.Resize(m.s.Subtables, m.s.Index.Place[:size-1])
	from := before.NextSplit()
	var list []moved
	err := m.eachWord(from, func(s race.Slot, w race.Word, hash uint64, known bool) {
		if known && m.s.Index.Subtable(m.s.Index.Where(s, hash)) == size-1 {
			list = append(list, moved{s, w})
		}
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(list, mendWords) {
		if err := m.takeAway(some); err != nil {
			return err
		}
	}
	return m.writeSize(size, false)
}

// moved is a slot of which the pair was moved, and the word that it held.
type moved struct {
	slot race.Slot
	word race.Word
}

// takeAway empties slots on all replicas. No other verb changes them under the busy view. A crash
// leaves replicas that differ: Mend makes them equal before the next master repeats the step.
func (m *Recoverer) takeAway(list []moved) error {
	b := m.s.Batch()
	defer b.Release()
	for _, s := range list {
		for r := m.s.Index.Copies(s.slot) - 1; r >= 0; r-- {
			b.CompareSwap(m.s.Index.Address(s.slot, r), uint64(s.word), 0)
		}
	}
	return m.swapAll(session.StepClearMoved, b)
}

// keyBytes is how much of a pair is read at first to learn its key: most keys are shorter.
const keyBytes = 128

// eachWord calls f with every word of a subtable. With words that point at a pair f gets the hash
// of the pair's key. The key is not known when the object is not what the slot says, which is
// damage: such a pair stays where it is.
func (m *Recoverer) eachWord(sub int, f func(s race.Slot, w race.Word, hash uint64, known bool)) error {
	first, per := m.s.FirstSlot(sub), int(m.s.FirstSlot(1))
	for at := 0; at < per; at += mendWords {
		n := min(mendWords, per-at)
		p, err := m.s.Read(session.StepReadSubtable, m.s.Index.Address(first+race.Slot(at), 0), n*8)
		if err != nil {
			return err
		}
		words := make([]race.Word, n)
		for i := range words {
			words[i] = race.Word(layout.LE.Uint64(p[8*i:]))
		}
		hashes, known, err := m.hashesOf(words)
		if err != nil {
			return err
		}
		for i, w := range words {
			f(first+race.Slot(at+i), w, hashes[i], known[i])
		}
	}
	return nil
}

// hashesOf reads the keys of words, those that are long in a second trip. The error wraps
// client.ErrDamaged when a word points into no block.
//
// It reads keys and not pairs, since pairs may be large. What a key is needed for is the bit of its
// hash that says on which side of the split it belongs.
func (m *Recoverer) hashesOf(words []race.Word) (hashes []uint64, known []bool, err error) {
	hashes, known = make([]uint64, len(words)), make([]bool, len(words))
	size := func(i int) int { return min(keyBytes, words[i].Units()*node.Unit) }
	var list []int
	for i, w := range words {
		if !w.Empty() {
			list = append(list, i)
		}
	}
	// The first round reads the front of each object, the second all of those that have longer
	// keys.
	for round := 0; round < 2 && len(list) > 0; round++ {
		b := m.s.Batch()
		for _, i := range list {
			if blk, off, ok := m.s.Space.BlockOf(words[i].Unit()); !ok ||
				off+uint64(words[i].Units())*node.Unit > m.s.Space.BlockBytes {
				b.Release()
				return nil, nil, fmt.Errorf("follow %v into block %v: %w", words[i], blk, client.ErrDamaged)
			}
			b.Read(m.s.Space.UnitAt(words[i].Unit(), 0), size(i))
		}
		if err := m.s.Do(session.StepReadKeys, b); err != nil {
			b.Release()
			return nil, nil, err
		}
		var long []int
		for k, i := range list {
			p := b.Op(k).Buf
			switch n := layout.HeaderBytes + int(layout.LE.Uint16(p[layout.KeyLenAt:])); {
			// Another object lies there, or one that does not fit: its key is not known.
			case m.s.Tag(layout.LE.Uint32(p[layout.IncarnationAt:])) != words[i].Tag(),
				n > words[i].Units()*node.Unit:
			case n > len(p):
				long = append(long, i)
			default:
				hashes[i], known[i] = race.Hash(p[layout.KeyAt:n]), true
			}
		}
		b.Release()
		list, size = long, func(i int) int { return words[i].Units() * node.Unit }
	}
	return hashes, known, nil
}
