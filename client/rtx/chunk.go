package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client/chunks"
)

// metaClass is the class in the table of chunks of metadata.
const metaClass = 0

// count returns how many items a chunk of a class has.
func (m *memory) count(a *chunks.Arena, class int) int {
	if a == &m.w.metas {
		return metaChunk / MetaBytes
	}
	return m.w.buffers(class)
}

// refill looks for free items on a node: in chunks of the worker's own that it
// has not scanned for a quarantine, and if these have few, in others. A worker
// that waits for a quarantine scans its own chunks in any case. Before it claims
// chunks it gives back those in which it has few items, for other clients to find
// what becomes free there.
func (m *memory) refill(h *heap, a *chunks.Arena, class, n int, e effort) error {
	// Metadata has no quarantine.
	metas := a == &m.w.metas
	for range h.Chunks {
		c := h.Next()
		now := m.w.ep.Now()
		if !metas && e < tryResting && now-c.Scanned < m.w.opt.Quarantine && now >= c.Scanned {
			continue
		}
		found, err := m.scan([]*chunks.Held{c})
		if err != nil || metas && found*chunks.Enough >= len(c.Items) {
			return err
		}
	}
	// One walk over the chunks of others a look is enough.
	if e != tryOthers {
		return nil
	}
	if err := m.table.GiveBack(&h.Heap, a); err != nil {
		return err
	}
	if m.table.AtShare(a) && m.listed(h) {
		return nil
	}
	defer m.table.Trim(a)
	return m.claim(h, a, class, n)
}

// listed reports whether any item of a heap is in a list from which it may be
// taken now or later.
func (m *memory) listed(h *heap) bool {
	for _, c := range h.Chunks {
		if c.Listed > c.Kept || c.Listed > 0 && !m.grows {
			return true
		}
	}
	return false
}

// claim takes chunks of a node for a heap: one that was never used, or else some
// that clients have given back, or lost, in which a scan finds something. For an
// object that is replaced it may also take a spared chunk. If there is none it
// takes none, without an error.
func (m *memory) claim(h *heap, a *chunks.Arena, class, n int) error {
	if a.Count == 0 {
		return nil
	}
	spare := 0
	if a == &m.w.data {
		spare = m.w.Spare
	}
	if !h.Empty {
		fresh, err := m.claimFresh(h, a, class, n, int(a.Count)-spare)
		if err != nil || fresh {
			return err
		}
		h.Empty = true
	}
	m.w.tx.stepAside()
	skip := func(c chunks.Chunk) bool { return c.Entry.Class() != class || m.grows && m.spared(a, c.Index) }
	found, err := m.table.ClaimLeft(&h.Heap, a, class, n, skip)
	if err != nil || found > 0 || m.grows || spare == 0 {
		return err
	}
	_, err = m.claimFresh(h, a, class, n, int(a.Count))
	return err
}

// claimFresh asks the node for one of its first count chunks that was never used,
// from behind the one that it got last. All buffers of such a chunk are free,
// with tag 1.
func (m *memory) claimFresh(h *heap, a *chunks.Arena, class, n, count int) (bool, error) {
	got, ok, err := m.table.Fresh(a, n, class, count, h.Behind(), m.w.trips.Left())
	if err != nil || !ok {
		return false, err
	}
	c := m.table.Add(&h.Heap, a, got)
	if a == &m.w.metas {
		m.anew(c)
		return true, nil
	}
	for i := len(c.Items) - 1; i >= 0; i-- {
		it := item{chunk: c, i: i, use: m.w.pointer(class, 1, m.w.unitOf(n, c.Index, class, i))}
		if m.spared(a, c.Index) {
			h.keep(it)
			continue
		}
		c.List(i)
		h.fresh = append(h.fresh, it)
	}
	return true, nil
}

// anew lists the metadata of a chunk that was never used: it is all zero.
func (m *memory) anew(c *chunks.Held) {
	for i := len(c.Items) - 1; i >= 0; i-- {
		m.pushSlot(slot{chunk: c, i: i, number: m.w.numberOf(c.Node, c.Index, i)})
	}
}

// scan lists what is free in chunks of the worker's, and returns how much it
// found. What is free stays so, since only the worker makes an object name it.
func (m *memory) scan(some []*chunks.Held) (found int, err error) {
	for _, c := range some {
		m.w.stats.Scans++
		c.Scanned = m.w.ep.Now()
	}
	if len(some) > 0 && some[0].Arena == &m.w.metas {
		return m.scanMetas(some)
	}
	err = m.freeBuffers(some, func(it item) {
		m.push(it)
		found++
	})
	return found, err
}

// place is an item of a chunk.
type place struct {
	chunk *chunks.Held
	i     int
}

// freeBuffers calls f for the free buffers of chunks. It looks at those only of
// which the worker knows no use.
func (m *memory) freeBuffers(some []*chunks.Held, f func(it item)) error {
	m.look = m.look[:0]
	for _, c := range some {
		for i, state := range c.Items {
			if state == chunks.Used {
				m.look = append(m.look, place{c, i})
			}
		}
	}
	for from := 0; from < len(m.look); from += scanAtOnce {
		if err := m.freeAtOnce(m.look[from:min(from+scanAtOnce, len(m.look))], f); err != nil {
			return fmt.Errorf("scan %d chunks of node %d: %w", len(some), some[0].Node, err)
		}
	}
	return nil
}

// freeAtOnce looks at the headers of buffers, and at the pointers of the objects
// that they name, in two trips. A torn header is that of a buffer that was never
// installed: whatever object it seems to name does not name the buffer.
func (m *memory) freeAtOnce(look []place, f func(it item)) error {
	w := m.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for _, p := range look {
		c := p.chunk
		b.Read(c.Arena.At(c.Node, c.Index).Add(uint64(p.i*w.bufferBytes(c.Entry.Class()))), HeaderBytes)
	}
	if err := w.trips.Do(stepScanChunk, b); err != nil {
		return err
	}
	objects := w.ep.Batch()
	defer w.trips.Drop(objects)
	for i := range look {
		if r := Ref(b.Op(i).Word(2)); w.valid(r) {
			objects.Read(w.Meta(r).Add(8), 8)
		}
	}
	if err := w.trips.Do(stepScanObjects, objects); err != nil {
		return err
	}
	asked := 0
	for i, p := range look {
		head, class := b.Op(i), p.chunk.Entry.Class()
		unit := w.unitOf(p.chunk.Node, p.chunk.Index, class, p.i)
		use := w.pointer(class, w.tag(Pointer(head.Word(1))), unit)
		if w.valid(Ref(head.Word(2))) {
			now := Pointer(objects.Op(asked).Word(0))
			asked++
			// The object names the buffer, by whichever use.
			if now&pointerDead == 0 && w.unit(now) == unit {
				continue
			}
		}
		f(item{chunk: p.chunk, i: p.i, use: m.nextUse(use)})
	}
	return nil
}

// scanMetas lists free metadata of chunks. A lock that a dead client has left on
// metadata without an object is released here: no other client meets it.
func (m *memory) scanMetas(some []*chunks.Held) (found int, err error) {
	b := m.w.ep.Batch()
	defer m.w.trips.Drop(b)
	for _, c := range some {
		b.Read(c.Arena.At(c.Node, c.Index), metaChunk)
	}
	if err := m.w.trips.Do(stepScanChunk, b); err != nil {
		return 0, fmt.Errorf("scan metadata of node %d: %w", some[0].Node, err)
	}
	for k, c := range some {
		n, err := m.freeMetas(c, b.Op(k).Buf)
		if found += n; err != nil {
			return found, err
		}
	}
	return found, nil
}

// freeMetas lists the free metadata of a chunk, from a READ of all of it.
func (m *memory) freeMetas(c *chunks.Held, read []byte) (found int, err error) {
	w := m.w
	for i := range c.Items {
		seen := MetaOf(read[i*MetaBytes:])
		if c.Items[i] != chunks.Used || !w.Absent(seen.Pointer) {
			continue
		}
		s := slot{chunk: c, i: i, number: w.numberOf(c.Node, c.Index, i), seen: seen}
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

// unlockSlot releases the lock of metadata without an object, if its transaction
// is over. Otherwise s.stale stays set, and the metadata is left for a later
// scan.
func (r *repairer) unlockSlot(s *slot) error {
	at, k := r.Meta(Ref(s.number)), s.seen.Lock
	s.stale = true
	m, now, err := r.look(at, r.owner(k))
	if err != nil || m != s.seen || !r.released(k, now) && r.owner(k) != r.id {
		return err
	}
	if err := r.free(at, k); err != nil {
		return err
	}
	s.seen.Lock, s.stale = k.released(), false
	return nil
}

// released reports whether a lock may be released at once. A lock without a log,
// of a transaction that another client has aborted, may not: its pointer has to
// be stolen first.
func (r *repairer) released(k Lock, s state) bool {
	sequence := r.sequence(k)
	return s.over(sequence) && !(k.Alone() && s.phase() == phaseAbort && s.sequence() == sequence)
}
