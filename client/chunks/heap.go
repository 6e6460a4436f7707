package chunks

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// State is what a worker knows of an item of one of its chunks. Items are what a store divides its
// chunks into.
type State uint8

const (
	// Used: something may be there. Only a scan can tell.
	Used State = iota
	// Listed: the item is free, and in a list of the worker.
	Listed
	// Taken: the running operation has the item.
	Taken
)

// Held is a chunk that a worker has: the word in the table names the worker, unless Gone.
type Held struct {
	Chunk
	Arena *Arena
	// Items has the state of each item, by its place in the chunk. The pool has no such state: it
	// is lost with the worker, and a scan finds what is free.
	Items []State
	// Listed counts the items that are in a list of the worker, and Kept those of them that no new
	// object takes.
	Listed, Kept int
	// Taken counts the items that the running operation has. A chunk is not given back while it
	// has one.
	Taken int
	// Scanned is when the last scan of the chunk began.
	Scanned time.Duration
	// Gone: the chunk was given back. Lists may still name its items, and the worker must not use
	// them.
	Gone bool
}

// List notes that an item is in a list of the worker.
func (c *Held) List(i int) {
	c.Items[i] = Listed
	c.Listed++
}

// Take notes that the running operation has an item that was listed.
func (c *Held) Take(i int) {
	c.Items[i] = Taken
	c.Listed--
	c.Taken++
}

// Release notes that no operation has an item any more. It counts as used until it is listed.
func (c *Held) Release(i int) {
	c.Items[i] = Used
	c.Taken--
}

// Heap has the chunks that a worker has of one kind on one node.
type Heap struct {
	Chunks []*Held
	// Empty: the node has no chunk left that was never used, apart from those that are spared.
	Empty bool

	next int // the index in Chunks of the chunk that Next returned last
}

// Next returns the chunks of a heap in turn, for scans. There is at least one.
func (h *Heap) Next() *Held {
	h.next = (h.next + 1) % len(h.Chunks)
	return h.Chunks[h.next]
}

// Behind is the index behind the heap's last chunk.
func (h *Heap) Behind() uint64 {
	if len(h.Chunks) == 0 {
		return 0
	}
	return uint64(h.Chunks[len(h.Chunks)-1].Index) + 1
}

const (
	// keepChunks is how many chunks of a kind a client keeps on a node though it uses little of
	// them.
	keepChunks = 4
	// Enough: a scan has found enough when it has found one in so many items of a chunk. Else the
	// worker looks for another chunk.
	Enough = 8
	// claimAtOnce bounds the chunks that are claimed in a trip.
	claimAtOnce = 8
)

// Holdings are the chunks of a worker, in its Heaps. They belong to the worker.
type Holdings struct {
	Client
	// Clients bounds the clients of the pool.
	Clients int
	// Count returns how many items a chunk of a class has. Scan lists what is free in some of the
	// worker's chunks, and returns how much it found.
	Count func(a *Arena, class int) int
	Scan  func(some []*Held) (found int, err error)
	// Claims counts the chunks that the worker got.
	Claims *uint64

	held map[rdma.Addr]*Held // by the address of the word in the table
}

// Held returns a chunk that the worker has; nil: it does not have that chunk.
func (o *Holdings) Held(a *Arena, n, index int) *Held { return o.held[a.Word(n, index)] }

// Share is how many chunks of a kind a worker takes on a node while it has items there. All workers
// together leave half of the pool. Then other workers find chunks though no worker gives any back.
func (o *Holdings) Share(a *Arena) int { return max(keepChunks, int(a.Count)/(2*o.Clients)) }

// Add notes that the worker has a chunk.
func (o *Holdings) Add(h *Heap, a *Arena, got Chunk) *Held {
	c := &Held{Chunk: got, Arena: a, Items: make([]State, o.Count(a, got.Entry.Class()))}
	if o.held == nil {
		o.held = map[rdma.Addr]*Held{}
	}
	h.Chunks = append(h.Chunks, c)
	o.held[a.Word(c.Node, c.Index)] = c
	*o.Claims++
	return c
}

// GiveBack gives back chunks in which the worker has so few items that other clients may find more:
// the first ones first. It keeps some for what becomes free there. It keeps fewer once the node has
// no unused chunks, since what other clients find matters then.
func (o *Holdings) GiveBack(h *Heap) error {
	surplus := len(h.Chunks) - keepChunks + 1
	if h.Empty {
		surplus = len(h.Chunks)
	}
	return o.leave(h, func(_ int, c *Held) bool {
		if surplus <= 0 || c.Taken > 0 || c.Listed*Enough >= len(c.Items) {
			return false
		}
		surplus--
		return true
	})
}

// leave gives back the chunks of a heap for which f returns true. The worker does not use them from
// here on, whatever becomes of the CASes: a CAS that fails may land yet.
func (o *Holdings) leave(h *Heap, f func(i int, c *Held) bool) error {
	var a *Arena
	var left []Chunk
	kept := h.Chunks[:0]
	for i, c := range h.Chunks {
		if !f(i, c) {
			kept = append(kept, c)
			continue
		}
		c.Gone = true
		delete(o.held, c.Arena.Word(c.Node, c.Index))
		a, left = c.Arena, append(left, c.Chunk)
	}
	clear(h.Chunks[len(kept):])
	h.Chunks, h.next = kept, 0
	return o.Free(a, left)
}

// ClaimLeft takes chunks of a class of a node that clients have given back, or lost, until a scan
// of them has found enough. It returns how much was found. skip reports whether a chunk is not
// wanted.
func (o *Holdings) ClaimLeft(h *Heap, a *Arena, class, n int, skip func(Chunk) bool) (found int, err error) {
	err = o.Left(a, n, claimAtOnce, skip, func(some []Chunk) (bool, error) {
		here, err := o.claim(h, a, some, found)
		found += here
		return found*Enough >= o.Count(a, class) || len(some) == claimAtOnce && found > 0, err
	})
	return found, err
}

// claim takes chunks, and scans them. It keeps those in which it finds something, until that is
// enough together with what was found before, and no more than the worker's share. The rest it
// gives back.
//
// If the scan fails the chunks stay the worker's, and a later scan lists what is free there.
func (o *Holdings) claim(h *Heap, a *Arena, some []Chunk, before int) (found int, err error) {
	got, err := o.Claim(a, some)
	if err != nil {
		return 0, err
	}
	had := len(h.Chunks)
	for _, c := range got {
		o.Add(h, a, c)
	}
	if _, err := o.Scan(h.Chunks[had:]); err != nil {
		return 0, err
	}
	most := max(o.Share(a), had+1)
	kept := had
	return found, o.leave(h, func(i int, c *Held) bool {
		if i < had {
			return false
		}
		if c.Listed == 0 || kept == most || (before+found)*Enough >= len(c.Items) {
			return true
		}
		found, kept = found+c.Listed, kept+1
		return false
	})
}
