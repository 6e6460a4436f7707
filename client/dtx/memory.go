package dtx

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out in chunks, as in package rtx. The word of a chunk in the
// table names the client that uses the chunk, and for good the size of its
// objects. Only that client makes objects there. A place is free when its head
// says that nothing is there. So a crash leaves nothing half done here, and
// recovery takes only the word from a dead client.
//
// An object may be made at once where another one was freed: a READ that is late
// finds another version or life.

// chunk is a chunk that the worker has: the word in the table names it, unless
// gone.
type chunk struct {
	chunks.Chunk
	// slots has the state of each place.
	slots []slotState
	// listed counts the places that are in the worker's list.
	listed int
	// taken counts the places that the running transaction has. A chunk is not
	// given back while it has one.
	taken int
	// gone: the chunk was given back. Lists may still name its places, and the
	// worker must not use them.
	gone bool
}

// slotState is what the worker knows of a place.
type slotState uint8

const (
	// slotUsed: there may be an object. Only a scan can tell.
	slotUsed slotState = iota
	// slotListed: it is free, and in a list of the worker.
	slotListed
	// slotTaken: the running transaction has it.
	slotTaken
)

// slot is a place without an object.
type slot struct {
	chunk *chunk
	i     int
	place Ref
	// seen is the lock as it was seen last: what the CAS of a commit expects.
	seen Version
	// stale: the lock is not as it was seen. The place is not listed again until
	// a scan has read it.
	stale bool
}

// heap is what a worker has of one size on one node.
type heap struct {
	chunks []*chunk
	// next is the index in chunks of the chunk that was scanned last.
	next int
	// empty: the node has no chunk left that was never used.
	empty bool
	slots []slot
}

// memory is what a worker has of the pool's memory, and knows about it.
type memory struct {
	w *Worker
	// table claims and frees chunks.
	table chunks.Client
	// turn is the node of the next new object, modulo the number of nodes.
	turn int
	// heaps has those of places, by node and class.
	heaps []heap
	// held finds a chunk by the address of its word in the table.
	held map[rdma.Addr]*chunk
	// full says when a look everywhere found no place, by class; 0: it never
	// happened, or an object was freed since.
	full []time.Duration
	// look has the places that a scan looks at. It is here to be used again.
	look []slot
}

const (
	// keepChunks is how many chunks of a size a client keeps on a node though it
	// uses little of them.
	keepChunks = 4
	// enough: a scan has found enough when it has found one in so many places of
	// a chunk. Else the worker looks for another chunk.
	enough = 8
	// claimAtOnce bounds the chunks that are claimed in a trip.
	claimAtOnce = 8
	// mostLooks is how often a worker looks everywhere for a place.
	mostLooks = 3
	// fullFor is for how long a worker that has looked everywhere does not do so again.
	fullFor = 8 * time.Millisecond
	// scanAtOnce is how many places are looked at in a trip.
	scanAtOnce = 128
)

// open forgets what the worker had. The chunks' words in the pool stay as they
// are.
func (m *memory) open(w *Worker) {
	*m = memory{
		w: w, turn: int(w.id), held: map[rdma.Addr]*chunk{}, full: make([]time.Duration, len(w.Sizes)),
		heaps: make([]heap, w.Nodes*len(w.Sizes)),
		table: chunks.Client{
			Endpoint: w.ep, ID: w.id, Do: w.trips.Do, Drop: w.trips.Drop,
			Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk, Free: stepFreeChunk},
		},
	}
}

// heap returns what the worker has of a class on a node.
func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// take takes a place of a class, on the home node if there is one, or else on
// another; and if there is none, a larger one, as chunks keep their sizes. It
// looks again after a pause, since other clients may have what is free for a
// moment only.
//
// After a look that found nothing, such looks only scan the worker's own chunks
// for as long as fullFor. Otherwise the looks of many workers at a full pool
// would take up all of their time. The error wraps client.ErrFull.
func (m *memory) take(class, home int) (slot, error) {
	now := m.w.ep.Now()
	lately := m.full[class] > 0 && now >= m.full[class] && now-m.full[class] < fullFor
	for looks := 0; looks == 0 || looks < mostLooks && !lately; looks++ {
		if looks > 0 {
			m.w.ep.Sleep(fullFor / 8)
		}
		for larger := class; larger < len(m.w.Sizes); larger++ {
			for k := range m.w.Nodes {
				s, ok, err := m.takeOn(larger, (home+k)%m.w.Nodes, lately)
				if err != nil || ok {
					return s, err
				}
			}
		}
	}
	if !lately {
		m.full[class] = max(m.w.ep.Now(), 1)
	}
	return slot{}, fmt.Errorf("no room for an object of %d bytes: %w", m.w.Sizes[class], client.ErrFull)
}

// takeOn takes a place on node n. own: only of chunks that the worker has.
func (m *memory) takeOn(class, n int, own bool) (slot, bool, error) {
	h := m.heap(n, class)
	if s, ok := h.pop(); ok {
		return s, true, nil
	}
	if err := m.refill(h, class, n, own); err != nil {
		return slot{}, false, err
	}
	s, ok := h.pop()
	return s, ok, nil
}

// pop takes the place that was listed last, of a chunk that the worker still has.
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

// used notes what became of a place that a transaction had taken. A place that is
// not as it was seen waits for a scan.
func (m *memory) used(s slot, created bool) {
	s.chunk.taken--
	s.chunk.slots[s.i] = slotUsed
	if !created && !s.stale && !s.chunk.gone {
		m.push(s)
	}
}

// freed notes that the worker has freed an object, so the pool is not full now.
// If the chunk is another client's, that client finds the place by a scan. v is
// the version that the object has now.
func (m *memory) freed(r Ref, v Version) {
	clear(m.full[:r.class()+1])
	n, index, i := m.w.chunkOf(r)
	if c := m.held[m.w.chunks.Word(n, index)]; c != nil && c.slots[i] == slotUsed {
		m.push(slot{chunk: c, i: i, place: r.place(), seen: v})
	}
}

// push lists a free place.
func (m *memory) push(s slot) {
	h := m.heap(s.chunk.Node, s.place.class())
	s.chunk.slots[s.i] = slotListed
	s.chunk.listed++
	h.slots = append(h.slots, s)
}

// refill looks for free places: in the worker's own chunks, and if these have
// few, in others. Before it claims chunks it gives back those in which it has few
// places, for other clients to find what becomes free there.
func (m *memory) refill(h *heap, class, n int, own bool) error {
	for range len(h.chunks) {
		h.next = (h.next + 1) % len(h.chunks)
		c := h.chunks[h.next]
		found, err := m.scan([]*chunk{c})
		if err != nil || found*enough >= len(c.slots) {
			return err
		}
	}
	if own {
		return nil
	}
	keep := keepChunks
	// The node has no unused chunks, so what other clients find in the worker's
	// chunks matters now.
	if h.empty {
		keep = 1
	}
	if err := m.giveBack(h, keep-1); err != nil {
		return err
	}
	if len(h.chunks) < m.share() || !slices.ContainsFunc(h.chunks, func(c *chunk) bool { return c.listed > 0 }) {
		return m.claim(h, class, n)
	}
	return nil
}

// share is how many chunks of a size a worker takes on a node while it has places
// there. All workers together leave half of the pool.
func (m *memory) share() int { return max(keepChunks, int(m.w.chunks.Count)/(2*m.w.Clients)) }

// giveBack gives back chunks in which the worker has so few places that other
// clients may find more: the first ones first. It keeps so many chunks at least.
func (m *memory) giveBack(h *heap, keep int) error {
	surplus := len(h.chunks) - keep
	return m.leave(h, func(_ int, c *chunk) bool {
		if surplus <= 0 || c.taken > 0 || c.listed*enough >= len(c.slots) {
			return false
		}
		surplus--
		return true
	})
}

// leave gives back the chunks of a heap for which f returns true. The worker does
// not use them from here on, whatever becomes of the CASes: a CAS that fails may
// land yet.
func (m *memory) leave(h *heap, f func(i int, c *chunk) bool) error {
	var left []chunks.Chunk
	kept := h.chunks[:0]
	for i, c := range h.chunks {
		if !f(i, c) {
			kept = append(kept, c)
			continue
		}
		c.gone = true
		delete(m.held, m.w.chunks.Word(c.Node, c.Index))
		left = append(left, c.Chunk)
	}
	clear(h.chunks[len(kept):])
	h.chunks, h.next = kept, 0
	return m.table.Free(&m.w.chunks, left)
}

// claim takes chunks of a node for a heap: one that was never used, or else some
// that clients have given back, or lost, in which a scan finds something. If
// there is none it takes none, without an error.
func (m *memory) claim(h *heap, class, n int) error {
	if !h.empty {
		fresh, err := m.claimFresh(h, class, n)
		if err != nil || fresh {
			return err
		}
		h.empty = true
	}
	found := 0
	skip := func(c chunks.Chunk) bool { return c.Entry.Class() != class }
	return m.table.Left(&m.w.chunks, n, claimAtOnce, skip, func(some []chunks.Chunk) (bool, error) {
		here, err := m.claimLeft(h, some, found)
		found += here
		return found*enough >= m.w.perChunk(class) || len(some) == claimAtOnce && found > 0, err
	})
}

// claimLeft takes chunks that clients have given back, and scans them. It keeps
// those in which it finds something, until that is enough together with what was
// found before, and no more than the worker's share. The rest it gives back.
func (m *memory) claimLeft(h *heap, some []chunks.Chunk, before int) (found int, err error) {
	got, err := m.table.Claim(&m.w.chunks, some)
	if err != nil {
		return 0, err
	}
	had := len(h.chunks)
	for _, c := range got {
		m.add(h, c)
	}
	if _, err := m.scan(h.chunks[had:]); err != nil {
		return 0, err
	}
	most := max(m.share(), had+1)
	kept := had
	return found, m.leave(h, func(i int, c *chunk) bool {
		if i < had {
			return false
		}
		if c.listed == 0 || kept == most || (before+found)*enough >= len(c.slots) {
			return true
		}
		found, kept = found+c.listed, kept+1
		return false
	})
}

// claimFresh asks the node for a chunk that was never used, from behind the one
// that it got last. All of its places are free.
func (m *memory) claimFresh(h *heap, class, n int) (bool, error) {
	a, behind := &m.w.chunks, uint64(0)
	if len(h.chunks) > 0 {
		behind = uint64(h.chunks[len(h.chunks)-1].Index) + 1
	}
	got, ok, err := m.table.Fresh(a, n, class, int(a.Count), behind, m.w.trips.Left())
	if err != nil || !ok {
		return false, err
	}
	c := m.add(h, got)
	for i := range c.slots {
		m.push(slot{chunk: c, i: i, place: m.w.placeOf(n, c.Index, class, i)})
	}
	return true, nil
}

// add notes that the worker has a chunk.
func (m *memory) add(h *heap, got chunks.Chunk) *chunk {
	c := &chunk{Chunk: got, slots: make([]slotState, m.w.perChunk(got.Entry.Class()))}
	h.chunks = append(h.chunks, c)
	m.held[m.w.chunks.Word(c.Node, c.Index)] = c
	m.w.stats.Claims++
	return c
}

// scan lists what is free in chunks of the worker's, and returns how much it
// found. What is free stays so, since only the worker makes objects there.
func (m *memory) scan(some []*chunk) (found int, err error) {
	m.look = m.look[:0]
	for _, c := range some {
		m.w.stats.Scans++
		for i, state := range c.slots {
			if state == slotUsed {
				m.look = append(m.look, slot{chunk: c, i: i, place: m.w.placeOf(c.Node, c.Index, c.Entry.Class(), i)})
			}
		}
	}
	for look := range slices.Chunk(m.look, scanAtOnce) {
		n, err := m.scanSome(look)
		if found += n; err != nil {
			return found, fmt.Errorf("scan %d chunks of node %d: %w", len(some), some[0].Node, err)
		}
	}
	return found, nil
}

// scanSome looks at the heads of some places. Lock and head may be of two
// moments. Then the lock that was seen is not the one that a commit finds: its
// CAS fails, and the place is looked at again.
func (m *memory) scanSome(look []slot) (found int, err error) {
	w := m.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i := range look {
		at, _ := w.Object(look[i].place)
		b.Read(at, headBytes)
	}
	if err := w.trips.Do(stepScanChunk, b); err != nil {
		return 0, err
	}
	for i := range look {
		op, s := b.Op(i), &look[i]
		if head, _ := decodeHead(op.Buf); head.there {
			continue
		}
		if s.seen = Version(op.Word(0)); s.seen.Held() {
			freed, err := w.freeSlot(op.Addr, s)
			if err != nil {
				return found, err
			}
			if !freed {
				continue
			}
		}
		m.push(*s)
		found++
	}
	return found, nil
}

// freeSlot releases the lock of a place without an object, if its transaction is
// over: no other client may ever meet it. The head is READ once more after that,
// since the transaction may have made an object.
func (w *Worker) freeSlot(at rdma.Addr, s *slot) (bool, error) {
	if c := s.seen.owner(); c == 0 || int(c) > w.Clients {
		return false, fmt.Errorf("the place at %v is locked by client %d of 1 to %d: %w", at, c, w.Clients,
			client.ErrDamaged)
	}
	v, ended, err := w.look(at, s.seen.owner())
	if err != nil || v != s.seen || ended < v.sequence() {
		return false, err
	}
	if err := w.free(at, v); err != nil {
		return false, err
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := b.Read(at, headBytes)
	if err := w.trips.Do(stepScanChunk, b); err != nil {
		return false, err
	}
	head, _ := decodeHead(op.Buf)
	s.seen = Version(op.Word(0))
	return !head.there && !s.seen.Held(), nil
}
