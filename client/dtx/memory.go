package dtx

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node/rdma"
)

// Memory is handed out by the chunk, as in package rtx. A chunk's word in its table names the
// client that uses it, and for good which size its objects have. Only that client makes objects
// there; a place is free when its head says that nothing is there. So there is nothing that a crash
// could leave half done, and the word is all that has to be taken from a dead client.

// chunk is one that the worker has.
type chunk struct {
	chunks.Chunk
	slots  []slotState // by place
	listed int         // of them those in the worker's list
	taken  int         // and in its transaction
	gone   bool        // it was given back; lists may still name it
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
	next   int  // chunk that is scanned next
	empty  bool // there is no chunk that was never used
	slots  []slot
}

// memory is what a worker has.
type memory struct {
	w     *Worker
	table chunks.Client
	turn  int                  // node of the next object
	heaps []heap               // by node and class
	held  map[rdma.Addr]*chunk // by address of the word in the table
	full  []time.Duration      // by class: when no look found a place; 0: never
	look  []slot               // that a scan looks at
}

const (
	// keepChunks is how many chunks of a size a client keeps on a node of which it uses little.
	keepChunks = 4
	// enough is the share of a chunk that a scan has to find for no other chunk to be looked for: one
	// of so many.
	enough = 8
	// claimAtOnce is how many chunks are claimed in a trip, at most.
	claimAtOnce = 8
	// mostLooks is how often a worker looks everywhere for a place.
	mostLooks = 3
	// fullFor is for how long a worker that has looked everywhere does not do so again.
	fullFor = 8 * time.Millisecond
	// scanAtOnce is how many places are looked at in a trip.
	scanAtOnce = 128
)

func (m *memory) open(w *Worker) {
	*m = memory{
		w: w, turn: int(w.id), held: map[rdma.Addr]*chunk{}, full: make([]time.Duration, len(w.Sizes)),
		heaps: make([]heap, w.Nodes*len(w.Sizes)),
		table: chunks.Client{
			Endpoint: w.ep, ID: w.id, Steps: chunks.Steps{Read: stepReadTable, Claim: stepClaimChunk,
				Free: stepFreeChunk},
			Do: w.do, Drop: w.drop,
		},
	}
}

func (m *memory) heap(n, class int) *heap { return &m.heaps[n*len(m.w.Sizes)+class] }

// take takes a place of a class, on a node if there is one, or else on another; and where there is
// none a larger one, as chunks keep their sizes. It looks again behind a pause, since others may
// have had for a moment what is free. For a while behind looks that found none it does no more than
// to scan the worker's own chunks: looks of many workers at a full pool would take up all of their
// time. The error wraps client.ErrFull.
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

// takeOn takes a place on a node; own: of chunks that the worker has.
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

// freed notes that the worker has freed an object: the pool is not full now. Of another client's
// chunk that client finds out.
func (m *memory) freed(r Ref, v Version) {
	clear(m.full[:r.class()+1])
	n, index, i := m.w.chunkOf(r)
	if c := m.held[m.w.chunks.Word(n, index)]; c != nil && c.slots[i] == slotUsed {
		m.push(slot{chunk: c, i: i, place: r.place(), seen: v})
	}
}

func (m *memory) push(s slot) {
	h := m.heap(s.chunk.Node, s.place.class())
	s.chunk.slots[s.i] = slotListed
	s.chunk.listed++
	h.slots = append(h.slots, s)
}

// refill looks for free places: in the worker's own chunks, and where these have few, in others.
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
	if h.empty { // what others find in it counts now
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

// share is how many chunks of a size a worker takes on a node while it has places: all workers
// together leave half of the pool.
func (m *memory) share() int { return max(keepChunks, int(m.w.chunks.Count)/(2*m.w.Clients)) }

// giveBack gives back chunks in which the worker has so few places that others may find more: the
// first ones, but for so many.
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

// leave gives back the chunks of a heap that f names.
func (m *memory) leave(h *heap, f func(i int, c *chunk) bool) error {
	var left []chunks.Chunk
	kept := h.chunks[:0]
	for i, c := range h.chunks {
		if !f(i, c) {
			kept = append(kept, c)
			continue
		}
		c.gone = true // whatever becomes of the CAS: it may land
		delete(m.held, m.w.chunks.Word(c.Node, c.Index))
		left = append(left, c.Chunk)
	}
	clear(h.chunks[len(kept):])
	h.chunks, h.next = kept, 0
	return m.table.Free(&m.w.chunks, left)
}

// claim takes a chunk of a node: one that was never used, or else some that clients have given
// back, or lost, in which a scan finds something. Where there is none it takes none.
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

// claimLeft takes chunks that clients have given back. It keeps those in which a scan finds
// something, until that is enough, with what was found before; and no more than a worker has at
// once.
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

// claimFresh asks the node for a chunk that was never used, from behind the one that it got last.
func (m *memory) claimFresh(h *heap, class, n int) (bool, error) {
	a, behind := &m.w.chunks, uint64(0)
	if len(h.chunks) > 0 {
		behind = uint64(h.chunks[len(h.chunks)-1].Index) + 1
	}
	got, ok, err := m.table.Fresh(a, n, class, int(a.Count), behind, m.w.left())
	if err != nil || !ok {
		return false, err
	}
	c := m.add(h, got)
	for i := range c.slots {
		m.push(slot{chunk: c, i: i, place: m.w.placeOf(n, c.Index, class, i)})
	}
	return true, nil
}

func (m *memory) add(h *heap, got chunks.Chunk) *chunk {
	c := &chunk{Chunk: got, slots: make([]slotState, m.w.perChunk(got.Entry.Class()))}
	h.chunks = append(h.chunks, c)
	m.held[m.w.chunks.Word(c.Node, c.Index)] = c
	m.w.stats.Claims++
	return c
}

// scan lists what is free in chunks of the worker's. What it finds so stays so: only the worker
// makes objects there.
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

// scanSome looks at the heads of some places. Lock and head may be of two moments: then the lock
// that was seen is not the one that a commit finds, and the place is looked at again.
func (m *memory) scanSome(look []slot) (found int, err error) {
	w := m.w
	b := w.ep.Batch()
	defer w.drop(b)
	for i := range look {
		at, _ := w.Object(look[i].place)
		b.Read(at, headBytes)
	}
	if err := w.do(stepScanChunk, b); err != nil {
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

// freeSlot releases the lock of a place without an object, if its transaction is over: no other
// client may ever meet it.
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
	defer w.drop(b)
	op := b.Read(at, headBytes)
	if err := w.do(stepScanChunk, b); err != nil {
		return false, err
	}
	head, _ := decodeHead(op.Buf)
	s.seen = Version(op.Word(0))
	return !head.there && !s.seen.Held(), nil
}
