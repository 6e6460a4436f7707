package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk, as in package rtx. A chunk's word in its table names the client that uses it, and for
// good which size its objects have. Only that client makes objects there; a place is free when its head says that nothing
// is there. So there is nothing that a crash could leave half done, and the word is all that has to be taken from a dead
// client.

// chunk is one that the worker has.
type chunk struct {
	node, index int
	entry       node.Entry
	slots       []slotState // by place
	listed      int         // of them those in the worker's list
	taken       int         // and in its transaction
	gone        bool        // it was given back; lists may still name it
}

// slotState is what the worker knows of a place.
type slotState uint8

const (
	slotUsed   slotState = iota // as far as it knows
	slotListed                  // in a list
	slotTaken                   // by the transaction that runs
)

// slot is a place without an object.
type slot struct {
	chunk *chunk
	i     int
	place Ref
	seen  Version
	stale bool // it is not as it was seen
}

// heap is what a worker has of one size on one node.
type heap struct {
	chunks []*chunk
	empty  bool // there is no chunk that was never used
	slots  []slot
}

// memory is what a worker has.
type memory struct {
	w     *Worker
	turn  int                  // node of the next object
	heaps []heap               // by node and class
	held  map[rdma.Addr]*chunk // by address of the word in the table
	late  bool                 // a node may hand a chunk out yet, and nothing can wait for that
}

const (
	// keepChunks is how many chunks of a size a client keeps on a node of which it uses little.
	keepChunks = 4
	// enough is the share of a chunk that a scan has to find for no other chunk to be looked for: one of so many.
	enough = 8
	// mostTried is how many chunks are looked at for one in which there is enough, before a few places will do.
	mostTried = 8
	// scanAtOnce is how many places are looked at in a trip.
	scanAtOnce = 128
	// tableAtOnce is how many words of a table are read in a trip.
	tableAtOnce = 1 << 12
)

func (m *memory) open(w *Worker) {
	*m = memory{w: w, turn: int(w.id), heaps: make([]heap, w.Nodes*len(w.Sizes)), held: map[rdma.Addr]*chunk{}}
}

// take takes a place of a class, on a node if there is one, or else on another; and where there is none a larger one,
// as chunks keep their sizes. The error wraps client.ErrFull.
func (m *memory) take(class, home int) (slot, error) {
	for larger := class; larger < len(m.w.Sizes); larger++ {
		for k := range m.w.Nodes {
			s, ok, err := m.takeOn(larger, (home+k)%m.w.Nodes)
			if err != nil || ok {
				return s, err
			}
		}
	}
	return slot{}, fmt.Errorf("no room for an object of %d bytes: %w", m.w.Sizes[class], client.ErrFull)
}

func (m *memory) takeOn(class, n int) (slot, bool, error) {
	h := &m.heaps[n*len(m.w.Sizes)+class]
	if s, ok := h.pop(); ok {
		return s, true, nil
	}
	if err := m.refill(h, class, n); err != nil {
		return slot{}, false, err
	}
	s, ok := h.pop()
	return s, ok, nil
}

// pop takes the last place that was listed of a chunk that the worker still has.
func (h *heap) pop() (slot, bool) {
	for len(h.slots) > 0 {
		s := h.slots[len(h.slots)-1]
		h.slots = h.slots[:len(h.slots)-1]
		if !s.chunk.gone {
			s.chunk.listed--
			s.chunk.taken++
			s.chunk.slots[s.i] = slotTaken
			return s, true
		}
	}
	return slot{}, false
}

// used notes what became of a place that a transaction had taken.
func (m *memory) used(s slot, created bool) {
	s.chunk.taken--
	s.chunk.slots[s.i] = slotUsed
	if !created && !s.stale && !s.chunk.gone {
		m.push(s)
	}
}

// freed notes that the worker has freed an object. Of another client's chunk that client finds out.
func (m *memory) freed(r Ref, v Version) {
	n, index, i := m.w.chunkOf(r)
	if c := m.held[m.w.entryAt(n, index)]; c != nil && c.slots[i] == slotUsed {
		m.push(slot{chunk: c, i: i, place: r.place(), seen: v})
	}
}

func (m *memory) push(s slot) {
	h := &m.heaps[s.chunk.node*len(m.w.Sizes)+s.place.class()]
	s.chunk.slots[s.i] = slotListed
	s.chunk.listed++
	h.slots = append(h.slots, s)
}

// refill looks for free places: in the worker's own chunks, and where these have few, in another one.
func (m *memory) refill(h *heap, class, n int) error {
	for _, c := range h.chunks {
		found, err := m.scan(c)
		if err != nil || found*enough >= len(c.slots) {
			return err
		}
	}
	if len(h.chunks) >= keepChunks {
		if err := m.giveBack(h, enough); err != nil {
			return err
		}
	}
	return m.claim(h, class, n)
}

// claim takes a chunk of a node: one that was never used, or else one that its client has given back, or lost, in which
// a scan finds something. Where there is none it takes none.
func (m *memory) claim(h *heap, class, n int) error {
	fresh, err := m.claimFresh(h, class, n)
	if err != nil || fresh {
		return err
	}
	windows := up(m.w.chunks, tableAtOnce)
	from, tried, found := m.w.ep.Rand().IntN(windows), 0, 0 // so that clients do not all look at the same ones
	for k := range windows {
		first := (from + k) % windows * tableAtOnce
		entries, err := m.w.readEntries(n, first)
		if err != nil {
			return err
		}
		offset := m.w.ep.Rand().IntN(len(entries))
		for i := range entries {
			i := (offset + i) % len(entries)
			if e := entries[i]; e.Owner() != node.Left || e.Class() != class {
				continue
			}
			here, err := m.claimLeft(h, n, first+i, entries[i])
			if err != nil {
				return err
			}
			tried, found = tried+1, found+here
			if here*enough >= m.w.perChunk(class) || tried >= mostTried && found > 0 {
				return nil
			}
		}
	}
	return nil
}

// claimFresh asks the node for a chunk that was never used, from behind the one that it got last.
func (m *memory) claimFresh(h *heap, class, n int) (bool, error) {
	if h.empty {
		return false, nil
	}
	r := rdma.Request{Step: stepClaimChunk, Proc: node.ProcAlloc}
	r.Arg = [6]uint64{m.w.table, uint64(m.w.chunks), m.w.first, uint64(m.w.Chunk), uint64(class), h.behind() | node.Uncounted}
	err := m.w.ep.Call(n, &r, max(m.w.left(), 1))
	if errors.Is(err, client.ErrFull) {
		h.empty = true
		return false, nil
	}
	if err != nil {
		m.late = m.late || !errors.Is(err, rdma.ErrNoEffect)
		return false, fmt.Errorf("ask node %d for a chunk: %w", n, err)
	}
	c := m.add(h, n, int(r.Ret[0]), node.Entry(r.Ret[1]))
	for i := range c.slots {
		m.push(slot{chunk: c, i: i, place: m.w.placeOf(n, c.index, class, i)})
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

// claimLeft takes a chunk that its client has given back, and keeps it if a scan finds something.
func (m *memory) claimLeft(h *heap, n, i int, e node.Entry) (found int, err error) {
	mine := e.Next(m.w.id, e.Class())
	_, ok, err := m.w.swap(stepClaimChunk, m.w.entryAt(n, i), uint64(e), uint64(mine))
	if err != nil {
		return 0, fmt.Errorf("claim chunk %d of node %d: %w", i, n, err)
	}
	if !ok {
		return 0, nil
	}
	c := m.add(h, n, i, mine)
	if found, err = m.scan(c); err != nil || found > 0 {
		return found, err
	}
	return 0, m.giveBack(h, len(c.slots)+1) // this one, or another in which nothing is free
}

func (m *memory) add(h *heap, n, index int, e node.Entry) *chunk {
	c := &chunk{node: n, index: index, entry: e, slots: make([]slotState, m.w.perChunk(e.Class()))}
	h.chunks = append(h.chunks, c)
	m.held[m.w.entryAt(n, index)] = c
	m.w.stats.Claims++
	return c
}

// scan lists what is free in a chunk of the worker's. What it finds so stays so: only the worker makes objects there.
func (m *memory) scan(c *chunk) (found int, err error) {
	m.w.stats.Scans++
	for from := 0; from < len(c.slots); from += scanAtOnce {
		n, err := m.scanSome(c, from, min(from+scanAtOnce, len(c.slots)))
		if err != nil {
			return found, fmt.Errorf("scan chunk %d of node %d: %w", c.index, c.node, err)
		}
		found += n
	}
	return found, nil
}

// scanSome looks at the heads of some places. Lock and head may be of two moments: then the lock that was seen is not the
// one that a commit finds, and the place is looked at again.
func (m *memory) scanSome(c *chunk, from, to int) (found int, err error) {
	w, class := m.w, c.entry.Class()
	b := w.ep.Batch()
	defer w.drop(b)
	for i := from; i < to; i++ {
		if c.slots[i] == slotUsed {
			at, _ := w.Object(w.placeOf(c.node, c.index, class, i))
			b.Read(at, headBytes)
		}
	}
	if err := w.do(stepScanChunk, b); err != nil {
		return 0, err
	}
	read := 0
	for i := from; i < to; i++ {
		if c.slots[i] != slotUsed {
			continue
		}
		op := b.Op(read)
		read++
		s := slot{chunk: c, i: i, place: w.placeOf(c.node, c.index, class, i), seen: Version(op.Word(0))}
		if head, _ := decodeHead(op.Buf); head.there {
			continue
		}
		if s.seen.Held() {
			freed, err := w.freeSlot(op.Addr, &s)
			if err != nil {
				return found, err
			}
			if !freed {
				continue
			}
		}
		m.push(s)
		found++
	}
	return found, nil
}

// freeSlot releases the lock of a place without an object, if its transaction is over: no other client may ever meet it.
func (w *Worker) freeSlot(at rdma.Addr, s *slot) (bool, error) {
	if c := s.seen.owner(); c == 0 || int(c) > w.Clients {
		return false, fmt.Errorf("the place at %v is locked by client %d of 1 to %d: %w", at, c, w.Clients, client.ErrDamaged)
	}
	v, ended, err := w.look(at, s.seen.owner())
	if err != nil || v != s.seen || ended < v.sequence() {
		return false, err
	}
	if err := w.free(at, v); err != nil {
		return false, err
	}
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.Read(at, headBytes)
	if err := w.do(stepScanChunk, b); err != nil {
		return false, err
	}
	head, _ := decodeHead(op.Buf)
	s.seen = Version(op.Word(0))
	return !head.there && !s.seen.Held(), nil
}

// readEntries reads the words of chunks of a node from one on, as many as one trip brings.
func (w *Worker) readEntries(n, from int) (entries []node.Entry, err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.Read(w.entryAt(n, from), 8*min(tableAtOnce, w.chunks-from))
	if err := w.do(stepReadTable, b); err != nil {
		return nil, fmt.Errorf("read the table of node %d: %w", n, err)
	}
	for i := range len(op.Buf) / 8 {
		entries = append(entries, node.Entry(op.Word(i)))
	}
	return entries, nil
}

// giveBack gives back the chunk in which the worker has least, if that is less than one of so many parts: others find
// in it what will be free.
func (m *memory) giveBack(h *heap, parts int) error {
	least := -1
	for i, c := range h.chunks {
		if c.taken == 0 && c.listed*parts < len(c.slots) && (least < 0 || c.listed < h.chunks[least].listed) {
			least = i
		}
	}
	if least < 0 {
		return nil
	}
	c := h.chunks[least]
	c.gone = true // whatever becomes of the CAS: it may land
	delete(m.held, m.w.entryAt(c.node, c.index))
	h.chunks = append(h.chunks[:least], h.chunks[least+1:]...)
	return m.w.freeChunk(c.node, c.index, c.entry)
}

// freeChunk takes a chunk from its client.
func (w *Worker) freeChunk(n, index int, e node.Entry) error {
	left := e.Next(node.Left, e.Class())
	_, _, err := w.swap(stepFreeChunk, w.entryAt(n, index), uint64(e), uint64(left))
	if err != nil {
		return fmt.Errorf("free chunk %d of node %d: %w", index, n, err)
	}
	return nil
}
