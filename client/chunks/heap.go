package chunks

import (
	"slices"
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
	// Gone: the chunk was given back, or not claimed. Lists may still name its items, and the
	// worker must not use them.
	Gone bool

	heap *Heap // it is one of these
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

// few reports whether so little of a chunk is free that another one is worth looking for.
func (c *Held) few() bool { return c.Listed*Enough < len(c.Items) }

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
	// A pool has places for far more clients than use it at a time, so a share for each place would
	// be less than a chunk. So many workers have half of a pool, or less where that is more than
	// mostIdle chunks each.
	manyWorkers, mostIdle = 64, 16
	// Enough: a scan has found enough when it has found one in so many items of a chunk. Else the
	// worker looks for another chunk.
	Enough = 8
	// claimAtOnce bounds the chunks that are claimed in a trip.
	claimAtOnce = 8
)

// Holdings are the chunks of a worker, in its Heaps. They belong to the worker.
type Holdings struct {
	Client
	// Nodes are those of the pool, and Clients bounds its clients.
	Nodes, Clients int
	// Count returns how many items a chunk of a class has. Scan lists what is free in some of the
	// worker's chunks, and returns how much it found.
	Count func(a *Arena, class int) int
	Scan  func(some []*Held) (found int, err error)
	// Claims counts the chunks that the worker got.
	Claims *uint64

	held map[rdma.Addr]*Held // by the address of the word in the table
	all  map[*Arena][]*Held  // the same, in the order in which the worker got them
}

// Held returns a chunk that the worker has; nil: it does not have that chunk.
func (o *Holdings) Held(a *Arena, n, index int) *Held { return o.held[a.Word(n, index)] }

// share is how many chunks of an arena a worker has, of all nodes and classes together. No other
// worker finds what is free there, so all workers together leave half of the pool, even if they do
// nothing any more. A bound for each heap would not do: a worker has one for each node and class.
func (o *Holdings) share(a *Arena) int {
	all := o.Nodes * int(a.Count)
	return max(all/(2*o.Clients), min(all/(2*manyWorkers), mostIdle), 1)
}

// AtShare reports whether the worker has as many chunks of an arena as it should have. One more
// costs it one that it has.
func (o *Holdings) AtShare(a *Arena) bool { return len(o.all[a]) >= o.share(a) }

// Add notes that the worker has a chunk.
func (o *Holdings) Add(h *Heap, a *Arena, got Chunk) *Held {
	c := o.look(h, a, got)
	o.add(c)
	return c
}

// look returns a chunk that the worker does not have yet.
func (o *Holdings) look(h *Heap, a *Arena, at Chunk) *Held {
	return &Held{Chunk: at, Arena: a, Items: make([]State, o.Count(a, at.Entry.Class())), Gone: true, heap: h}
}

func (o *Holdings) add(c *Held) {
	if o.held == nil {
		o.held, o.all = map[rdma.Addr]*Held{}, map[*Arena][]*Held{}
	}
	c.Gone = false
	c.heap.Chunks, o.all[c.Arena] = append(c.heap.Chunks, c), append(o.all[c.Arena], c)
	o.held[c.Arena.Word(c.Node, c.Index)] = c
	*o.Claims++
}

// GiveBack gives back chunks in which the worker has so few items that other clients may find more:
// the first ones first. It keeps some for what becomes free there. It keeps none once the node has
// no unused chunks, since what other clients find matters then, or when the worker has its share.
func (o *Holdings) GiveBack(h *Heap, a *Arena) error {
	surplus := len(h.Chunks) - keepChunks + 1
	if h.Empty || o.AtShare(a) {
		surplus = len(h.Chunks)
	}
	return o.leave(h, func(c *Held) bool {
		if surplus <= 0 || c.Taken > 0 || !c.few() {
			return false
		}
		surplus--
		return true
	})
}

// Trim gives back chunks of any heap until the worker has no more than its share: those first in
// which it has few items, and then those that it has had for longest. A chunk of which the running
// operation has something stays, and the last one, which the operation needs. What fails is done
// later (Free), since the operation may well succeed without the node of that chunk.
func (o *Holdings) Trim(a *Arena) {
	for len(o.all[a]) > o.share(a) {
		some := o.all[a][:len(o.all[a])-1]
		i := slices.IndexFunc(some, func(c *Held) bool { return c.Taken == 0 && c.few() })
		if i < 0 {
			i = slices.IndexFunc(some, func(c *Held) bool { return c.Taken == 0 })
		}
		if i < 0 {
			return
		}
		least := some[i]
		_ = o.leave(least.heap, func(c *Held) bool { return c == least })
	}
}

// leave gives back the chunks of a heap for which f returns true. The worker does not use them from
// here on, whatever becomes of the CASes: a CAS that fails may land yet.
func (o *Holdings) leave(h *Heap, f func(c *Held) bool) error {
	var a *Arena
	var left []Chunk
	kept := h.Chunks[:0]
	for _, c := range h.Chunks {
		if !f(c) {
			kept = append(kept, c)
			continue
		}
		c.Gone = true
		delete(o.held, c.Arena.Word(c.Node, c.Index))
		a, left = c.Arena, append(left, c.Chunk)
	}
	if len(left) == 0 {
		return nil
	}
	clear(h.Chunks[len(kept):])
	h.Chunks, h.next = kept, 0
	o.all[a] = slices.DeleteFunc(o.all[a], func(c *Held) bool { return c.Gone })
	return o.Free(a, left)
}

// ClaimLeft takes chunks of a class of a node that clients have given back, or lost, until a scan
// of them has found enough, or anything if the worker has its share. It returns how much was found.
// skip reports whether a chunk is not wanted.
func (o *Holdings) ClaimLeft(h *Heap, a *Arena, class, n int, skip func(Chunk) bool) (found int, err error) {
	err = o.Left(a, n, claimAtOnce, skip, func(some []Chunk) (bool, error) {
		here, err := o.claim(h, a, some, found)
		found += here
		enough := found*Enough >= o.Count(a, class)
		return enough || found > 0 && (len(some) == claimAtOnce || o.AtShare(a)), err
	})
	return found, err
}

// claim scans chunks, and takes those in which it finds something, until that is enough together
// with what was found before, and no more than the worker's share.
//
// It scans first, so that a chunk without anything costs no more, and is not away meanwhile for
// others that look for some. It relies on the word: as long as that is as it was read no client has
// had the chunk, so what was free is free. Lists may have items of chunks that it does not get.
// These are Gone.
func (o *Holdings) claim(h *Heap, a *Arena, some []Chunk, before int) (found int, err error) {
	list := make([]*Held, len(some))
	for i, c := range some {
		list[i] = o.look(h, a, c)
	}
	if _, err := o.Scan(list); err != nil {
		return 0, err
	}
	most, hoped := max(o.share(a)-len(o.all[a]), 1), before
	some = some[:0]
	list = slices.DeleteFunc(list, func(c *Held) bool {
		if c.Listed == 0 || len(some) == most || hoped*Enough >= len(c.Items) {
			return true
		}
		some, hoped = append(some, c.Chunk), hoped+c.Listed
		return false
	})
	got, err := o.Claim(a, some)
	for _, c := range list {
		if len(got) > 0 && got[0].Node == c.Node && got[0].Index == c.Index {
			c.Chunk, got = got[0], got[1:]
			o.add(c)
			found += c.Listed
		}
	}
	return found, err
}
