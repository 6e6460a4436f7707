// Package directory is a replicated index that stays available while nodes die. It maps 64-bit
// hashes to locations, linearizable, without a master, a log, or code at the nodes. Any minority
// of the nodes that have a bucket may be dead or slow.
//
// A hash picks one bucket, so a pair never has entries in two buckets. Each bucket is a register
// of CASPaxos (Rystsov, 2018) on 2f+1 nodes. An acceptor is a word that is changed by CAS
// (word.go). The values lie in buffers beside the words.
//
//	Lookup  1. read the words of a majority, and at the first replica the value that lies in place
//	           If all have accepted the same round, its value is chosen, and no newer one was when
//	           the lookup began.
//	Change  1. as Lookup
//	        2. prepare: CAS the words to a higher round, at a majority. Each CAS expects the word
//	           that was read, so what was read is what the replica had accepted.
//	        3. accept: at each replica, in one chain, write a buffer with the new value, CAS the
//	           word to it, and write the value in place
//
// Why it is safe. One client's CAS promises a replica's word to a round. In that round the word
// accepts only by a CAS of the same client, or of a client that found the word below the round
// and has the promises of a majority. So of two clients that take the same round at most one has
// a majority, and all values of one bucket and round are equal: rounds need not contain the
// client's number. The rest is Paxos: a client with a majority's promises of round b continues
// from the value of the highest round that these had accepted. So it continues from all that was
// or will be chosen below b.
//
// Buffers are recycled without a third party. The client of the CAS that replaces a word's pointer
// owns the buffer that the word named. The former owner's WRITE to it came before the CAS in one
// chain, so it cannot land any more. Readers recognize a reused buffer by its bucket and round. The
// buffers of a chain in flight have no owner until it is complete.
//
// A crash leaves nothing that a client has to wait for: a promise, which the next change goes
// above; a value at a minority, which the next change continues from or overrules; and the
// buffers that the client owned, until a sweep finds them by Walk.
package directory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Options of a Client. Zero values mean defaults.
type Options struct {
	// Slow is how long a step waits for a mere majority before it asks all replicas; see
	// quorum.Options.
	Slow time.Duration
	// Timeout bounds a step that fewer than a majority answer, and an operation that loses to other
	// clients again and again; default 1 s.
	Timeout time.Duration
	// Member is the worker's membership in the pool's view, which lets a master sweep the pool
	// while clients go on. The allocator must follow the same Member. nil: the pool is not swept.
	// See package kit.
	Member *kit.Member
}

// Stats count what leaves the fast path. They only grow.
type Stats struct {
	quorum.Stats
	// Mixed counts looks that found no round which a majority has accepted.
	Mixed uint64
	// Fetches counts values read from a buffer, since what lay in place was not the word's.
	Fetches uint64
	// Settled counts lookups that brought a bucket to one round.
	Settled uint64
	// Lost counts changes that began again, since another client was active on the bucket.
	Lost uint64
	// Helped counts changes that another client completed.
	Helped uint64
	// Leaked counts buffers without a known owner.
	Leaked uint64
}

// Client is one worker. It is not safe for concurrent use.
type Client struct {
	*Layout
	// The caller owns the endpoint and the allocator.
	ep    rdma.Endpoint
	alloc buffers.Allocator
	// stats, except for the quorum's part.
	stats  Stats
	quorum quorum.Quorum
	member *kit.Member
	// term is the membership's term in which the client got what it owns. It follows with each
	// operation that begins.
	term uint64
	// unresolved are the accepts in flight: their buffers have no owner.
	unresolved quorum.Unresolved
	// pace is the back-off between attempts at a bucket with other proposers.
	pace kit.Retry
	// mending is the batch that writes in place in the background.
	mending kit.Background

	// The rest belongs to the operation at work.

	bucket   uint64
	at       [quorum.MaxReplicas]rdma.Addr
	replicas [quorum.MaxReplicas]replica
	// spares are the buffers that the operation owns; 0: none.
	spares [quorum.MaxReplicas]uint16
	// limit bounds a step that the operation can do without: see briefly.
	limit time.Duration
	// found is the value that was read, if has. It lives in a batch of the last step, or in saved.
	// nil: the bucket is empty. round is the one in which it was accepted.
	found []byte
	round uint64
	has   bool
	saved [BufferBytes]byte
	// promise is the round of an attempt, base the value that it continues from, and next the value
	// that it proposes.
	promise uint64
	base    value
	next    value
	// encoded is next, in the batch that is being built, which owns it.
	encoded []byte
	// offered are the replicas that were asked to accept and have not answered.
	offered quorum.Mask
	// entries is what Lookup returns.
	entries [Slots]Entry
}

// replica is what an operation knows of a replica.
type replica struct {
	// word is the last that was met, if known.
	word  Word
	known bool
	// since is the round in which its value was accepted, if sure. Otherwise the buffer tells.
	since uint64
	sure  bool
	// mine: a CAS of this attempt made the word what it is.
	mine bool
}

// attempts bounds how often one replica is asked in a step: for its word, for its buffer, and for
// a CAS.
const attempts = 4

// Open returns a worker's view of a directory. The buffers have BufferBytes, and a bucket's number
// picks the segment of its buffers.
func Open(ep rdma.Endpoint, l *Layout, a buffers.Allocator, o Options) *Client {
	c := &Client{Layout: l, ep: ep, alloc: a, member: o.Member,
		quorum: quorum.New(ep, quorum.Options{Slow: o.Slow, Timeout: o.Timeout, Attempts: attempts})}
	trips := func(n int, _ *rand.Rand) time.Duration { return c.quorum.Slow()/4<<min(n, 4) + 1 }
	c.pace = kit.Retry{Env: ep, Pause: kit.Spread(1, trips)}
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
// releases its batches. The endpoint stays open.
func (c *Client) Close() {
	_ = c.Land() // accepts that are still in flight are counted as Leaked
	c.quorum.Release()
	c.unresolved.Release()
	c.mending.Release()
}

// The steps of the protocol.
const (
	// StepReadOthers occurs only with several replicas.
	StepReadOthers rdma.Step = "read other replicas"

	stepRead    rdma.Step = "read bucket"
	stepFetch   rdma.Step = "fetch bucket" // from a buffer
	stepPrepare rdma.Step = "prepare"
	stepAccept  rdma.Step = "accept"
	stepMend    rdma.Step = "mend in place" // in the background
	stepCount   rdma.Step = "count entries"
)

// Steps are the steps of the protocol, as traces show them and faults are set to them.
var Steps = []rdma.Step{stepRead, StepReadOthers, stepFetch, stepPrepare, stepAccept, stepMend, stepCount}

// begin begins an operation on a bucket.
func (c *Client) begin(bucket uint64) {
	c.settleUnresolved()
	c.bucket, c.limit = bucket, c.quorum.Slow()
	c.place(bucket, c.at[:c.Replicas])
}

// follow forgets what the client had in flight, and its spares, when the worker's membership
// changed: the client does not own them any more. See package kit, R1 and R2.
func (c *Client) follow() {
	if c.moved() {
		c.term = c.member.Term()
		c.unresolved.Release()
		c.spares = [quorum.MaxReplicas]uint16{}
	}
}

// moved reports whether the membership has changed since follow.
func (c *Client) moved() bool { return c.member != nil && c.term != c.member.Term() }

// HedgeDelay returns how long an allocation may wait for a node, 0 when the step fails without it.
func (c *Client) HedgeDelay() time.Duration { return c.quorum.HedgeDelay() }

func (c *Client) majority() int    { return quorum.Majority(c.Replicas) }
func (c *Client) all() quorum.Mask { return quorum.All(c.Replicas) }

// gather is a step at replicas of the bucket at work. It fails with rdma.ErrStale, and sends
// nothing, if the caller's decide has joined another epoch: what the operation owns belongs to
// the last one.
func (c *Client) gather(step rdma.Step, from quorum.Mask, need int, ask quorum.Ask, answer quorum.Answer) error {
	if c.moved() {
		c.quorum.Forget()
		return fmt.Errorf("the worker's membership has changed: %w", rdma.ErrStale)
	}
	return c.quorum.Gather(step, c.at[:c.Replicas], 0, from, need, ask, answer)
}

// passing reports whether another attempt may succeed after a step has failed: a node died or
// became slow during the step, or another client was active on the bucket.
func passing(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrTimeout) ||
		errors.Is(err, quorum.ErrRefused) || errors.Is(err, quorum.ErrAttempts)
}

// patience bounds an operation that loses to other clients again and again.
type patience struct {
	// began is when the operation paused first.
	began time.Duration
	kit.Retry
	// top is the highest word that was met, and idle is how many looks have not found a higher one.
	top  Word
	idle int
}

// again pauses before the next attempt; or fails, if the timeout has passed since the first
// pause. The pause is short, since another proposer needs a trip or two, and random, so that two
// of them do not collide again and again.
func (p *patience) again(c *Client) error {
	if now := c.ep.Now(); p.Tries == 0 {
		p.began = now
	} else if now-p.began > c.quorum.Timeout() {
		return fmt.Errorf("meet others for %v: %w", c.quorum.Timeout(), rdma.ErrTimeout)
	}
	p.Wait()
	return nil
}

// uncertain wraps the failure of a change that may have taken effect.
func uncertain(err error) error { return fmt.Errorf("%w: %w", client.ErrUncertain, err) }
