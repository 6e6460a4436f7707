package rtx

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// claim takes a chunk of a node: one that was never used, or else one that its client has given back, or lost, in which
// a scan finds something; and for an object that is replaced one of those that are spared for that. Where there is none
// it takes none.
func (m *memory) claim(h *heap, a *arena, class, n int) error {
	if a.chunks == 0 {
		return nil
	}
	spare := 0
	if a == &m.w.data {
		spare = m.w.Spare
	}
	if !h.empty {
		fresh, err := m.claimFresh(h, a, class, n, int(a.chunks)-spare)
		if err != nil || fresh {
			return err
		}
		h.empty = true
	}
	tried, found := 0, 0
	err := m.left(a, n, func(i int, e node.Entry) (bool, error) {
		if e.Class() != class {
			return false, nil
		}
		here, err := m.claimLeft(h, a, n, i, e)
		tried, found = tried+1, found+here
		return here*enough >= m.count(a, class) || tried >= mostTried && found > 0, err
	})
	if err != nil {
		return err
	}
	if found > 0 || m.grows || spare == 0 {
		return nil
	}
	_, err = m.claimFresh(h, a, class, n, int(a.chunks))
	return err
}

// left has f look at the chunks of a node that their clients have given back, or lost, until it says that it is done;
// not at those that are spared, if what is taken is for a new object.
func (m *memory) left(a *arena, n int, f func(i int, e node.Entry) (done bool, err error)) error {
	windows := (int(a.chunks) + tableAtOnce - 1) / tableAtOnce
	from := m.w.ep.Rand().IntN(windows) // so that clients do not all look at the same ones
	for k := range windows {
		first := (from + k) % windows * tableAtOnce
		entries, err := m.w.readEntries(a, n, first)
		if err != nil {
			return err
		}
		offset := m.w.ep.Rand().IntN(len(entries))
		for i := range entries {
			i := (offset + i) % len(entries)
			if entries[i].Owner() != node.Left || m.grows && m.spared(a, first+i) {
				continue
			}
			if done, err := f(first+i, entries[i]); err != nil || done {
				return err
			}
		}
	}
	return nil
}

// claimLeft takes a chunk that its client has given back, and keeps it if a scan finds something.
func (m *memory) claimLeft(h *heap, a *arena, n, i int, e node.Entry) (found int, err error) {
	mine := e.Next(m.w.id, e.Class())
	_, ok, err := m.w.swap(stepClaimChunk, a.entryAt(n, i), uint64(e), uint64(mine))
	if err != nil {
		return 0, fmt.Errorf("claim chunk %d of node %d: %w", i, n, err)
	}
	if !ok {
		return 0, nil
	}
	c := m.add(h, a, n, i, mine)
	c.scanned = m.w.ep.Now()
	found, err = m.scan(c)
	if err != nil || found > 0 {
		return found, err
	}
	return 0, m.leave(h, slices.Index(h.chunks, c))
}

// claimFresh asks the node for one of its first chunks that was never used, from behind the one that it got last.
func (m *memory) claimFresh(h *heap, a *arena, class, n, chunks int) (bool, error) {
	r := rdma.Request{Step: stepClaimChunk, Proc: node.ProcAlloc}
	r.Arg = [6]uint64{a.table, uint64(chunks), a.first, a.chunk, uint64(class), h.behind() | node.Uncounted}
	err := m.w.ep.Call(n, &r, max(m.w.left(), 1))
	if errors.Is(err, client.ErrFull) {
		return false, nil
	}
	if err != nil {
		m.late = m.late || !errors.Is(err, rdma.ErrNoEffect)
		return false, fmt.Errorf("ask node %d for a chunk: %w", n, err)
	}
	c := m.add(h, a, n, int(r.Ret[0]), node.Entry(r.Ret[1]))
	if a == &m.w.metas {
		m.anew(c)
		return true, nil
	}
	for i := len(c.items) - 1; i >= 0; i-- {
		it := item{chunk: c, i: i, use: m.w.pointer(class, 1, m.w.unitOf(n, c.index, class, i))}
		if m.spared(a, c.index) {
			h.keep(it)
			continue
		}
		c.items[i] = itemListed
		c.listed++
		h.fresh = append(h.fresh, it)
	}
	return true, nil
}

// behind is the index behind the heap's last chunk.
func (h *heap) behind() uint64 {
	if len(h.chunks) == 0 {
		return 0
	}
	return uint64(h.chunks[len(h.chunks)-1].index) + 1
}

// anew lists the metadata of a chunk that was never used.
func (m *memory) anew(c *chunk) {
	for i := len(c.items) - 1; i >= 0; i-- {
		m.pushSlot(slot{chunk: c, i: i, number: m.w.numberOf(c.node, c.index, i)})
	}
}

func (m *memory) add(h *heap, a *arena, n, index int, e node.Entry) *chunk {
	c := &chunk{a: a, node: n, index: index, entry: e, items: make([]itemState, m.count(a, e.Class()))}
	h.chunks = append(h.chunks, c)
	m.held[a.entryAt(n, index)] = c
	m.w.stats.Claims++
	return c
}

// scan lists what is free in a chunk of the worker's. What it finds so stays so: only the worker makes an object name
// it.
func (m *memory) scan(c *chunk) (found int, err error) {
	m.w.stats.Scans++
	if c.a == &m.w.metas {
		return m.scanMetas(c)
	}
	for from := 0; from < len(c.items); from += scanAtOnce {
		n, err := m.freeBuffers(c, from, min(from+scanAtOnce, len(c.items)), m.push)
		if err != nil {
			return found, err
		}
		found += n
	}
	return found, nil
}

// freeBuffers looks at the headers of some buffers, and at the objects that they name. A header that is torn is of a
// buffer that was never installed: whatever it seems to name does not name it. It has f look at those that are free.
func (m *memory) freeBuffers(c *chunk, from, to int, f func(it item)) (found int, err error) {
	w, class := m.w, c.entry.Class()
	size := w.bufferBytes(class)
	b := w.ep.Batch()
	defer w.drop(b)
	for i := from; i < to; i++ {
		if c.items[i] == itemUsed {
			b.Read(c.a.chunkAt(c.node, c.index).Add(uint64(i*size)), HeaderBytes)
		}
	}
	if err := w.do(stepScanChunk, b); err != nil {
		return 0, fmt.Errorf("scan chunk %d of node %d: %w", c.index, c.node, err)
	}
	objects := w.ep.Batch()
	defer w.drop(objects)
	for i := range b.Len() {
		if r := Ref(b.Op(i).Word(2)); w.valid(r) {
			objects.Read(w.Meta(r).Add(8), 8)
		}
	}
	if err := w.do(stepScanObjects, objects); err != nil {
		return 0, fmt.Errorf("scan chunk %d of node %d: %w", c.index, c.node, err)
	}
	read, asked := 0, 0
	for i := from; i < to; i++ {
		if c.items[i] != itemUsed {
			continue
		}
		head := b.Op(read)
		read++
		unit := w.unitOf(c.node, c.index, class, i)
		use := w.pointer(class, w.tag(Pointer(head.Word(1))), unit)
		if w.valid(Ref(head.Word(2))) {
			now := Pointer(objects.Op(asked).Word(0))
			asked++
			if now&pointerDead == 0 && w.unit(now) == unit { // it is named, by whichever use
				continue
			}
		}
		f(item{chunk: c, i: i, use: m.nextUse(use)})
		found++
	}
	return found, nil
}

// scanMetas looks at the metadata of a chunk. A lock that a dead client left on it is released: no other client will
// meet it.
func (m *memory) scanMetas(c *chunk) (found int, err error) {
	w := m.w
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.Read(c.a.chunkAt(c.node, c.index), metaChunk)
	if err := w.do(stepScanChunk, b); err != nil {
		return 0, fmt.Errorf("scan metadata %d of node %d: %w", c.index, c.node, err)
	}
	for i := range c.items {
		seen := MetaOf(op.Buf[i*MetaBytes:])
		if c.items[i] != itemUsed || !w.Absent(seen.Pointer) {
			continue
		}
		s := slot{chunk: c, i: i, number: w.numberOf(c.node, c.index, i), seen: seen}
		if seen.Lock.Held() {
			if err := w.unlockSlot(&s); err != nil || s.stale {
				if err != nil {
					return found, err
				}
				continue
			}
		}
		m.pushSlot(s)
		found++
	}
	return found, nil
}

// unlockSlot releases the lock of metadata without an object, if its transaction is over.
func (w *Worker) unlockSlot(s *slot) error {
	at, k := w.Meta(Ref(s.number)), s.seen.Lock
	s.stale = true
	m, now, err := w.look(at, w.owner(k))
	if err != nil || m != s.seen || !w.released(k, now) && w.owner(k) != w.id {
		return err
	}
	if err := w.free(at, k); err != nil {
		return err
	}
	s.seen.Lock, s.stale = k.released(), false
	return nil
}

// released reports whether a lock is one that may be released without more ado. One without a log, of a transaction
// that another client has aborted, is not: its pointer has to be stolen.
func (w *Worker) released(k Lock, s state) bool {
	sequence := w.sequence(k)
	return s.over(sequence) && !(k.Alone() && s.phase() == phaseAbort && s.sequence() == sequence)
}

// tableAtOnce is how many words of a table are read in a trip.
const tableAtOnce = 1 << 12

// readEntries reads the words of an arena's chunks on a node from one on, as many as one trip brings.
func (w *Worker) readEntries(a *arena, n, from int) (entries []node.Entry, err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.Read(a.entryAt(n, from), 8*min(tableAtOnce, int(a.chunks)-from))
	if err := w.do(stepReadTable, b); err != nil {
		return nil, fmt.Errorf("read the table of node %d: %w", n, err)
	}
	for i := range len(op.Buf) / 8 {
		entries = append(entries, node.Entry(op.Word(i)))
	}
	return entries, nil
}

// readTable reads the words of all of an arena's chunks on a node.
func (w *Worker) readTable(a *arena, n int) (entries []node.Entry, err error) {
	for from := 0; from < int(a.chunks); from += tableAtOnce {
		some, err := w.readEntries(a, n, from)
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	return entries, nil
}
