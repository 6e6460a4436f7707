package rtx

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk. A chunk's word in its table, the allocation table, names the client that uses it,
// and which size its buffers have. Only that client takes buffers and metadata of the chunk; none is freed: a
// buffer is free when the object that its header names does not name it, metadata when its pointer says so (section
// 4.4: "the fix scans all entries and determines whether the data is used"). So there is nothing that a crash could
// leave half done, and the word is all that has to be taken from a dead client.
//
// A client scans its chunks when it has nothing left, and takes others where that does not find
// enough. What it replaces itself, in chunks of its own, it knows without: these lists are the
// paper's reclamation table, and are lost with their client without harm.

// chunk is one that the worker has.
type chunk struct {
	chunks.Chunk
	a       *chunks.Arena
	items   []itemState // by place
	listed  int         // of them those in a list of the worker
	kept    int         // and of these those that no new object takes
	taken   int         // and in its transaction
	scanned time.Duration
	gone    bool // it was given back; lists may still name it
}

// itemState is what the worker knows of a buffer, or of an object's metadata.
type itemState uint8

const (
	itemUsed   itemState = iota // as far as it knows
	itemListed                  // in a list
	itemTaken                   // by the transaction that runs
)

// item is a buffer, and the pointer by which its next use is named.
type item struct {
	chunk *chunk
	i     int
	use   Pointer
	ready time.Duration // until when it is in quarantine
}

// slot is metadata without an object.
type slot struct {
	chunk  *chunk
	i      int
	number uint64
	seen   Meta
	stale  bool // it is not as it was seen
}

// heap is what a worker has of one size on one node, or of metadata.
type heap struct {
	chunks []*chunk
	next   int  // chunk that is scanned next
	empty  bool // there is no chunk that was never used, for new objects

	fresh []item // never used
	aged  []item // in the order in which their quarantine ends
	first int    // of aged
	kept  []item // of spared chunks, for objects that are replaced
	slots []slot
}

// memory is what a worker has.
type memory struct {
	w     *Worker
	table chunks.Client
	turn  int                  // node of the next object
	heaps []heap               // by node and class
	metas []heap               // by node
	held  map[rdma.Addr]*chunk // by address of the word in the table
	grows bool                 // what is taken now is for a new object
	full  []time.Duration      // by class, and of metadata: when no look found any for a new object; 0: never
	look  []place              // at buffers, in freeBuffers
}

const (
	// keepChunks is how many chunks of a size a client keeps on a node of which it uses little.
	keepChunks = 4
	// enough is the share of a chunk that a scan has to find for no other chunk to be looked for: one
	// of so many.
	enough = 8
	// claimAtOnce is how many chunks are claimed in a trip, at most.
	claimAtOnce = 8
	// mostLooks is how often a worker looks everywhere for a buffer.
	mostLooks = 3
	// mostNaps bounds the sleeps for one buffer: a clock may run slow.
	mostNaps = 4
	// scanAtOnce is how many buffers are looked at in a trip.
	scanAtOnce = 128
)

func (m *memory) open(w *Worker) {
	*m = memory{
		w: w, turn: int(w.id), held: map[rdma.Addr]*chunk{}, full: make([]time.Duration, len(w.Sizes)+1),
		heaps: make([]heap, w.Nodes*len(w.Sizes)), metas: make([]heap, w.Nodes),
		table: chunks.Client{
			Endpoint: w.ep, ID: w.id, Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk,
				Free: stepFreeChunk},
			Do: w.do, Drop: w.drop,
		},
	}
}

func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// effort is what a worker does to find an item.
type effort uint8

const (
	tryOwn      effort = iota // it scans chunks that it has
	tryOthers                 // and claims others
	tryResting                // and waits for a quarantine to end
	tryReshaped               // and gives an empty chunk another size
)

// everywhere has f look for an item of a class on all nodes, from home on, with more effort each
// time. It looks again behind a pause, since others may have had for a moment what is free. For a
// while behind a look that found none for a new object no other such look does more than to scan
// the worker's own chunks: looks of many workers at a full pool would take up all of their time.
func (m *memory) everywhere(class, home int, f func(n int, e effort) (found bool, err error)) (bool, error) {
	efforts := []effort{tryOthers, tryResting, tryReshaped}
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

// take takes a buffer of a class, on a node if there is one, or else on another. A new object does
// not get what is kept for others. The error wraps client.ErrFull.
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

func (m *memory) takeOn(class, n int, e effort) (it item, ok bool, err error) {
	h := m.heap(n, class)
	if e == tryReshaped {
		if ok, err = m.reshapeOne(class, n); err != nil || !ok {
			return it, false, err
		}
	}
	if it, ok = m.pop(h); ok {
		return it, true, nil
	}
	if e < tryResting || h.first == len(h.aged) {
		if err := m.refill(h, &m.w.data, class, n, e); err != nil {
			return item{}, false, err
		}
	}
	if it, ok = m.pop(h); ok || e < tryResting {
		return it, ok, nil
	}
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

// resting reports whether a buffer is in quarantine.
func (m *memory) resting(it item) bool {
	now := m.w.ep.Now()
	return it.ready > now && it.ready <= now+m.w.opt.Quarantine // else the clock was set back
}

// pop takes the first buffer of a list whose quarantine is over.
func (m *memory) pop(h *heap) (item, bool) {
	for h.first < len(h.aged) {
		it := h.aged[h.first]
		if !it.chunk.gone && m.resting(it) {
			break
		}
		h.aged[h.first] = item{}
		h.first++
		if !it.chunk.gone {
			return it.taken(), true
		}
	}
	if h.first == len(h.aged) {
		h.aged, h.first = h.aged[:0], 0
	}
	for len(h.fresh) > 0 {
		it := h.fresh[len(h.fresh)-1]
		h.fresh = h.fresh[:len(h.fresh)-1]
		if !it.chunk.gone {
			return it.taken(), true
		}
	}
	if m.grows {
		return item{}, false
	}
	return m.popKept(h)
}

// popKept takes a buffer of those that are kept for objects that are replaced.
func (m *memory) popKept(h *heap) (item, bool) {
	h.kept = slices.DeleteFunc(h.kept, func(it item) bool { return it.chunk.gone })
	for i, it := range h.kept {
		if !m.resting(it) {
			h.kept = slices.Delete(h.kept, i, i+1)
			it.chunk.kept--
			return it.taken(), true
		}
	}
	return item{}, false
}

func (it item) taken() item {
	it.chunk.listed--
	it.chunk.taken++
	it.chunk.items[it.i] = itemTaken
	return it
}

// spared reports whether a chunk is one of those that are for objects that are replaced.
func (m *memory) spared(a *chunks.Arena, index int) bool {
	return a == &m.w.data && index >= int(a.Count)-m.w.Spare
}

// push adds a buffer to the list of those in quarantine.
func (m *memory) push(it item) {
	h := m.heap(it.chunk.Node, it.use.class())
	if m.spared(it.chunk.a, it.chunk.Index) {
		it.ready = m.w.ep.Now() + m.w.opt.Quarantine
		h.keep(it)
		return
	}
	if h.first > 64 && 2*h.first > len(h.aged) {
		h.aged, h.first = h.aged[:copy(h.aged, h.aged[h.first:])], 0
	}
	it.ready = m.w.ep.Now() + m.w.opt.Quarantine
	it.chunk.items[it.i] = itemListed
	it.chunk.listed++
	h.aged = append(h.aged, it)
}

// keep adds a buffer to those that no new object takes.
func (h *heap) keep(it item) {
	it.chunk.items[it.i] = itemListed
	it.chunk.listed++
	it.chunk.kept++
	h.kept = append(h.kept, it)
}

// used notes what became of a buffer that a transaction had taken. One that was not installed may
// bear the pointer of this use, so its next use has another.
func (m *memory) used(it item, installed bool) {
	it.chunk.taken--
	it.chunk.items[it.i] = itemUsed
	if !installed && !it.chunk.gone {
		it.use = m.nextUse(it.use)
		m.push(it)
	}
}

// replaced notes that no object names a buffer any more. Of another client's chunk that client
// finds out.
func (m *memory) replaced(p Pointer) {
	n, index, i := m.w.chunkOf(p)
	c := m.held[m.w.data.Word(n, index)]
	if c != nil && c.items[i] == itemUsed {
		m.push(item{chunk: c, i: i, use: m.nextUse(p)})
	}
}

// freed notes that the worker has freed an object, whosever chunks it lies in: the pool is not full
// now.
func (m *memory) freed(p Pointer) {
	m.full[len(m.w.Sizes)] = 0
	if !m.w.Absent(p) {
		m.full[p.class()] = 0
	}
}

// unsure notes that it is not known what became of a transaction. What it had taken a scan finds,
// if it is free.
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

// nextUse returns the pointer of a buffer's use behind p.
func (m *memory) nextUse(p Pointer) Pointer {
	return m.w.pointer(p.class(), m.w.tag(p)+1, m.w.unit(p))
}

// takeSlot takes metadata for an object, on a node if there is some, or else on another. The error
// wraps client.ErrFull.
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

func (m *memory) takeSlotOn(n int, e effort) (s slot, ok bool, err error) {
	h := &m.metas[n]
	if s, ok = h.popSlot(); ok || e > tryOthers { // it has no quarantine, and one size
		return s, ok, nil
	}
	if err := m.refill(h, &m.w.metas, metaClass, n, e); err != nil {
		return slot{}, false, err
	}
	s, ok = h.popSlot()
	return s, ok, nil
}

// popSlot takes the last one that was listed of a chunk that the worker still has.
func (h *heap) popSlot() (slot, bool) {
	for len(h.slots) > 0 {
		s := h.slots[len(h.slots)-1]
		h.slots = h.slots[:len(h.slots)-1]
		if !s.chunk.gone {
			s.chunk.listed--
			s.chunk.taken++
			s.chunk.items[s.i] = itemTaken
			return s, true
		}
	}
	return slot{}, false
}

// usedSlot notes what became of metadata that a transaction had taken.
func (m *memory) usedSlot(s slot, created bool) {
	s.chunk.taken--
	s.chunk.items[s.i] = itemUsed
	if !created && !s.stale && !s.chunk.gone {
		m.pushSlot(s)
	}
}

func (m *memory) pushSlot(s slot) {
	s.chunk.items[s.i] = itemListed
	s.chunk.listed++
	h := &m.metas[s.chunk.Node]
	h.slots = append(h.slots, s)
}
