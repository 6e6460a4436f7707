// Package directory is a replicated index that goes on while nodes die: it maps 64-bit hashes to
// locations, linearizable, without a master, a log, or code at the nodes. Any minority of the nodes
// that have a bucket may be dead or slow.
//
// A hash picks one bucket, so that a pair can never be there twice. Each bucket is a register of
// CASPaxos (Rystsov, 2018) on 2f+1 nodes, whose acceptors are a word each, changed by CAS
// (word.go); its values lie in buffers beside.
//
//	Lookup  1. read the words of a majority, and at the first replica the value that lies in place. All have accepted the
//	           same round: it is chosen, and nothing newer was when the lookup began.
//	Change  1. as Lookup
//	        2. prepare: CAS the words to a higher round, at a majority. What was read before still stood there.
//	        3. accept: at each replica, in one chain, write a buffer with the new value, CAS the word to it, and write in place.
//
// Why it is safe. A replica's word is promised to a round by one client's CAS. It accepts in that
// round only by a CAS of the same client, or by one of a client that found it below the round and
// has a majority's promises. So of two clients that take the same round at most one has a majority,
// and values of one bucket and round are equal, wherever they are met: rounds need no client's
// number. The rest is Paxos: a client that has a majority's promises of round b goes on from the
// value that has the highest round among what they had accepted, and so from everything that was or
// will be chosen below b.
//
// Buffers are recycled without a third party: the CAS that replaces a word's pointer takes the
// buffer that it named. Its former owner's WRITE came before its CAS in one chain, and can land no
// more. Readers notice a buffer that was used again by its bucket and round. A buffer whose chain
// is in flight has no owner until the chain is complete.
//
// A crash leaves nothing that a client has to wait for: a promise, over which the next change goes;
// a value at a minority, which the next change goes on from or overrules; and the buffers that the
// client owned, until a sweep finds them by Walk.
package directory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Allocator hands out buffers of BufferBytes. A pointer of 16 bits, never 0, names one in a segment
// of a node's memory: of the directory's buffers the segment is the bucket's number.
type Allocator interface {
	// Allocate reserves a buffer on a node. The error wraps client.ErrFull when there is none, and
	// rdma.ErrNodeDown or rdma.ErrTimeout when the node does not answer.
	Allocate(node int, segment uint64) (pointer uint16, at rdma.Addr, err error)
	// Give hands over a buffer that the directory owns: one that it allocated and did not need, or
	// that it took.
	Give(node int, segment uint64, pointer uint16)
	// Resolve returns the address of a buffer.
	Resolve(node int, segment uint64, pointer uint16) rdma.Addr
}

// Options of a Client. Zero values mean defaults.
type Options struct {
	// Slow is how long a step waits for a mere majority before it asks all replicas; see
	// quorum.Options.
	Slow time.Duration
	// Timeout bounds a step of which fewer than a majority answer, and an operation that others keep
	// from ending; default 1 s.
	Timeout time.Duration
	// Member is the worker's part in the pool's view, which makes it possible to sweep the pool while
	// it goes on; the allocator follows it, too. nil: the pool is not swept. See package kit.
	Member *kit.Member
}

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	quorum.Stats
	Mixed   uint64 // looks that found no round which a majority has accepted
	Fetches uint64 // values read from a buffer, since what lay in place was not the word's
	Settled uint64 // lookups that brought a bucket to one round
	Lost    uint64 // changes that began again, since another client was at the bucket
	Helped  uint64 // changes that were finished by another client
	Leaked  uint64 // buffers whose owner is unknown
}

// Client is one worker. It is not safe for concurrent use.
type Client struct {
	*Layout
	ep         rdma.Endpoint
	alloc      Allocator
	stats      Stats // but for the quorum's
	quorum     quorum.Quorum
	member     *kit.Member
	term       uint64            // of its membership
	unresolved quorum.Unresolved // accepts in flight: a buffer of each has no owner
	pace       kit.Retry         // paces attempts at a bucket where others are
	mending    *rdma.Batch       // what is written in place in the background

	// Of the operation at work.
	bucket   uint64
	at       [quorum.MaxReplicas]rdma.Addr
	replicas [quorum.MaxReplicas]replica
	spares   [quorum.MaxReplicas]uint16 // buffers that are the operation's; 0: none
	limit    time.Duration              // of steps that others may make up for
	found    []byte                     // the value that was read: lives in a batch of the last step, or in saved; nil: empty
	round    uint64                     // in which it was accepted
	has      bool                       // anything was found
	saved    [BufferBytes]byte
	promise  uint64      // round of an attempt
	base     value       // what it goes on from
	next     value       // what it makes of that
	encoded  []byte      // next, in the batch that is being made
	offered  quorum.Mask // replicas asked to accept of which nothing is known yet
	entries  [Slots]Entry
}

// replica is what an operation knows of one.
type replica struct {
	word  Word
	known bool   // it was read
	since uint64 // round in which its value was accepted
	sure  bool   // since is known
	mine  bool   // the word is what this attempt's CAS made of it
}

// attempts bounds how often one replica is asked in a step: for its word, its buffer, and a CAS.
const attempts = 4

// Open returns a worker's view of a directory.
func Open(ep rdma.Endpoint, l *Layout, a Allocator, o Options) *Client {
	c := &Client{Layout: l, ep: ep, alloc: a, member: o.Member, quorum: quorum.New(ep, quorum.Options{Slow: o.Slow, Timeout: o.Timeout, Attempts: attempts})}
	trips := func(n int, _ *rand.Rand) time.Duration { return c.quorum.Slow()/4<<min(n, 4) + 1 }
	c.pace = kit.Retry{Env: ep, Pause: kit.Spread(1, trips)}
	if c.member != nil {
		c.term = c.member.Term()
	}
	return c
}

// Stats returns the client's counters.
func (c *Client) Stats() Stats {
	s := c.stats
	s.Stats = c.quorum.Stats()
	s.Leaked += c.unresolved.Dropped
	return s
}

// Close waits for accepts in flight, no longer than the Timeout, so that no buffer is lost, and
// gives batches back. The endpoint stays open.
func (c *Client) Close() {
	_ = c.Land() // whose buffers are not known then is counted as Leaked
	c.quorum.Release()
	c.unresolved.Release()
	if c.mending != nil {
		c.mending.Release()
		c.mending = nil
	}
}

// The steps of the protocol.
const (
	// StepReadOthers is one where there are several replicas.
	StepReadOthers rdma.Step = "read other replicas"

	stepRead    rdma.Step = "read bucket"
	stepFetch   rdma.Step = "fetch bucket" // from a buffer
	stepPrepare rdma.Step = "prepare"
	stepAccept  rdma.Step = "accept"
	stepMend    rdma.Step = "mend in place" // in the background
	stepCount   rdma.Step = "count entries"
)

// Steps are the steps of the protocol, as traces show them and faults can be set to them.
var Steps = []rdma.Step{stepRead, StepReadOthers, stepFetch, stepPrepare, stepAccept, stepMend, stepCount}

// begin makes a bucket the one at work.
func (c *Client) begin(bucket uint64) {
	c.settleUnresolved()
	c.bucket, c.limit = bucket, c.quorum.Slow()
	c.place(bucket, c.at[:c.Replicas])
}

// follow forgets what the client owned, and has in flight, when the worker's membership changed: it
// is its own no more. See package kit, R1 and R2.
func (c *Client) follow() {
	if c.moved() {
		c.term = c.member.Term()
		c.unresolved.Release()
		c.spares = [quorum.MaxReplicas]uint16{}
	}
}

func (c *Client) moved() bool { return c.member != nil && c.term != c.member.Term() }

// Hurry returns how long an allocation may wait for a node, 0 when the step fails without it.
func (c *Client) Hurry() time.Duration { return c.quorum.Hurry() }

func (c *Client) majority() int    { return quorum.Majority(c.Replicas) }
func (c *Client) all() quorum.Mask { return quorum.All(c.Replicas) }

// gather is a step at replicas of the bucket at work.
func (c *Client) gather(step rdma.Step, from quorum.Mask, need int, ask func(b *rdma.Batch, r int) error,
	answer func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict) error {
	if c.moved() { // by what the caller's decide did
		return fmt.Errorf("the worker's membership has changed: %w", rdma.ErrStale)
	}
	return c.quorum.Gather(step, c.at[:c.Replicas], 0, from, need, ask, answer)
}

// passing reports whether another attempt may succeed after a step has failed: a node died or was
// slow since it was asked before, or another client was at the bucket.
func passing(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrTimeout) ||
		errors.Is(err, quorum.ErrRefused) || errors.Is(err, quorum.ErrAttempts)
}

// patience bounds an operation that others keep from ending.
type patience struct {
	began time.Duration
	kit.Retry
	top  Word // the highest that was met
	idle int  // looks since it rose
}

// again pauses before the next try, or fails. The pause is short, since a writer has a trip or two
// to go, and random, so that two do not meet again and again.
func (p *patience) again(c *Client) error {
	if now := c.ep.Now(); p.Tries == 0 {
		p.began = now
	} else if now-p.began > c.quorum.Timeout() {
		return fmt.Errorf("meet others for %v: %w", c.quorum.Timeout(), rdma.ErrTimeout)
	}
	p.Wait()
	return nil
}

// ErrBucketFull ends a change that leaves more than Slots entries in a bucket. It wraps
// client.ErrFull. Memory elsewhere does not help.
var ErrBucketFull = fmt.Errorf("the bucket has no room: %w", client.ErrFull)

// uncertain wraps the failure of a change that may have taken effect.
func uncertain(err error) error { return fmt.Errorf("%w: %w", client.ErrUncertain, err) }
