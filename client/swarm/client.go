// Package swarm is SWARM's replicated register (Murat et al., SOSP 2024): a value on 2f+1 memory
// nodes that clients read and write in one trip each in the common case, linearizable and
// wait-free, with no code at the nodes.
//
// It has two layers. Safe-Guess (Algorithms 2, 3 and 10: read.go, write.go, lock.go) orders writes
// by timestamps that writers guess from their clocks. It relies on a reliable max register
// (Algorithm 8: max.go, over package quorum). In-n-Out (Algorithms 5 to 7: layout.go, buffer.go,
// max.go) implements a max register on each node, with 8-byte atomics.
//
//	READ   1. read the words of a majority, and at one replica the value that lies in place
//	WRITE  1. read the words, write the value out of place and CAS the writer's word, at a
//	       majority
//	       in the background: mark it VERIFIED, and write the value in place
//
// Everything else costs further trips. A stale guess costs a timestamp lock and another write. A
// value that is not in place costs a READ of its buffer. For a tuple that only a minority has, or
// that is not VERIFIED, see read.go.
//
// A crash leaves nothing that a client has to wait for: out-of-place buffers that no word points
// at, and words of writes with an unknown outcome. The next reader that finds such a word decides
// the outcome.
//
// Where the paper leaves a choice: writers beyond the array of locks use ABD (section 2.3) on the
// same words, and their tuples are VERIFIED at once. A deleted object has a tombstone: see
// tombstone.go. Buffers are recycled without asking readers, other than in section 4.5: see
// recycle.go.
package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

var (
	// ErrGone ends an operation on an object that was deleted. A write that ends so has had no
	// effect.
	ErrGone = errors.New("object is deleted")
	// ErrEmpty ends a read of an object that was never written.
	ErrEmpty = errors.New("object is empty")
	// ErrExhausted refuses a write when timestamps are at their end, nine years behind the pool's
	// epoch. Nothing was written.
	ErrExhausted = errors.New("no timestamp is left")
)

// Clock returns the time since the pool's epoch. It may be wrong, drift and step: that costs trips,
// but never correctness. (A clock that is years ahead uses up the timestamps of those years, for
// each key that its client writes.)
type Clock interface {
	Now() time.Duration
}

// Options of a Client. Zero values mean defaults.
type Options struct {
	// Writer is the client's number among the shape's writers. Its tuples carry the number, so no
	// other client may use it at the same time.
	Writer int
	// Clock is what timestamps are guessed from. nil: the endpoint.
	Clock Clock
	// Slow is how long a step waits for a mere majority before it asks all replicas. 0: it adapts
	// to how long steps usually take.
	Slow time.Duration
	// Use is called with each timestamp before a verb contains it. If it fails, the write fails
	// without effect. nil: timestamps are not reported.
	Use func(i uint64) error
	// Timeout bounds a step that fewer than a majority of replicas answer; default 1 s.
	Timeout time.Duration
	// Member is the worker's membership in the pool's view, which lets a master sweep the pool
	// while clients go on. The allocator must follow the same Member. nil: the pool is not swept.
	// See package kit.
	Member *kit.Member
}

// Object is where a key's value lies, in memory that was zero when the object was made.
type Object struct {
	// At has the addresses of the shape's replicas, each on a node of its own.
	At [MaxReplicas]rdma.Addr
	// InPlace is the replica that has the value in place. Steps ask it first, unless its node was
	// slow.
	InPlace int
	// Hash seeds the checksums of the object's buffers and picks their segment. It is the key's, or
	// in a Store the location's.
	Hash uint64
}

// Register is an object with what one client has cached of it.
type Register struct {
	Object
	// own is what the client's word held last at each replica, as far as the client knows. A CAS
	// that expects a wrong value fails, and returns the right one: that costs a trip, and no
	// more.
	own [MaxReplicas]Word
	// last is the highest i that this writer may have used for the object. Its next i is higher.
	last uint64
	// seen is the highest i that was met of any writer.
	seen uint64
	// warm: the words were read, or are known to be zero, so that own is likely to be right.
	warm bool
	// gone: the tombstone was met, or written. It never becomes false again.
	gone bool
	// epoch is the latest epoch in which the object is known to have existed: see package kit, R3.
	epoch uint64
}

// NewRegister returns a register with an empty cache. floor is at least as high as each timestamp
// that the writer's number was used with for the object: the Floor of its last Register of this
// object, also of a client that had the number before.
func NewRegister(o Object, floor uint64) Register { return Register{Object: o, last: floor} }

// Floor returns the highest timestamp that the writer may have used for the object.
func (k *Register) Floor() uint64 { return k.last }

// Client is one worker. It is not safe for concurrent use.
type Client struct {
	Layout
	// The caller owns the endpoint and the allocator: Close leaves both open.
	ep    rdma.Endpoint
	alloc buffers.Allocator
	opt   Options
	// tid is Options.Writer.
	tid int
	// ahead is by how much the clock was found to be slow. It only grows: see resync.
	ahead time.Duration
	// stats, except for the quorum's part, and leaked.
	stats  Stats
	quorum quorum.Quorum
	// words are what the last step read of each replica's words. They live in its batches.
	words [MaxReplicas][]byte
	// expect is what the words of a tuple hold that a READ writes back.
	expect [MaxReplicas]Word
	// seen are the guessed tuples that the READ at work has met, one a writer, without values.
	seen []tuple
	// value holds a value that outlives the batch that it was read in: until the next operation.
	value []byte
	// pending are the batches of confirm.
	pending kit.Background
	// unresolved are the WRITEs in flight: see recycle.go.
	unresolved quorum.Unresolved
	// leaked counts buffers that failed chains have left without an owner.
	leaked uint64

	// The rest belongs to the operation at work.

	// term is the membership's term in which the buffers were allocated.
	term uint64
	at   *Register
	// putting is the WRITE of the max register at work; otherwise it is zero. rejoin takes its
	// buffers away.
	putting put
}

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	quorum.Stats
	// Stale counts writes with a guess that may have been stale, and Rewritten those of them that
	// wrote the value again.
	Stale     uint64
	Rewritten uint64
	// Locks counts timestamp locks that were tried.
	Locks uint64
	// WriteBacks counts READs that brought a tuple to a majority.
	WriteBacks uint64
	// InPlace counts values that came with the words, and Fetches those read out of place.
	InPlace uint64
	Fetches uint64
	// WaitFree counts READs that ended because a writer has gone on to another tuple.
	WaitFree uint64
	// Lost and Reused count READs that began again: because the nodes that had the value died or
	// were slow, or because its buffer was reused.
	Lost   uint64
	Reused uint64
	// Leaked counts buffers without an owner until a sweep, since it is unknown whether a word
	// names them.
	Leaked uint64
	// Unmarked counts background work that was left out, since too much was in flight.
	Unmarked uint64
	// Iterations is the maximum over all READs.
	Iterations int
}

// Open returns a worker's view of objects of a layout. An object's hash picks the segment of its
// buffers. The error wraps ErrShape.
func Open(ep rdma.Endpoint, l Layout, a buffers.Allocator, o Options) (*Client, error) {
	if o.Writer < 0 || o.Writer >= l.Writers {
		return nil, fmt.Errorf("open swarm as writer %d: the objects have %d: %w", o.Writer, l.Writers, ErrShape)
	}
	if o.Clock == nil {
		o.Clock = ep
	}
	c := &Client{Layout: l, ep: ep, alloc: a, opt: o, tid: o.Writer,
		quorum: quorum.New(ep, quorum.Options{Slow: o.Slow, Timeout: o.Timeout, Attempts: bound(l)}),
		value:  make([]byte, 0, l.MaxValue)}
	if o.Member == nil {
		c.opt.Member = new(kit.Member)
	} else {
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

// bound returns the bound of a READ's iterations and of a replica's attempts in a step. A READ ends
// within two iterations for each writer, and one more (section 3.2), and begins again when a node
// dies meanwhile. A CAS fails because of a lower tuple at most as often: each other writer of the
// word has one current tuple, guessed and then verified, and its next ones are higher.
func bound(l Layout) int { return 2*l.Writers + 1 + l.Replicas }

// gather is a step at the replicas of k. It fails with ErrOutdated, and sends nothing, if the
// object may belong to another life by now: so does each step of an operation, also behind a
// rejoin.
func (c *Client) gather(step rdma.Step, k *Register, from quorum.Mask, need int,
	ask quorum.Ask, answer quorum.Answer) error {
	c.at = k
	if err := c.current(k); err != nil {
		c.quorum.Forget()
		return err
	}
	return c.quorum.Gather(step, k.At[:c.Replicas], k.InPlace, from, need, ask, answer)
}

// Close waits for the WRITEs in flight, at most for as long as a step may take, so that the owners
// of their buffers are known, and releases its batches. Background work in flight goes on. The
// endpoint and the allocator stay open.
func (c *Client) Close() {
	_ = c.land()
	c.unresolved.Release()
	c.pending.Release()
}

// failed wraps the failure of a write's only step. It wraps client.ErrUncertain, too, unless the
// step has sent nothing.
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
