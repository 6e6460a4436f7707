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

// slot is a place without an object.
type slot struct {
	chunk *chunks.Held
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
	chunks.Heap
	slots []slot
}

// memory is what a worker has of the pool's memory, and knows about it.
type memory struct {
	w *Worker
	// table claims and frees chunks, and has those that the worker has.
	table chunks.Holdings
	// turn is the node of the next new object, modulo the number of nodes.
	turn int
	// heaps has those of places, by node and class.
	heaps []heap
	// full says when a look everywhere found no place, by class; 0: it never
	// happened, or an object was freed since.
	full []time.Duration
	// look has the places that a scan looks at. It is here to be used again.
	look []slot
}

const (
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
		w: w, turn: int(w.id), full: make([]time.Duration, len(w.Sizes)),
		heaps: make([]heap, w.Nodes*len(w.Sizes)),
	}
	m.table = chunks.Holdings{
		Client: chunks.Client{
			Endpoint: w.ep, ID: w.id, Do: w.trips.Do, Drop: w.trips.Drop,
			Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk, Free: stepFreeChunk},
		},
		Nodes: w.Nodes, Clients: w.Clients, Claims: &w.stats.Claims, Scan: m.scan,
		Count: func(_ *chunks.Arena, class int) int { return w.perChunk(class) },
	}
}

// heap returns what the worker has of a class on a node.
func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// take takes a place of a class, on the home node if there is one, or else on
// another; and if there is none, a larger one, as chunks keep their sizes. It
// looks again after a pause, since other clients may have what is free for a
// moment only. A worker that has its share of chunks first looks at what it has on
// all nodes: a claim costs it a chunk.
//
// After a look that found nothing, such looks only scan the worker's own chunks
// for as long as fullFor. Otherwise the looks of many workers at a full pool
// would take up all of their time. The error wraps client.ErrFull.
func (m *memory) take(class, home int) (slot, error) {
	now := m.w.ep.Now()
	lately := m.full[class] > 0 && now >= m.full[class] && now-m.full[class] < fullFor
	for k := 0; k < m.w.Nodes && m.table.AtShare(&m.w.chunks); k++ {
		if s, ok := m.heap((home+k)%m.w.Nodes, class).pop(); ok {
			return s, nil
		}
	}
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
		if !s.chunk.Gone {
			s.chunk.Take(s.i)
			return s, true
		}
	}
	return slot{}, false
}

// used notes what became of a place that a transaction had taken. A place that is
// not as it was seen waits for a scan.
func (m *memory) used(s slot, created bool) {
	s.chunk.Release(s.i)
	if !created && !s.stale && !s.chunk.Gone {
		m.push(s)
	}
}

// freed notes that the worker has freed an object, so the pool is not full now.
// If the chunk is another client's, that client finds the place by a scan. v is
// the version that the object has now.
func (m *memory) freed(r Ref, v Version) {
	clear(m.full[:r.class()+1])
	n, index, i := m.w.chunkOf(r)
	if c := m.table.Held(&m.w.chunks, n, index); c != nil && c.Items[i] == chunks.Used {
		m.push(slot{chunk: c, i: i, place: r.place(), seen: v})
	}
}

// push lists a free place.
func (m *memory) push(s slot) {
	h := m.heap(s.chunk.Node, s.place.class())
	s.chunk.List(s.i)
	h.slots = append(h.slots, s)
}

// refill looks for free places: in the worker's own chunks, and if these have
// few, in others. Before it claims chunks it gives back those in which it has few
// places, for other clients to find what becomes free there.
func (m *memory) refill(h *heap, class, n int, own bool) error {
	for range h.Chunks {
		c := h.Next()
		found, err := m.scan([]*chunks.Held{c})
		if err != nil || found*chunks.Enough >= len(c.Items) {
			return err
		}
	}
	if own {
		return nil
	}
	a := &m.w.chunks
	if err := m.table.GiveBack(&h.Heap, a); err != nil {
		return err
	}
	listed := func(c *chunks.Held) bool { return c.Listed > 0 }
	if m.table.AtShare(a) && slices.ContainsFunc(h.Chunks, listed) {
		return nil
	}
	defer m.table.Trim(a)
	return m.claim(h, class, n)
}

// claim takes chunks of a node for a heap: one that was never used, or else some
// that clients have given back, or lost, in which a scan finds something. If
// there is none it takes none, without an error. A crash behind the CAS of a word
// leaves the chunk to the client's recovery, which gives it back.
func (m *memory) claim(h *heap, class, n int) error {
	if !h.Empty {
		fresh, err := m.claimFresh(h, class, n)
		if err != nil || fresh {
			return err
		}
		h.Empty = true
	}
	skip := func(c chunks.Chunk) bool { return c.Entry.Class() != class }
	_, err := m.table.ClaimLeft(&h.Heap, &m.w.chunks, class, n, skip)
	return err
}

// claimFresh asks the node for a chunk that was never used, from behind the one
// that it got last. All of its places are free.
func (m *memory) claimFresh(h *heap, class, n int) (bool, error) {
	a := &m.w.chunks
	got, ok, err := m.table.Fresh(a, n, class, int(a.Count), h.Behind(), m.w.trips.Left())
	if err != nil || !ok {
		return false, err
	}
	c := m.table.Add(&h.Heap, a, got)
	for i := range c.Items {
		m.push(slot{chunk: c, i: i, place: m.w.placeOf(n, c.Index, class, i)})
	}
	return true, nil
}

// scan lists what is free in chunks of the worker's, and returns how much it
// found. What is free stays so, since only the worker makes objects there. An
// error leaves listed what was found before it.
func (m *memory) scan(some []*chunks.Held) (found int, err error) {
	m.look = m.look[:0]
	for _, c := range some {
		m.w.stats.Scans++
		for i, state := range c.Items {
			if state == chunks.Used {
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
// CAS fails, and the place is looked at again. The batch owns the heads, so all of
// them are decoded before it is dropped.
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
// since the transaction may have made an object. A crash behind the release leaves
// a place that the next scan finds free.
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
