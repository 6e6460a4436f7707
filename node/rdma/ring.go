package rdma

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// RingAddr is where entries are appended: the number of a ring at a node. The zero RingAddr is
// none.
type RingAddr Addr

// Bounds of rings. Entries begin at multiples of Stride, which is the least that RNICs with
// multi-packet receive queues take (Rowan 3.2.2).
const (
	MaxRing        = 1<<16 - 1
	MaxRingBuffers = 1 << 12
	Stride         = 64
)

// RingAt returns the address of a ring of a node.
func RingAt(node, number int) RingAddr {
	if number < 1 || number > MaxRing {
		panic(fmt.Sprintf("rdma: no ring %d", number))
	}
	return RingAddr(At(node, uint64(number)))
}

// Node returns the node that has the memory in which a's entries land.
func (a RingAddr) Node() int { return Addr(a).Node() }

// Number returns the number of a's ring.
func (a RingAddr) Number() int { return int(Addr(a).Offset()) }

func (a RingAddr) String() string { return fmt.Sprintf("ring %d at node %d", a.Number(), a.Node()) }

// RingPromises say what a fabric promises of rings, beyond what Ring does.
type RingPromises struct {
	// MTU is how long a block is: an entry that is longer lands in blocks of MTU bytes, the last
	// one shorter, in order, but apart: each where the ring is then, with blocks of others between
	// them.
	MTU int
	// Counts says that the fabric counts what is in flight to each buffer: see Ring.Count.
	Counts bool
	// Streams is in how many streams entries land, by their length: see Stream and Ring. 0 is as 1.
	Streams int
}

// mostPlace is how long the places of a stream are at most, but for those of blocks.
const mostPlace = 1024

// RingStreams returns how many streams there are when an entry is in a stream of entries of about
// its length: for the places of 64 bytes, twice as many, and so on up to 1024, and for those of an
// MTU.
func RingStreams(mtu int) (n int) {
	for n = 1; Stride<<(n-1) < mtu && Stride<<(n-1) <= mostPlace; n++ {
	}
	return n
}

// MaxStreams is RingStreams of the longest MTU.
const MaxStreams = 6

// Stream returns in which stream an entry of n bytes is, from 0. All blocks of an entry are in the
// same one.
func (p RingPromises) Stream(n int) (stream int) {
	for stream < p.Streams-1 && n > p.Place(stream) {
		stream++
	}
	return stream
}

// Place returns how many bytes of a buffer a block in a stream takes, whatever its length, where
// there are several.
func (p RingPromises) Place(stream int) int {
	if stream < p.Streams-1 {
		return Stride << stream
	}
	return p.MTU
}

// Taken returns how many bytes of buffers an entry of n bytes takes.
func (p RingPromises) Taken(n int) int {
	up := func(n, to int) int { return (n + to - 1) / to * to }
	if p.Streams > 1 {
		return up(n, p.Place(p.Stream(n)))
	}
	return n/p.MTU*up(p.MTU, Stride) + up(n%p.MTU, Stride)
}

// RingOptions shape a ring.
type RingOptions struct {
	Node   int // entries land in its memory; the worker runs beside it
	Number int // the ring's, of the node's: 1 to MaxRing
	// Buffers are how many buffers the ring has place for at a time, MaxRingBuffers at most and by
	// default.
	Buffers int
}

// Ring is the receive side of appends (see Batch.Append): a queue of buffers, which lie in the
// memory of a node. Entries of all senders land in them in the order in which they arrive: each
// block at the next multiple of Stride, or, where the rest of a buffer is too short for it, at the
// beginning of the next buffer. Nothing says where entries begin, or that one came: what is in the
// rest of a buffer, and in a block that was not acknowledged, is undefined.
//
// Blocks that one worker appends to one ring take their places in the order in which it posted
// them.
//
// Where RingPromises.Streams is more than 1 both hold for each stream by itself, and not between
// streams. A buffer is of the stream that begins it, and each block at the next multiple of
// RingPromises.Place from the buffer's beginning. A stream begins no buffer before an entry was
// appended to it, and up to two then, one of them ahead: a ring may be dry for one stream while
// another has room.
//
// A ring belongs to its worker, and is not safe for concurrent use. It ends with its worker, and
// when that is fenced off by Revoke: once that returns nil, nothing lands any more, and another
// worker may open the ring.
type Ring interface {
	// Addr returns where to append to the ring.
	Addr() RingAddr
	// Post adds buffers to the end of the queue. Each begins at a multiple of Stride, and takes at
	// least a block. The error wraps ErrAccess when one does not, ErrFull when the ring has no
	// place for all: then none is added.
	Post(buffers ...Span) error
	// Count returns how far the ring is, in buffers since it was opened, where RingPromises.Counts
	// says that it can. The error says that the ring has ended, or may have.
	Count() (RingCount, error)
	// Close ends the ring. When it returns nil, nothing lands any more.
	Close() error
}

// RingCount is how far a ring is. Buffers are used in the order in which they were posted.
type RingCount struct {
	// Begun counts buffers in which something may have landed. The last of them, of each stream, is
	// in use.
	Begun uint64
	// Settled counts buffers in which nothing can land any more: they are full, and no block is in
	// flight to them. Where there are several streams, others behind them may be settled, too: see
	// IsSettled. A ring that does not count leaves it at 0, and Begun, too.
	Settled uint64
	// Open are the buffers that are begun and not settled, where there are several streams, by the
	// numbers of their posts, from 1, ascending; the rest is 0.
	Open [2 * MaxStreams]uint64
}

// IsSettled reports whether nothing can land any more in the buffer that was posted as number n,
// from 0.
func (c RingCount) IsSettled(n uint64) bool {
	return n < c.Settled || c.Open[0] > 0 && n < c.Begun && !slices.Contains(c.Open[:], n+1)
}

// CountOpen returns the count of a ring with several streams that has begun so many buffers, of
// which those are not settled, by the numbers of their posts, from 1.
func CountOpen(begun uint64, open []uint64) RingCount {
	c := RingCount{Begun: begun, Settled: begun}
	if n := copy(c.Open[:], open); n > 0 {
		slices.Sort(c.Open[:n])
		c.Settled = c.Open[0] - 1
	}
	return c
}

// CheckRing returns o with its defaults for a pool of so many nodes. It is for fabrics, as all that
// follows.
func CheckRing(o RingOptions, nodes int) (RingOptions, error) {
	if o.Buffers == 0 {
		o.Buffers = MaxRingBuffers
	}
	switch {
	case o.Node < 0 || o.Node >= nodes:
		return o, fmt.Errorf("open a ring at node %d of %d: %w", o.Node, nodes, ErrAccess)
	case o.Number < 1 || o.Number > MaxRing:
		return o, fmt.Errorf("open ring %d: want 1 to %d: %w", o.Number, MaxRing, ErrAccess)
	case o.Buffers < 1 || o.Buffers > MaxRingBuffers:
		return o, fmt.Errorf("open a ring of %d buffers: want 1 to %d: %w", o.Buffers, MaxRingBuffers, ErrAccess)
	}
	return o, nil
}

// RingQueue is the queue of a ring's buffers, and where the next block lands. It is not safe for
// concurrent use, Landed excepted.
type RingQueue struct {
	node   int
	queue  []ringBuffer // a ring with place for all
	posted uint64
	count  RingCount
	next   uint64 // offset in the node's memory
	room   uint64 // bytes behind it in its buffer
}

type ringBuffer struct {
	Span
	flying atomic.Int64 // blocks
}

// NewRingQueue returns an empty queue for options that were checked.
func NewRingQueue(o RingOptions) *RingQueue {
	return &RingQueue{node: o.Node, queue: make([]ringBuffer, o.Buffers)}
}

// Post adds buffers, of a node with so many bytes of memory and with blocks of mtu bytes: see
// Ring.Post.
func (q *RingQueue) Post(buffers []Span, memory uint64, mtu int) error {
	free := len(q.queue) - int(q.posted-q.Count().Settled)
	if err := CheckRingBuffers(buffers, free, q.node, memory, mtu); err != nil {
		return err
	}
	for _, b := range buffers {
		q.at(q.posted).Span = b
		q.posted++
	}
	return nil
}

// CheckRingBuffers returns why buffers may not be posted to a ring of a node that has place for so
// many: see Ring.Post.
func CheckRingBuffers(buffers []Span, free, node int, memory uint64, mtu int) error {
	if len(buffers) > free {
		return fmt.Errorf("post %d buffers to a ring with place for %d: %w", len(buffers), free, ErrFull)
	}
	for _, b := range buffers {
		off := b.Addr.Offset()
		if b.Addr.Node() != node || off%Stride != 0 || b.Len < mtu || off > memory || uint64(b.Len) > memory-off {
			return fmt.Errorf("post a buffer of %d bytes at %s to a ring of node %d with blocks of %d: %w",
				b.Len, b.Addr, node, mtu, ErrAccess)
		}
	}
	return nil
}

func (q *RingQueue) at(n uint64) *ringBuffer { return &q.queue[n%uint64(len(q.queue))] }

// Place takes the next place for a block of n bytes. It is in flight to that until Landed. The
// error wraps ErrRingDry.
func (q *RingQueue) Place(n int) (RingPlace, error) {
	size := (uint64(n) + Stride - 1) &^ (Stride - 1)
	if uint64(n) > q.room {
		if q.count.Begun == q.posted {
			return RingPlace{}, ErrRingDry
		}
		b := q.at(q.count.Begun)
		q.next, q.room = b.Addr.Offset(), uint64(b.Len)
		q.count.Begun++
	}
	p := RingPlace{Offset: q.next, buffer: q.count.Begun - 1}
	q.at(p.buffer).flying.Add(1)
	size = min(size, q.room) // of a buffer that does not end at a stride
	q.next, q.room = q.next+size, q.room-size
	return p, nil
}

// RingPlace is where a block lands.
type RingPlace struct {
	Offset uint64 // in the node's memory
	buffer uint64
}

// Landed says that nothing of the block can land any more, whether it did or not.
func (q *RingQueue) Landed(p RingPlace) { q.at(p.buffer).flying.Add(-1) }

// Count returns how far the ring is.
func (q *RingQueue) Count() RingCount {
	for q.count.Settled+1 < q.count.Begun && q.at(q.count.Settled).flying.Load() == 0 {
		q.count.Settled++
	}
	return q.count
}

// Flying returns how many blocks are in flight.
func (q *RingQueue) Flying() (n int) {
	for i := q.count.Settled; i < q.count.Begun; i++ {
		n += int(q.at(i).flying.Load())
	}
	return n
}
