package rtx

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk. A chunk's word in its table, the allocation table, names the client that uses it,
// and which size its buffers have. Only that client takes buffers and metadata of the chunk; none is freed: a
// buffer is free when the object that its header names does not name it, metadata when its pointer says so (section
// 4.4: "the fix scans all entries and determines whether the data is used"). So there is nothing that a crash could
// leave half done, and the word is all that has to be taken from a dead client.
//
// A client scans its chunks when it has nothing left, and takes another one where that does not find enough. What it
// replaces itself, in chunks of its own, it knows without: these lists are the paper's reclamation table, and are lost
// with their client without harm.

// chunk is one that the worker has.
type chunk struct {
	a           *arena
	node, index int
	entry       node.Entry
	items       []itemState // by place
	listed      int         // of them those in a list of the worker
	kept        int         // and of these those that no new object takes
	taken       int         // and in its transaction
	scanned     time.Duration
	gone        bool // it was given back; lists may still name it
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
	turn  int                  // node of the next object
	heaps []heap               // by node and class
	metas []heap               // by node
	held  map[rdma.Addr]*chunk // by address of the word in the table
	grows bool                 // what is taken now is for a new object
	late  bool                 // a node may hand a chunk out yet, and nothing can wait for that
}

const (
	// keepChunks is how many chunks of a size a client keeps on a node of which it uses little.
	keepChunks = 4
	// enough is the share of a chunk that a scan has to find for the chunk to be kept: one of so many.
	enough = 8
	// mostTried is how many chunks are looked at for one in which there is enough, before a few items will do.
	mostTried = 8
	// mostLooks is how often a worker looks everywhere for a buffer.
	mostLooks = 3
	// mostNaps bounds the sleeps for one buffer: a clock may run slow.
	mostNaps = 4
	// scanAtOnce is how many buffers are looked at in a trip.
	scanAtOnce = 128
)

func (m *memory) open(w *Worker) {
	m.w = w
	m.turn = int(w.id)
	m.heaps, m.metas = make([]heap, w.Nodes*len(w.Sizes)), make([]heap, w.Nodes)
	m.held = map[rdma.Addr]*chunk{}
}

func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// take takes a buffer of a class, on a node if there is one, or else on another. Only when all nodes are full it waits
// for a quarantine to end, and then it looks for an empty chunk of another size. It looks again behind a pause, since
// others may have had for a moment what is free. A new object does not get what is kept for others. The error wraps
// client.ErrFull.
func (m *memory) take(class, home int, grows bool) (item, error) {
	m.grows = grows
	for looks := range mostLooks {
		if looks > 0 {
			m.w.ep.Sleep(m.w.opt.Drift / 8)
		}
		for _, way := range []func(class, n int) (item, bool, error){m.takeAtOnce, m.takeLater, m.takeReshaped} {
			for k := range m.w.Nodes {
				it, ok, err := way(class, (home+k)%m.w.Nodes)
				if err != nil || ok {
					return it, err
				}
			}
		}
	}
	return item{}, fmt.Errorf("no buffer of %d bytes is free: %w", m.w.Sizes[class], client.ErrFull)
}

func (m *memory) takeAtOnce(class, n int) (item, bool, error) { return m.takeOn(class, n, false) }

func (m *memory) takeLater(class, n int) (item, bool, error) { return m.takeOn(class, n, true) }

func (m *memory) takeReshaped(class, n int) (it item, ok bool, err error) {
	if ok, err = m.reshapeOne(class, n); err != nil || !ok {
		return it, false, err
	}
	return m.takeOn(class, n, true)
}

func (m *memory) takeOn(class, n int, wait bool) (it item, ok bool, err error) {
	h := m.heap(n, class)
	if it, ok = m.pop(h); ok {
		return it, true, nil
	}
	if !wait || h.first == len(h.aged) {
		if err := m.refill(h, &m.w.data, class, n, wait); err != nil {
			return item{}, false, err
		}
	}
	if it, ok = m.pop(h); ok || !wait {
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
func (m *memory) spared(a *arena, index int) bool {
	return a == &m.w.data && index >= int(a.chunks)-m.w.Spare
}

// push adds a buffer to the list of those in quarantine.
func (m *memory) push(it item) {
	h := m.heap(it.chunk.node, it.use.class())
	if m.spared(it.chunk.a, it.chunk.index) {
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

// used notes what became of a buffer that a transaction had taken. One that was not installed may bear the pointer of
// this use, so its next use has another.
func (m *memory) used(it item, installed bool) {
	it.chunk.taken--
	it.chunk.items[it.i] = itemUsed
	if !installed && !it.chunk.gone {
		it.use = m.nextUse(it.use)
		m.push(it)
	}
}

// replaced notes that no object names a buffer any more. Of another client's chunk that client finds out.
func (m *memory) replaced(p Pointer) {
	n, index, i := m.w.chunkOf(p)
	c := m.held[m.w.data.entryAt(n, index)]
	if c != nil && c.items[i] == itemUsed {
		m.push(item{chunk: c, i: i, use: m.nextUse(p)})
	}
}

// unsure notes that it is not known what became of a transaction. What it had taken a scan finds, if it is free.
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

// takeSlot takes metadata for an object, on a node if there is some, or else on another. The error wraps
// client.ErrFull.
func (m *memory) takeSlot(home int) (slot, error) {
	m.grows = true
	for k := range m.w.Nodes {
		n := (home + k) % m.w.Nodes
		h := &m.metas[n]
		if s, ok := h.popSlot(); ok {
			return s, nil
		}
		if err := m.refill(h, &m.w.metas, metaClass, n, true); err != nil {
			return slot{}, err
		}
		if s, ok := h.popSlot(); ok {
			return s, nil
		}
	}
	return slot{}, fmt.Errorf("no room for one more of %d objects a node: %w", m.w.Objects, client.ErrFull)
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
	h := &m.metas[s.chunk.node]
	h.slots = append(h.slots, s)
}

// metaClass is the class of chunks of metadata.
const metaClass = 0

// count returns how many items a chunk of a class has.
func (m *memory) count(a *arena, class int) int {
	if a == &m.w.metas {
		return metaChunk / MetaBytes
	}
	return m.w.buffers(class)
}

// refill looks for free items: in chunks of the worker's own that it has not scanned for a quarantine, and where these
// have few, in another one. When the node has none it lists whatever there is. all: it scans its own chunks in any
// case.
func (m *memory) refill(h *heap, a *arena, class, n int, all bool) error {
	for range len(h.chunks) {
		h.next = (h.next + 1) % len(h.chunks)
		c := h.chunks[h.next]
		if now := m.w.ep.Now(); all || now-c.scanned >= m.w.opt.Quarantine || now < c.scanned {
			found, err := m.scan(c)
			if err != nil {
				return err
			}
			c.scanned = now
			if found*enough >= len(c.items) && a == &m.w.metas { // which has no quarantine
				return nil
			}
		}
	}
	keep := keepChunks
	if h.empty { // what others find in it counts now
		keep = 1
	}
	if len(h.chunks) >= keep {
		if err := m.giveBack(h, enough); err != nil {
			return err
		}
	}
	if len(h.chunks) < m.share(a) || !m.listed(h) {
		return m.claim(h, a, class, n)
	}
	return nil
}

// share is how many chunks a worker takes on a node while some of its own are in quarantine: all workers together leave
// half of the pool.
func (m *memory) share(a *arena) int { return max(keepChunks, int(a.chunks)/(2*m.w.Clients)) }

// listed reports whether any item of a heap is in a list from which it may be taken.
func (m *memory) listed(h *heap) bool {
	for _, c := range h.chunks {
		if c.listed > c.kept || c.listed > 0 && !m.grows {
			return true
		}
	}
	return false
}

// giveBack gives back the chunk in which the worker has least, if that is less than one of so many parts: others find
// in it what will be free.
func (m *memory) giveBack(h *heap, parts int) error {
	least := -1
	for i, c := range h.chunks {
		if c.taken == 0 && c.listed*parts < len(c.items) && (least < 0 || c.listed < h.chunks[least].listed) {
			least = i
		}
	}
	if least < 0 {
		return nil
	}
	return m.leave(h, least)
}

// leave gives a chunk back.
func (m *memory) leave(h *heap, i int) error {
	c := h.chunks[i]
	c.gone = true // whatever becomes of the CAS: it may land
	delete(m.held, c.a.entryAt(c.node, c.index))
	h.chunks = append(h.chunks[:i], h.chunks[i+1:]...)
	h.next = 0
	return m.w.freeChunk(c.a, c.node, c.index, c.entry)
}

// freeChunk takes a chunk from its client.
func (w *Worker) freeChunk(a *arena, n, index int, e node.Entry) error {
	left := e.Next(node.Left, e.Class())
	_, _, err := w.swap(stepFreeChunk, a.entryAt(n, index), uint64(e), uint64(left))
	if err != nil {
		return fmt.Errorf("free chunk %d of node %d: %w", index, n, err)
	}
	return nil
}
