// Package swarm is SWARM's replicated register (Murat et al., SOSP 2024): a value on 2f+1 memory
// nodes that clients read and write in one trip each in the common case, linearizable and
// wait-free, with no code at the nodes.
//
// It is two things on top of each other. Safe-Guess (Algorithms 2, 3 and 10: read.go, write.go,
// lock.go) orders writes by timestamps that writers guess from their clocks. It stands on a
// reliable max register (Algorithm 8: max.go, over package quorum), of which In-n-Out (Algorithms 5
// to 7: layout.go, buffer.go, max.go) makes one on each node, with 8-byte atomics.
//
//	READ   1. read the words of a majority, and at one replica the value that lies in place
//	WRITE  1. read the words, write the value out of place and CAS the writer's word, at a majority
//	       in the background: mark it VERIFIED, and write the value in place
//
// Whatever does not fit costs further trips. A stale guess costs a timestamp lock and another
// write. A value that is not in place costs a read of its buffer. For a tuple that only a minority
// has, or that is not VERIFIED, see read.go.
//
// A crash leaves nothing that a client has to wait for: out-of-place buffers that nothing points
// at, and words of writes whose outcome is unknown, until a reader finds one and decides.
//
// Where the paper leaves a choice: writers beyond the array of locks use ABD (section 2.3) on the
// same words, and are VERIFIED at once; a deleted object has a tombstone, see tombstone.go. Section
// 4.5's recycling of buffers, which asks all readers first, is another one here: see recycle.go.
package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

var (
	// ErrGone ends an operation on an object that was deleted. A write that ends so has had no effect.
	ErrGone = errors.New("object is deleted")
	// ErrEmpty ends a read of an object that was never written.
	ErrEmpty = errors.New("object is empty")
	// ErrExhausted refuses a write when timestamps are at their end, nine years behind the pool's
	// epoch. Nothing was written.
	ErrExhausted = errors.New("no timestamp is left")
)

// Allocator hands out out-of-place buffers. A pointer of 16 bits, 0 for none, names a buffer in one
// segment of a node's memory. The key's hash picks the segment, so that 16 bits and the hash's are
// enough for any memory, and every client finds a buffer, whichever client filled it. Package
// buffers has one.
type Allocator interface {
	// Allocate hands a buffer on a node to the client, mostly without asking the node; an error wraps
	// client.ErrFull, or what a node that does not answer in a while ends with.
	Allocate(node int, hash uint64) (pointer uint16, at rdma.Addr, err error)
	// Give takes a buffer from the client: no word points at it, and no verb to it is in flight.
	Give(node int, hash uint64, pointer uint16)
	// Resolve returns the address of a buffer.
	Resolve(node int, hash uint64, pointer uint16) rdma.Addr
}

// Clock tells how long ago the pool's epoch was. It may be off, drift and step: that costs trips,
// never an answer. (One that is years ahead uses up the timestamps of those years, for every key
// that its client writes.)
type Clock interface {
	Now() time.Duration
}

// Options of a Client. Zero values mean defaults.
type Options struct {
	// Writer is the client's number among the shape's writers. The client writes with it, and no other
	// client may use it at the same time.
	Writer int
	// Clock is guessed from; the endpoint by default.
	Clock Clock
	// Slow is how long an operation waits for a mere majority before it asks all replicas. By default
	// it follows from what steps usually take here.
	Slow time.Duration
	// Use is called with each timestamp before it is used. When it fails so does the write, without
	// effect. nil: timestamps are not reported.
	Use func(i uint64) error
	// Timeout bounds a step of an operation of which fewer than a majority answer; default 1 s.
	Timeout time.Duration
	// Member is the worker's part in the pool's view, which makes it possible to sweep the pool while
	// it goes on; the allocator follows it, too. nil: the pool is not swept. See package kit.
	Member *kit.Member
}

// Object is where a key's value lies, in memory that was zero when the object was made.
type Object struct {
	At      [MaxReplicas]rdma.Addr // of the shape's replicas, each on a node of its own
	InPlace int                    // the replica whose value is in place: the first of the majority that is asked first
	Hash    uint64                 // of the key
}

// Register is an object as one client knows it: what it caches.
type Register struct {
	Object
	own  [MaxReplicas]Word // what the client's word held at each replica last
	last uint64            // the highest i that this writer may have used
	seen uint64            // the highest i of any writer
	warm bool              // the words were read
	gone bool
	// epoch is the latest of which it is known that the object was there: see package kit, R3.
	epoch uint64
}

// NewRegister returns a register of which nothing is known but its place, and a timestamp that the
// writer's number has not been used above: the Floor of its last Register of this object, or of the
// client that had the number before.
func NewRegister(o Object, floor uint64) Register { return Register{Object: o, last: floor} }

// Floor returns the highest timestamp that the writer may have used for the object.
func (k *Register) Floor() uint64 { return k.last }

// Client is one worker. It is not safe for concurrent use.
type Client struct {
	Layout
	ep         rdma.Endpoint
	alloc      Allocator
	opt        Options
	tid        int
	ahead      time.Duration // by how much the clock was found to be slow
	stats      Stats         // but for the quorum's
	quorum     quorum.Quorum
	words      [MaxReplicas][]byte // that the last step read
	expect     [MaxReplicas]Word   // of what a READ writes back
	seen       []tuple             // of the READ at work
	value      []byte              // outlives the batch that it was read in
	pending    [backgroundBatches]*rdma.Batch
	unresolved quorum.Unresolved // writes in flight, see recycle.go
	leaked     uint64

	// Of the operation at work.
	term    uint64 // of its membership
	at      *Register
	putting put // the zero put between WRITEs of the max register
}

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	quorum.Stats
	Stale      uint64 // writes whose guess may have been stale
	Rewritten  uint64 // of them those that wrote again
	Locks      uint64 // timestamp locks tried
	WriteBacks uint64 // reads that brought a tuple to a majority
	InPlace    uint64 // values that came with the words, from where they lie in place
	Fetches    uint64 // values read out of place
	WaitFree   uint64 // reads that ended since a writer went on
	Lost       uint64 // values whose holders died or were slow, so that the READ began again
	Reused     uint64 // values whose buffers were used again, so that the READ began again
	Leaked     uint64 // buffers without an owner until a sweep, since their outcome is unknown
	Unmarked   uint64 // background work left out, since too much was in flight
	Iterations int    // the most of a READ
}

// Open returns a worker's view of objects of a layout.
func Open(ep rdma.Endpoint, l Layout, a Allocator, o Options) (*Client, error) {
	if o.Writer < 0 || o.Writer >= l.Writers {
		return nil, fmt.Errorf("open swarm as writer %d: the objects have %d: %w", o.Writer, l.Writers, ErrShape)
	}
	if o.Clock == nil {
		o.Clock = ep
	}
	c := &Client{Layout: l, ep: ep, alloc: a, opt: o, tid: o.Writer,
		quorum: quorum.New(ep, quorum.Options{Slow: o.Slow, Timeout: o.Timeout, Attempts: bound(l)}), value: make([]byte, 0, l.MaxValue)}
	if o.Member != nil {
		c.quorum.Rejoin, c.term = c.rejoin, o.Member.Term()
	}
	return c, nil
}

// Stats returns the client's counters.
func (c *Client) Stats() Stats {
	s := c.stats
	s.Stats = c.quorum.Stats()
	s.Leaked = c.leaked + c.unresolved.Dropped
	return s
}

// bound is that of iterations and attempts. A READ ends within two for each writer, and one
// (section 3.2), and begins again when a node dies under it. A CAS is overtaken by a lower tuple at
// most as often: by each other writer's current one, guessed and verified, since the next ones are
// higher.
func bound(l Layout) int { return 2*l.Writers + 1 + l.Replicas }

// gather is a step at the replicas of k.
func (c *Client) gather(step rdma.Step, k *Register, from quorum.Mask, need int, ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict) error {
	if c.at = k; c.opt.Member != nil {
		if err := c.current(k); err != nil {
			return err
		}
	}
	return c.quorum.Gather(step, k.At[:c.Replicas], k.InPlace, from, need, ask, answer)
}

// Close waits for what buffers depend on, at most for as long as a step may take, and gives batches
// back; what else is in flight goes on. The endpoint stays open, and so does the allocator.
func (c *Client) Close() {
	c.quorum.Release()
	_ = c.unresolved.Land(c.ep, c.quorum.Timeout(), c.settleUnresolved)
	c.unresolved.Release()
	for i, b := range c.pending {
		if b != nil {
			b.Release()
			c.pending[i] = nil
		}
	}
}

// keep copies a value out of a batch, to live until the client's next operation.
func (c *Client) keep(v []byte) []byte {
	c.value = append(c.value[:0], v...)
	return c.value
}

// failed is uncertain, unless the step that failed has sent nothing.
func (c *Client) failed(what string, err error) error {
	if !c.quorum.Posted() {
		return fmt.Errorf("%s: %w", what, err)
	}
	return uncertain(what, err)
}

// uncertain wraps the failure of a write that may have taken effect.
func uncertain(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, client.ErrUncertain, err)
}
