package fusee

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
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
//     tombstones. No client reads it yet. A crash leaves memory that the next attempt writes
//     again.
//  2. The index's size is written on all nodes, with a mark that the split is not over. From the
//     first of these words on clients may read the new subtable, and the old one has everything
//     still. A crash leaves some nodes with the higher size: the next master takes the highest,
//     writes it on all, and goes on with 3.
//  3. What moved is taken away from the old subtable. Only now may a reader miss a key in it. By
//     then every node says that the index has grown: a reader that finds nothing under a busy
//     view asks for the size again (grewMeanwhile). A crash leaves the mark, and the next master
//     repeats the step: slots that are empty stay empty.
//  4. The mark is cleared.
//
// Under an idle view the size is what it was when the view became idle. A client that has not
// joined that view cannot read at all, since its verbs end in ErrStale. So a cached slot needs no
// word beside it that says to which size it belongs: what moved away is gone from it.
//
// A write that the growing cut off looks for its word where the pair is by now
// (race.Index.Where). Tombstones are copied, so that a DELETE finds its own on both sides. One
// tombstone in two slots does no harm, since it is never proposed again.

// sizeBytes are behind the journals on each node: the index's size, and the size that clients
// want. The size counts from that with which the index began, so zeroed memory says that it has
// not grown. Bit 0 is the mark of a split that is not over.
const sizeBytes = 16

const (
	// littleRoom is how few empty slots of 28 an INSERT sees in its buckets when it asks for a
	// larger index. Of the pairs that an index is sized for, one in 10,000 INSERTs sees so few.
	littleRoom = 2
	// growFor is for how long splits go on under one busy view: about as long as Mend takes for
	// an index of some 100,000 slots.
	growFor = 20 * time.Millisecond
	// longestGrowth is for how many timeouts an INSERT waits at most for an index that is
	// growing.
	longestGrowth = 16
)

// size returns where a node has the index's size.
func (l *layout) size(n int) rdma.Addr {
	return rdma.At(n, l.journals+uint64(l.Clients)*journalBytes)
}

// wanted returns where a node has the size that clients want. Only that of the first holder is
// used: without the node clients ask again.
func (l *layout) wanted(n int) rdma.Addr { return l.size(n).Add(8) }

// sizeWord returns what a node's size word says for so many subtables; halfway: with the mark of
// a split.
func (l *layout) sizeWord(size int, halfway bool) uint64 {
	w := uint64(size-l.Subtables) << 1
	if halfway {
		w |= 1
	}
	return w
}

// sizeOf decodes a size word. The error wraps client.ErrDamaged when the index cannot be so
// large.
func (l *layout) sizeOf(w uint64) (size int, halfway bool, err error) {
	if w>>1 > uint64(l.mostSubtables()-l.Subtables) {
		return 0, false, fmt.Errorf("the index has %d subtables more than at first, of %d: %w",
			w>>1, l.mostSubtables()-l.Subtables, client.ErrDamaged)
	}
	return l.Subtables + int(w>>1), w&1 != 0, nil
}

// resize gives the index so many subtables, and places them as the view says. It changes the
// client's memory only.
func (l *layout) resize(v *rdma.View, size int) {
	place, left := kit.Place(v, l.original.index[:size])
	l.index.Resize(l.Subtables, place)
	l.subtables = left
}

// readSize reads the index's size on a node that answers, and resizes the index. Clients begin
// with different nodes. Under an idle view all nodes have the same size; under a busy one the
// size may be a step behind, which does no harm: see above. The error wraps rdma.ErrNodeDown when
// no node answers.
func (l *layout) readSize(ep rdma.Endpoint, v *rdma.View) (err error) {
	if l.mostSubtables() == l.Subtables {
		return nil
	}
	for i := range l.holders {
		n := l.holders[(int(ep.Client())+i)%len(l.holders)]
		var w uint64
		if w, err = rdma.ReadWord(ep, stepReadSize, l.size(n), l.Timeout); errors.Is(err, rdma.ErrNodeDown) {
			continue
		}
		if err != nil {
			break
		}
		size, _, err := l.sizeOf(w)
		if err == nil && size != len(l.index.Place) {
			l.resize(v, size)
		}
		return err
	}
	return fmt.Errorf("read the size of the index: %w", err)
}

// learnSize reads the index's size in the view that this client has joined. Under an idle view it
// need not be read again.
func (c *Client) learnSize() error {
	before := len(c.index.Place)
	if err := c.readSize(c.ep, &c.view.View); err != nil {
		return err
	}
	c.sized = !c.view.Busy
	if size := len(c.index.Place); size != before {
		c.resized(before, size)
	}
	return nil
}

// resized makes up for splits. The new subtables were written on all replicas that there are, so
// they count as having their primary. Unresolved writes follow their pairs. After doubling the
// cache is made anew, since it is sized for the index.
func (c *Client) resized(before, size int) {
	c.promoted = append(c.promoted, make([]bool, size-before)...)
	for i := range c.unresolved {
		s := &c.unresolved[i]
		s.slot = c.index.Where(s.slot, s.hash)
	}
	// The cache was sized for half of the slots.
	if size >= 2*before {
		c.makeCache()
	}
}

// grewMeanwhile reports whether the index has grown since this client looked for a key and did
// not find it. Under an idle view it cannot have.
func (c *Client) grewMeanwhile() (bool, error) {
	if !c.view.Busy {
		return false, nil
	}
	before := len(c.index.Place)
	err := c.learnSize()
	return len(c.index.Place) != before, err
}

// ask tells the master that the index should have so many subtables. Clients overwrite each
// other's words, and one that is overwritten asks again as long as it waits.
func (c *Client) ask(size int) error {
	b := c.ep.Batch()
	defer b.Release()
	b.WriteWord(c.wanted(c.holders[0]), uint64(size))
	return c.do(stepAskSize, b)
}

// askEarly asks for a larger index when a key's buckets are nearly full, once for each size. When
// it fails another INSERT will ask.
func (c *Client) askEarly(hash uint64) {
	want := c.index.SizeToSplit(c.index.SubtableOf(hash))
	if want <= c.mostSubtables() && c.asked < want && c.ask(want) == nil {
		c.asked = want
	}
}

// awaitGrowth waits until the subtable of a key has been split, since there is no slot for the
// key. It waits for the operation's time, and as long again whenever the index has grown, since
// other subtables may come first. The operation has changed nothing, and has its whole time after
// that. The error wraps client.ErrFull when the index may not grow further, or when no master
// splits it.
func (c *Client) awaitGrowth(hash uint64) error {
	full := fmt.Errorf("all %d slots of the key's buckets are taken: index: %w", race.Candidates, client.ErrFull)
	want := c.index.SizeToSplit(c.index.SubtableOf(hash))
	last := c.ep.Now() + longestGrowth*c.opt.Timeout
	for r := (kit.Retry{Env: c.ep, Pause: kit.WhileBusy, Over: c.overdue}); want <= c.mostSubtables(); {
		// A request may be lost with its node, or be overwritten: it is repeated with each pause.
		if err := c.ask(want); err != nil && !interrupted(err) {
			return fmt.Errorf("ask for a larger index: %w", err)
		}
		if !r.Again() {
			return full
		}
		size := len(c.index.Place)
		if err := c.view.Join(); err != nil {
			return fmt.Errorf("wait for a larger index: %w", err)
		}
		if err := c.keepUp(); err != nil {
			return err
		}
		// The index grows, so a master is at work.
		if len(c.index.Place) > size {
			c.deadline = min(last, c.ep.Now()+c.opt.Timeout)
		}
		if c.index.SizeToSplit(c.index.SubtableOf(hash)) != want {
			// It has been split: want was the size that splits it, and its parts come next.
			c.deadline = unset
			return nil
		}
	}
	return full
}

// The keeper lets the index grow through this interface.
var _ cluster.Grower = (*Mender)(nil)

// Wants reports whether clients want a larger index than there is, and it may grow. It posts one
// READ.
func (m *Mender) Wants(v rdma.View) (bool, error) {
	m.view.Enter(v)
	want, err := m.readWanted()
	return err == nil && m.mayGrow(want), err
}

// readWanted returns how many subtables clients want; 0: the index has all that it may have.
func (m *Mender) readWanted() (uint64, error) {
	if len(m.index.Place) == m.mostSubtables() {
		return 0, nil
	}
	return rdma.ReadWord(m.ep, stepReadSize, m.wanted(m.holders[0]), m.opt.Timeout)
}

// mayGrow reports whether the index is smaller than wanted and may grow. No index grows beyond
// the memory that was set aside for it, nor where all nodes of the next subtable are gone. A pool
// that has lost a part may not grow: what is left of the index refers to what is gone.
func (m *Mender) mayGrow(want uint64) bool {
	size := len(m.index.Place)
	if want <= uint64(size) || size == m.mostSubtables() || m.lossy() {
		return false
	}
	_, lost := kit.Replicas(&m.view.View, m.original.index[size])
	return !lost
}

// Growth implements cluster.Grower.
func (m *Mender) Growth() string {
	if m.grown == 0 {
		return ""
	}
	return fmt.Sprintf("the index grew by %d subtables to %d of at most %d",
		m.grown, len(m.index.Place), m.mostSubtables())
}

// grow splits subtables until it has taken growFor: as many as clients want, and the others of
// the round, which fill at the same pace. It relies on a busy view, in which Mend has made all
// replicas equal. First it completes a split that another master left. An index for which nodes
// have no memory stays as it is: that must not keep the pool busy.
func (m *Mender) grow() error {
	m.grown = 0
	if m.halfway {
		if err := m.endSplit(len(m.index.Place)); err != nil {
			return fmt.Errorf("end a split: %w", err)
		}
	}
	want, err := m.readWanted()
	if err != nil {
		return err
	}
	if m.mayGrow(want) {
		want = max(want, uint64(m.index.RoundEnd()))
	}
	for began := m.ep.Now(); m.mayGrow(want) && (m.grown == 0 || m.ep.Now()-began < growFor); m.grown++ {
		backed, err := m.backNext()
		if err == nil && backed {
			err = m.split()
		}
		if err != nil {
			return fmt.Errorf("split subtable %d: %w", m.index.NextSplit(), err)
		}
		if !backed {
			break
		}
	}
	return nil
}

// backNext backs the next subtable with memory on all its nodes. It returns false if one has no
// more, or does not know how.
func (m *Mender) backNext() (bool, error) {
	place, _ := kit.Replicas(&m.view.View, m.original.index[len(m.index.Place)])
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
func (m *Mender) back(r node.Replica) error {
	size := race.SubtableBytes(m.Groups)
	q := rdma.Request{Step: stepBack, Proc: node.ProcBack, Arg: [6]uint64{m.index.Base + uint64(r.Index)*size, size}}
	if err := m.ep.Call(r.Node, &q, m.opt.Timeout); err != nil {
		return fmt.Errorf("back a subtable with memory on node %d: %w", r.Node, err)
	}
	return nil
}

// settleSize takes the highest of the sizes that nodes have, and writes it on all of them. A
// crash in between leaves nodes that differ, and the highest size is still there.
func (m *Mender) settleSize() error {
	b := m.ep.Batch()
	defer b.Release()
	for _, n := range m.holders {
		b.Read(m.size(n), 8)
	}
	if err := m.do(stepReadSize, b); err != nil {
		return err
	}
	word, same := uint64(0), true
	for i := range b.Len() {
		w := b.Op(i).Word(0)
		same = same && (i == 0 || w == word)
		word = max(word, w)
	}
	size, halfway, err := m.sizeOf(word)
	if err != nil {
		return err
	}
	m.resize(&m.view.View, size)
	if m.halfway = halfway; same {
		return nil
	}
	return m.writeSize(size, halfway)
}

// writeSize writes the index's size on all nodes that serve.
func (m *Mender) writeSize(size int, halfway bool) error {
	b := m.ep.Batch()
	defer b.Release()
	for _, n := range m.holders {
		b.WriteWord(m.size(n), m.sizeWord(size, halfway))
	}
	return m.do(stepWriteSize, b)
}

// split adds a subtable, which is backed with memory, by the steps at the top of this file. Each
// step is complete on all replicas before the next begins.
func (m *Mender) split() error {
	from, to := m.index.NextSplit(), len(m.index.Place)
	next := m.layout.index
	place, _ := kit.Place(&m.view.View, m.original.index[:to+1])
	next.Resize(m.Subtables, place)
	first, per := m.firstSlot(to), int(m.firstSlot(1))
	words := make([]byte, per*8)
	err := m.eachWord(from, func(s race.Slot, w race.Word, hash uint64, known bool) error {
		// The words that the new subtable gets. Tombstones are on both sides.
		if w.Empty() || known && next.Where(s, hash) >= first {
			le.PutUint64(words[8*(int(s)%per):], uint64(w))
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Step 1: write the new subtable.
	for at := 0; at < per; at += mendWords {
		n := min(mendWords, per-at)
		b := m.ep.Batch()
		for r := range place[to] {
			b.Write(next.Address(first+race.Slot(at), r), words[8*at:8*(at+n)])
		}
		err := m.do(stepWriteSubtable, b)
		b.Release()
		if err != nil {
			return err
		}
	}
	// Step 2: clients may read it from here on.
	if err := m.writeSize(to+1, true); err != nil {
		return err
	}
	m.resize(&m.view.View, to+1)
	// Steps 3 and 4.
	return m.endSplit(to + 1)
}

// firstSlot returns the first slot of a subtable. All subtables have the same number of words.
func (l *layout) firstSlot(sub int) race.Slot {
	return race.Slot(uint64(sub) * race.SubtableBytes(l.Groups) / 8)
}

// endSplit is steps 3 and 4: it runs when all nodes have the new size with the mark. It takes
// what moved to the last subtable away from where it was, and clears the mark. It may be
// repeated: what was taken away is no longer found.
func (m *Mender) endSplit(size int) error {
	// The index as it was before the split says which subtable was split.
	before := m.index
	before.Resize(m.Subtables, m.index.Place[:size-1])
	from := before.NextSplit()
	var moved []candidate
	err := m.eachWord(from, func(s race.Slot, w race.Word, hash uint64, known bool) error {
		if known && m.index.Subtable(m.index.Where(s, hash)) == size-1 {
			moved = append(moved, candidate{s, w})
		}
		// A batch has the CASes of so many slots.
		if len(moved) < mendWords {
			return nil
		}
		err := m.takeAway(moved)
		moved = moved[:0]
		return err
	})
	if err == nil {
		err = m.takeAway(moved)
	}
	if err != nil {
		return err
	}
	return m.writeSize(size, false)
}

// takeAway empties slots on all replicas. No other verb changes them under the busy view. A crash
// leaves replicas that differ: Mend makes them equal before the next master repeats the step.
func (m *Mender) takeAway(list []candidate) error {
	b := m.ep.Batch()
	defer b.Release()
	for _, s := range list {
		for r := m.index.Copies(s.slot) - 1; r >= 0; r-- {
			b.CompareSwap(m.index.Address(s.slot, r), uint64(s.word), 0)
		}
	}
	return m.swapAll(stepClearMoved, b)
}

// keyBytes is how much of a pair is read at first to learn its key: most keys are shorter.
const keyBytes = 128

// eachWord calls f with every word of a subtable. With words that point at a pair f gets the hash
// of the pair's key. The key is not known when the object is not what the slot says, which is
// damage: such a pair stays where it is.
func (m *Mender) eachWord(sub int, f func(s race.Slot, w race.Word, hash uint64, known bool) error) error {
	first, per := m.firstSlot(sub), int(m.firstSlot(1))
	for at := 0; at < per; at += mendWords {
		n := min(mendWords, per-at)
		p, err := m.read(stepReadSubtable, m.index.Address(first+race.Slot(at), 0), n*8)
		if err != nil {
			return err
		}
		words := make([]race.Word, n)
		for i := range words {
			words[i] = race.Word(le.Uint64(p[8*i:]))
		}
		hashes, known, err := m.hashesOf(words)
		if err != nil {
			return err
		}
		for i, w := range words {
			if err := f(first+race.Slot(at+i), w, hashes[i], known[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashesOf reads the keys of words, those that are long in a second trip. The error wraps
// client.ErrDamaged when a word points into no block.
func (m *Mender) hashesOf(words []race.Word) (hashes []uint64, known []bool, err error) {
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
		b := m.ep.Batch()
		for _, i := range list {
			if blk, off, ok := m.space.BlockOf(words[i].Unit()); !ok ||
				off+uint64(words[i].Units())*node.Unit > m.space.BlockBytes {
				b.Release()
				return nil, nil, fmt.Errorf("follow %v into block %v: %w", words[i], blk, client.ErrDamaged)
			}
			b.Read(m.space.UnitAt(words[i].Unit(), 0), size(i))
		}
		if err := m.do(stepReadKeys, b); err != nil {
			b.Release()
			return nil, nil, err
		}
		var long []int
		for k, i := range list {
			p := b.Op(k).Buf
			switch n := headerBytes + int(le.Uint16(p[keyLenAt:])); {
			// Another object lies there, or one that does not fit: its key is not known.
			case m.tag(le.Uint32(p[incarnationAt:])) != words[i].Tag() || n > words[i].Units()*node.Unit:
			case n > len(p):
				long = append(long, i)
			default:
				hashes[i], known[i] = race.Hash(p[keyAt:n]), true
			}
		}
		b.Release()
		list, size = long, func(i int) int { return words[i].Units() * node.Unit }
	}
	return hashes, known, nil
}
