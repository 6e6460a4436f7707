package rtx

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
)

// Memory is handed out in chunks. The word of a chunk in the allocation table
// names the client that uses the chunk, and the size of its buffers. Only that
// client takes buffers and metadata of the chunk. Nothing is freed: a buffer is
// free when the object that its header names does not name it, and metadata is
// free when its pointer says so (section 4.4: "the fix scans all entries and
// determines whether the data is used"). So a crash leaves nothing half done
// here, and recovery takes only the word from a dead client.
//
// A client scans its chunks when it has nothing left, and takes other chunks when
// that does not find enough. It also notes what it replaces in chunks of its own.
// These lists are the paper's reclamation table. They are lost with their client
// without harm, since a scan finds the same.

// item is a free buffer.
type item struct {
	chunk *chunks.Held
	i     int
	// use is the pointer that will name the next use of the buffer. Its tag is
	// one above that of the last use.
	use Pointer
	// ready is when its quarantine ends: see Options.Quarantine.
	ready time.Duration
}

// slot is metadata without an object.
type slot struct {
	chunk *chunks.Held
	i     int
	// number is that of the metadata: the lower part of a Ref.
	number uint64
	// seen is the metadata as it was seen last: what a CAS that makes an object
	// of it expects.
	seen Meta
	// stale: the metadata is not as it was seen. The slot is not listed again
	// until a scan has read it.
	stale bool
}

// heap is what a worker has on one node, either buffers of one size or metadata.
type heap struct {
	chunks.Heap
	// fresh has buffers that were never used. They need no quarantine.
	fresh []item
	// aged has buffers in the order in which their quarantine ends. Those before
	// first were taken.
	aged  []item
	first int
	// kept has buffers of spared chunks, for objects that are replaced.
	kept []item
	// slots has free metadata, which needs no quarantine: its lock word never
	// comes back.
	slots []slot
}

// memory is what a worker has of the pool's memory, and knows about it.
type memory struct {
	w *Worker
	// table claims and frees chunks, and has those that the worker has.
	table chunks.Holdings
	// turn is the node of the next new object, modulo the number of nodes.
	turn int
	// heaps has those of buffers, by node and class.
	heaps []heap
	// metas has those of metadata, by node.
	metas []heap
	// grows: what is taken now is for a new object. So chunks that are spared are
	// left alone.
	grows bool
	// near: what the transaction needs may lie on any node: see Tx.stepAside.
	near bool
	// full says when a look everywhere found nothing for a new object, by class,
	// and for metadata at the end; 0: it never happened, or an object was freed
	// since.
	full []time.Duration
	// look has the buffers that freeBuffers looks at. It is here to be used
	// again.
	look []place
}

const (
	// mostLooks is how often a worker looks everywhere for an item.
	mostLooks = 3
	// mostNaps bounds the sleeps for one buffer: the clock may run slow.
	mostNaps = 4
	// scanAtOnce is how many buffers are looked at in a trip.
	scanAtOnce = 128
)

// open forgets what the worker had. The chunks' words in the pool stay as they
// are.
func (m *memory) open(w *Worker) {
	*m = memory{
		w: w, turn: int(w.id), full: make([]time.Duration, len(w.Sizes)+1),
		heaps: make([]heap, w.Nodes*len(w.Sizes)), metas: make([]heap, w.Nodes),
	}
	m.table = chunks.Holdings{
		Client: chunks.Client{
			Endpoint: w.ep, ID: w.id, Do: w.trips.Do, Drop: w.trips.Drop,
			Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk, Free: stepFreeChunk},
		},
		Nodes: w.Nodes, Clients: w.Clients, Claims: &w.stats.Claims, Count: m.count, Scan: m.scan,
	}
}

// heap returns the heap of buffers of a class on a node.
func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// arena returns that of a class of buffers, or of the class behind the last one:
// that of metadata.
func (m *memory) arena(class int) *chunks.Arena {
	if class == len(m.w.Sizes) {
		return &m.w.metas
	}
	return &m.w.data
}

// effort is what a worker does to find an item. Each step includes those before
// it.
type effort uint8

const (
	// tryListed: it looks at what it knows of.
	tryListed effort = iota
	// tryOwn: it scans the chunks that it has.
	tryOwn
	// tryOthers: it also claims other chunks.
	tryOthers
	// tryResting: it also waits for a quarantine to end.
	tryResting
	// tryReshaped: it also gives an empty chunk of another size this one.
	tryReshaped
)

// everywhere calls f for each node, from home on, with more effort each time,
// until f finds an item of a class. It does so again after a pause, since other
// clients may have what is free for a moment only.
//
// A worker that has its share of chunks first looks at what it has on all nodes: a
// claim costs it a chunk. It scans none for that. In a pool that grows all of them
// are full.
//
// After a look that found nothing for a new object, such looks only scan the
// worker's own chunks for as long as Options.Drift. Otherwise the looks of many
// workers at a full pool would take up all of their time.
func (m *memory) everywhere(class, home int, f func(n int, e effort) (found bool, err error)) (bool, error) {
	efforts := []effort{tryListed, tryOthers, tryResting, tryReshaped}
	if !m.near && !m.table.AtShare(m.arena(class)) {
		efforts = efforts[1:]
	}
	now := m.w.ep.Now()
	lately := m.grows && m.full[class] > 0 && now >= m.full[class] && now-m.full[class] < m.w.opt.Drift
	if lately {
		efforts = []effort{tryOwn}
	}
	for looks := range mostLooks {
		if looks > 0 {
			if lately {
				return false, nil
			}
			m.w.tx.stepAside()
			m.w.ep.Sleep(m.w.opt.Drift / 8)
		}
		for _, e := range efforts {
			for k := range m.w.Nodes {
				if found, err := f((home+k)%m.w.Nodes, e); err != nil || found {
					return found, err
				}
			}
		}
	}
	if m.grows {
		m.full[class] = max(m.w.ep.Now(), 1)
	}
	return false, nil
}

// take takes a buffer of a class, on the home node if there is one, and else on
// another node. grows: it is for a new object, which gets no buffer of a spared
// chunk. The error wraps client.ErrFull.
func (m *memory) take(class, home int, grows bool) (it item, err error) {
	m.grows = grows
	var ok bool
	if it, ok = m.pop(m.heap(home, class)); ok {
		return it, nil
	}
	ok, err = m.everywhere(class, home, func(n int, e effort) (ok bool, err error) {
		it, ok, err = m.takeOn(class, n, e)
		return ok, err
	})
	if err == nil && !ok {
		err = fmt.Errorf("no buffer of %d bytes is free: %w", m.w.Sizes[class], client.ErrFull)
	}
	return it, err
}

// takeOn takes a buffer of a class on node n, with the effort e.
func (m *memory) takeOn(class, n int, e effort) (it item, ok bool, err error) {
	h := m.heap(n, class)
	if e == tryReshaped {
		if ok, err = m.reshapeOne(class, n); err != nil || !ok {
			return it, false, err
		}
	}
	if it, ok = m.pop(h); ok || e == tryListed {
		return it, ok, nil
	}
	if e < tryResting || h.first == len(h.aged) {
		if err := m.refill(h, &m.w.data, class, n, e); err != nil {
			return item{}, false, err
		}
	}
	if it, ok = m.pop(h); ok || e < tryResting {
		return it, ok, nil
	}
	m.w.tx.stepAside()
	for range mostNaps {
		nap := m.w.opt.Quarantine / mostNaps
		if h.first < len(h.aged) {
			nap = max(nap, h.aged[h.first].ready-m.w.ep.Now())
		} else if m.grows || len(h.kept) == 0 {
			break
		}
		m.w.ep.Sleep(nap)
		if it, ok = m.pop(h); ok {
			break
		}
	}
	return it, ok, nil
}

// resting reports whether a buffer is in quarantine. A buffer that is ready later
// than a whole quarantine from now was listed before the clock was set back; it
// counts as ready.
func (m *memory) resting(it item) bool {
	now := m.w.ep.Now()
	return it.ready > now && it.ready <= now+m.w.opt.Quarantine // else the clock was set back
}

// pop takes the first buffer for which the quarantine is over, or a fresh one, or
// one that is kept for objects that are replaced. It drops buffers of chunks that
// were given back.
func (m *memory) pop(h *heap) (item, bool) {
	for h.first < len(h.aged) {
		it := h.aged[h.first]
		if !it.chunk.Gone && m.resting(it) {
			break
		}
		h.aged[h.first] = item{}
		h.first++
		if !it.chunk.Gone {
			return it.taken(), true
		}
	}
	if h.first == len(h.aged) {
		h.aged, h.first = h.aged[:0], 0
	}
	for len(h.fresh) > 0 {
		it := h.fresh[len(h.fresh)-1]
		h.fresh = h.fresh[:len(h.fresh)-1]
		if !it.chunk.Gone {
			return it.taken(), true
		}
	}
	if m.grows {
		return item{}, false
	}
	return m.popKept(h)
}

// popKept takes a buffer that is kept for objects that are replaced.
func (m *memory) popKept(h *heap) (item, bool) {
	h.kept = slices.DeleteFunc(h.kept, func(it item) bool { return it.chunk.Gone })
	for i, it := range h.kept {
		if !m.resting(it) {
			h.kept = slices.Delete(h.kept, i, i+1)
			it.chunk.Kept--
			return it.taken(), true
		}
	}
	return item{}, false
}

// taken notes that the running transaction has the buffer.
func (it item) taken() item {
	it.chunk.Take(it.i)
	return it
}

// spared reports whether a chunk is one of the last Shape.Spare chunks, which no
// new object takes.
func (m *memory) spared(a *chunks.Arena, index int) bool {
	return a == &m.w.data && index >= int(a.Count)-m.w.Spare
}

// push lists a buffer that goes into quarantine now. Taken buffers at the front
// of the list are dropped when they are more than half of it.
func (m *memory) push(it item) {
	h := m.heap(it.chunk.Node, it.use.class())
	if m.spared(it.chunk.Arena, it.chunk.Index) {
		it.ready = m.w.ep.Now() + m.w.opt.Quarantine
		h.keep(it)
		return
	}
	if h.first > 64 && 2*h.first > len(h.aged) {
		h.aged, h.first = h.aged[:copy(h.aged, h.aged[h.first:])], 0
	}
	it.ready = m.w.ep.Now() + m.w.opt.Quarantine
	it.chunk.List(it.i)
	h.aged = append(h.aged, it)
}

// keep lists a buffer that no new object takes.
func (h *heap) keep(it item) {
	it.chunk.List(it.i)
	it.chunk.Kept++
	h.kept = append(h.kept, it)
}

// used notes what became of a buffer that a transaction had taken. A buffer that
// was not installed may bear the pointer of this use already, so its next use
// gets another tag.
func (m *memory) used(it item, installed bool) {
	it.chunk.Release(it.i)
	if !installed && !it.chunk.Gone {
		it.use = m.nextUse(it.use)
		m.push(it)
	}
}

// putBack lists a buffer that a transaction had taken, and has not written to. So
// it needs no quarantine.
func (m *memory) putBack(it item) {
	it.chunk.Release(it.i)
	h := m.heap(it.chunk.Node, it.use.class())
	if m.spared(it.chunk.Arena, it.chunk.Index) {
		h.keep(it)
		return
	}
	it.chunk.List(it.i)
	h.fresh = append(h.fresh, it)
}

// replaced notes that no object names a buffer any more. If the chunk is another
// client's, that client finds the buffer by a scan.
func (m *memory) replaced(p Pointer) {
	n, index, i := m.w.chunkOf(p)
	if c := m.table.Held(&m.w.data, n, index); c != nil && c.Items[i] == chunks.Used {
		m.push(item{chunk: c, i: i, use: m.nextUse(p)})
	}
}

// freed notes that the worker has freed an object. So the pool is not full now,
// in whichever client's chunk the object lies.
func (m *memory) freed(p Pointer) {
	m.full[len(m.w.Sizes)] = 0
	if !m.w.Absent(p) {
		m.full[p.class()] = 0
	}
}

// unsure gives up what a transaction of unknown outcome had taken. All of it
// counts as used; a scan finds what is free.
func (m *memory) unsure(tx *Tx) {
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.item.chunk != nil {
			m.used(o.item, true)
		}
		if o.slot.chunk != nil {
			m.usedSlot(o.slot, true)
		}
		o.item, o.slot = item{}, slot{}
	}
}

// nextUse returns the pointer of the buffer's use after p: the same unit, with
// the next tag.
func (m *memory) nextUse(p Pointer) Pointer {
	return m.w.pointer(p.class(), m.w.tag(p)+1, m.w.unit(p))
}

// takeSlot takes metadata for a new object, on the home node if there is some,
// and else on another node. The error wraps client.ErrFull.
func (m *memory) takeSlot(home int) (s slot, err error) {
	m.grows = true
	var ok bool
	if s, ok = m.metas[home].popSlot(); ok {
		return s, nil
	}
	ok, err = m.everywhere(len(m.w.Sizes), home, func(n int, e effort) (ok bool, err error) {
		s, ok, err = m.takeSlotOn(n, e)
		return ok, err
	})
	if err == nil && !ok {
		err = fmt.Errorf("no room for one more of %d objects a node: %w", m.w.Objects, client.ErrFull)
	}
	return s, err
}

// takeSlotOn takes metadata on node n. Waiting or reshaping does not help here:
// metadata has no quarantine, and one size.
func (m *memory) takeSlotOn(n int, e effort) (s slot, ok bool, err error) {
	h := &m.metas[n]
	if s, ok = h.popSlot(); ok || e == tryListed || e > tryOthers {
		return s, ok, nil
	}
	if err := m.refill(h, &m.w.metas, metaClass, n, e); err != nil {
		return slot{}, false, err
	}
	s, ok = h.popSlot()
	return s, ok, nil
}

// popSlot takes the slot that was listed last, of a chunk that the worker still
// has.
func (h *heap) popSlot() (slot, bool) {
	for len(h.slots) > 0 {
		s := h.slots[len(h.slots)-1]
		h.slots = h.slots[:len(h.slots)-1]
		if !s.chunk.Gone {
			s.chunk.Take(s.i)
			return s, true
		}
	}
	return slot{}, false
}

// usedSlot notes what became of metadata that a transaction had taken. Metadata
// that is not as it was seen waits for a scan.
func (m *memory) usedSlot(s slot, created bool) {
	s.chunk.Release(s.i)
	if !created && !s.stale && !s.chunk.Gone {
		m.pushSlot(s)
	}
}

// pushSlot lists free metadata.
func (m *memory) pushSlot(s slot) {
	s.chunk.List(s.i)
	h := &m.metas[s.chunk.Node]
	h.slots = append(h.slots, s)
}
