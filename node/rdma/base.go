package rdma

import "slices"

// Base is what the queues of every fabric share: the recycling of batches, the counters and the
// trip clock. It is not safe for concurrent use.
type Base struct {
	C     Counters
	nodes []NodeCounters // by node, up to the last one that was used
	posts uint64
	free  []*Batch
	big   [][]byte // spare allocations that fit no batch's memory
	spare int      // bytes of them
	grow  func(int) []byte

	completed uint64 // counts ops, or batches: see Completed
	sends     bool   // the worker has a mailbox
	rings     bool   // the fabric has rings
}

// BatchMemory is the registered memory of a batch in bytes: three 1 KB pairs and an index read fit.
// More than that is allocated when asked for.
const BatchMemory = 8 << 10

// spareBig bounds how many allocations that do not fit there a queue keeps, spareBytes how long
// each may be, and spareAll how long all: for a scan of a log, or of a tree's 32 leaves at a time,
// again and again, and not for one of all memory.
const (
	spareBig   = 64
	spareBytes = 64 << 10
	spareAll   = 1 << 20
)

// Init prepares a queue. The memory of its batches comes from grow, which returns n bytes of
// registered memory, aligned to 8: it is used again as long as the queue is. What does not fit
// there comes from the Go heap. A nil grow means that the heap will do for all.
func (q *Base) Init(grow func(n int) []byte) {
	if grow == nil {
		grow = func(n int) []byte { return make([]byte, n) }
	}
	q.grow = grow
}

// Batch returns an empty batch.
func (q *Base) Batch() *Batch {
	n := len(q.free)
	if n == 0 {
		m := q.grow(BatchMemory)
		return &Batch{base: q, mem: m, free: m}
	}
	b := q.free[n-1]
	q.free = q.free[:n-1]
	return b
}

// Counters returns the queue's counters.
func (q *Base) Counters() *Counters { return &q.C }

// NodeCounters returns the queue's counters by node.
func (q *Base) NodeCounters() []NodeCounters { return q.nodes }

// at returns the counters of a node.
func (q *Base) at(node int) *NodeCounters {
	if node >= len(q.nodes) {
		q.nodes = append(q.nodes, make([]NodeCounters, node+1-len(q.nodes))...)
	}
	return &q.nodes[node]
}

func (q *Base) recycle(b *Batch) {
	b.n, b.chains, b.done, b.pending = 0, 0, 0, 0
	b.grouped, b.posted, b.released, b.waited = false, false, false, false
	b.step, b.mem = "", b.free
	for _, p := range b.big {
		if len(q.big) < spareBig && cap(p) <= spareBytes && q.spare+cap(p) <= spareAll {
			q.big, q.spare = append(q.big, p), q.spare+cap(p)
		}
	}
	clear(b.big)
	b.big, b.span = b.big[:0], b.span[:0]
	q.free = append(q.free, b)
}

// allocBig returns n bytes of the heap, which may have been those of another batch.
func (q *Base) allocBig(n int) []byte {
	for i := len(q.big) - 1; i >= 0; i-- {
		if p := q.big[i]; cap(p) >= n {
			q.big, q.spare = slices.Delete(q.big, i, i+1), q.spare-cap(p)
			return p[:n]
		}
	}
	return make([]byte, n)
}

// Posted counts a batch that is about to be sent and marks all its ops as in flight. Each
// Queue.Post calls it once.
func (q *Base) Posted(b *Batch) {
	if b.posted {
		panic("rdma: batch posted twice")
	}
	b.posted = true
	b.pending = b.n
	b.depart, b.trips = q.C.Trips, 1
	q.posts++
	for i := range b.n {
		op := b.Op(i)
		at := q.at(op.Addr.Node())
		switch op.Verb {
		case Read:
			q.C.Reads++
			q.C.BytesRead += uint64(len(op.Buf))
			at.Reads++
			at.BytesRead += uint64(len(op.Buf))
		case Write:
			q.C.Writes++
			q.C.BytesWrote += uint64(len(op.Buf))
			at.Writes++
			at.BytesWrote += uint64(len(op.Buf))
		case Send:
			n := uint64(op.Len())
			q.C.Sends++
			q.C.BytesWrote += n
			at.Sends++
			at.BytesWrote += n
		case Append: // a SEND, and a READ of nothing
			n := uint64(len(op.Buf))
			q.C.Sends++
			q.C.Reads++
			q.C.BytesWrote += n
			at.Sends++
			at.Reads++
			at.BytesWrote += n
		default:
			q.C.Atomics++
			at.Atomics++
		}
		if op.Fence {
			b.trips = max(b.trips, 1+b.stalls(i))
		}
		if at.rung != q.posts {
			at.rung = q.posts
			at.Doorbells++
			q.C.Doorbells++
		}
	}
}

// stalls returns how often the ops of op i's node stall up to its fence: each fence that has an
// unfenced read or atomic of the same node to wait for. Nodes do not wait for each other.
func (b *Batch) stalls(i int) (n uint64) {
	node, flying := b.Op(i).Addr.Node(), false
	for j := range i + 1 {
		op := b.Op(j)
		if op.Addr.Node() != node {
			continue
		}
		if op.Fence && flying {
			n++
			flying = false
		}
		flying = flying || op.Verb.Fetches()
	}
	return n
}

// Waited moves the trip clock past b. Each Queue.Wait that returns nil calls it.
func (q *Base) Waited(b *Batch) {
	if b.waited {
		return
	}
	b.waited = true
	q.C.Trips = max(q.C.Trips, b.depart+b.trips)
}

// Listening says that the worker has a mailbox, from which it may send.
func (q *Base) Listening() { q.sends = true }

// Appending says that the fabric has rings.
func (q *Base) Appending() { q.rings = true }

// Completed returns a number that grows whenever ops of the worker complete.
func (q *Base) Completed() uint64 { return q.completed }

// Called counts a two-sided call of a node.
func (q *Base) Called(node int) {
	q.at(node).Calls++
	q.C.Calls++
	q.C.Trips++
}
