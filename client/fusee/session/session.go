// Package session is a worker at work in a FUSEE pool: its endpoint, the view that it has joined
// and the layout in that view, the deadline of its operation, its numbers, and the names of all
// steps. The parts of a client (operations, memory) share one Session, and so do those of a master.
package session

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Session is a worker at work in a pool: its endpoint and identity, the view that it has joined
// and where everything lies in that, and the deadline of its operation. All parts of a client share
// one. It is not safe for concurrent use.
type Session struct {
	*layout.Layout
	// The worker's endpoint is its opener's, which closes it.
	rdma.Endpoint
	ID rdma.ClientID
	// OpTimeout is Options.Timeout: at most the pool's, which is layout.Timeout.
	OpTimeout time.Duration
	// The pool's membership.
	View *kit.Member
	// Numbers for operations and tombstones: see ceiling.go.
	Numbers Numbers
	// Deadline of the current operation; see Until.
	Deadline time.Duration
	// exempted is by how much Exempt has moved the deadline.
	exempted time.Duration
	// Clock is when the current operation began, or later: a time that costs nothing to read.
	Clock time.Duration
	// Waited is for how long the current operation has waited for frees in flight.
	Waited time.Duration
	// Pace of an operation that waits for other clients. Each loop takes a copy of it.
	Pace kit.Retry
	// Damage is the first damage that was seen in the background. Every later operation returns
	// it.
	Damage error
	Stats  Stats
}

// Stats count what the protocol did beyond its fast path. They only grow.
type Stats struct {
	// Accesses to the index cache, by how they ended.
	Hits, Misses, Invalid, Bypassed uint64
	// Writes won by rule 1, 2, 3; at 0 those lost.
	Rules [4]uint64
	// INSERTs that gave way to another of the same key.
	Yields uint64
	// Blocks allocated, adopted, given a new size class, and left to others in a full pool.
	Blocks, Adopted, Converted, Lent uint64
	// Objects that others freed and this client took back.
	Reclaimed uint64
	// Pauses of operations that wait for other clients.
	Retries uint64
	// Operations that were cut off and waited for the master.
	Mended uint64
	// Pairs read from another replica than the first, of which the node did not answer.
	Backups uint64
}

// Do posts a batch as a step of the protocol and waits for all of it. The caller releases the
// batch. The error wraps rdma.ErrTimeout when verbs are still in flight; those end in the batch's
// own buffers.
//
// A batch may be complete in part when it fails: each Op has an error of its own.
func (s *Session) Do(step rdma.Step, b *rdma.Batch) error {
	return rdma.Do(s.Endpoint, b.As(step), s.OpTimeout)
}

// Read reads n bytes as a step of the protocol. The caller owns what it returns.
func (s *Session) Read(step rdma.Step, a rdma.Addr, n int) ([]byte, error) {
	return rdma.ReadBytes(s.Endpoint, step, a, n, s.OpTimeout)
}

// ReadSlot reads one replica of a slot; 0 is the primary.
func (s *Session) ReadSlot(step rdma.Step, at race.Slot, replica int) (race.Word, error) {
	w, err := rdma.ReadWord(s.Endpoint, step, s.Index.Address(at, replica), s.OpTimeout)
	return race.Word(w), err
}

// Swap CASes one word, and returns what it held. What it returns means nothing when there is an
// error.
func (s *Session) Swap(step rdma.Step, a rdma.Addr, expect, value uint64) (found uint64, err error) {
	b := s.Batch()
	defer b.Release()
	op := b.CompareSwap(a, expect, value)
	err = s.Do(step, b)
	return op.Result, err
}

// Fence returns when nothing that was posted before is in flight. It posts a READ to every node,
// which waits for earlier atomics and comes after earlier WRITEs to that node.
func (s *Session) Fence() error {
	b := s.Batch()
	defer b.Release()
	for _, n := range s.Holders {
		b.Read(s.Ceiling(s.ID, n), 8).Fence = true
	}
	return s.Do(StepProbe, b)
}

// IsLost reports whether an item has no replica left. The view then places it on a node that is
// gone, so that the list is never empty.
func (s *Session) IsLost(place []node.Replica) bool {
	return s.View.Gone(place[0].Node)
}

// Interrupted reports whether an operation that failed so may succeed in the next view, and has
// nothing in flight: its view is stale, or a node is down. A wait that timed out has verbs in
// flight.
//
// ErrStale says that nothing was posted, or that the fabric dropped it: the client is of an older
// view. ErrNodeDown comes with the completion of a verb, or at once when the fabric knows that the
// node is down.
func Interrupted(err error) bool {
	return (errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrNodeDown)) && !errors.Is(err, rdma.ErrTimeout)
}

// IsGone reports whether the node that failed a verb is gone from the view by which the verb was
// sent. Then what was asked for has no other replica, and waiting for a later view is no use.
func (s *Session) IsGone(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	return ok && s.View.Gone(n)
}

// Answers reports whether the node that failed a verb serves after all: it reads one word of its
// header.
func (s *Session) Answers(cause error) bool {
	n, ok := rdma.FailedNode(cause)
	if ok {
		_, err := s.Read(StepProbe, rdma.At(n, 0), 8)
		ok = err == nil
	}
	return ok
}

// Values of Session.Deadline besides a time. A Close and a master's work never end at a deadline,
// since they are no operations: each of their waits has a limit of its own.
const (
	Unset time.Duration = 0 // the operation has not read the clock yet
	Never time.Duration = math.MaxInt64
)

// Start begins an operation, also one that begins again with its whole time: it has no deadline
// yet, nothing was exempt, and it has not waited for frees.
func (s *Session) Start() { s.Deadline, s.Waited, s.exempted = Unset, 0, 0 }

// Until returns the current operation's deadline. Start has cleared it, and the first call sets
// it. So a SEARCH that waits for nothing does not read the clock. An operation that begins again
// in another view keeps its deadline.
func (s *Session) Until() time.Duration {
	if s.Deadline == Unset {
		s.Deadline = s.Now() + s.OpTimeout
	}
	return s.Deadline
}

// Exempt moves the current operation's deadline by the time since a moment: what the worker did
// since then it did for others. Where that ended in an error it does not: the operation has waited
// for a node, and may begin again in the next view. It reads the clock, so Clock is not older than
// what it did.
func (s *Session) Exempt(since time.Duration, err error) {
	s.Clock = s.Now()
	if err == nil && s.Deadline != Unset && s.Deadline != Never {
		s.Deadline += s.Clock - since
		s.exempted += s.Clock - since
	}
}

// Age returns for how long the current operation has lasted at a moment, since the first call of
// Until, with all that was exempt. 0: it has no deadline.
func (s *Session) Age(now time.Duration) time.Duration {
	return max(0, now-(s.Until()-s.OpTimeout-s.exempted))
}

// ALittleBit is how long an operation sleeps while it waits for another client (Algorithm 1, line
// 18). It begins with about a round trip: a winner needs two or three.
var ALittleBit = kit.Doubling(2*time.Microsecond, 200*time.Microsecond)

// Overdue reports whether the current operation has used up its time.
func (s *Session) Overdue() bool { return s.Now() > s.Until() }

// WaitLimit returns when a wait that begins now has to end: at the operation's deadline, and
// after one timeout at most, also where there is no deadline.
func (s *Session) WaitLimit() time.Duration { return min(s.Until(), s.Now()+s.OpTimeout) }

// RetryUntil paces work that ends at a limit of its own, not at the operation's deadline.
func (s *Session) RetryUntil(p kit.Pause, limit time.Duration) kit.Retry {
	return kit.Retry{Env: s.Endpoint, Pause: p, Over: func() bool { return s.Now() > limit }}
}

// ErrDeadline is wrapped when an operation ran out of time without having changed anything, and
// with nothing in flight. It wraps rdma.ErrTimeout, so code that asks whether verbs are in flight
// has to look for both: see InFlight.
var ErrDeadline = fmt.Errorf("the operation %w", rdma.ErrTimeout)

// TimedOut returns an error that wraps ErrDeadline.
func TimedOut(what string) error { return fmt.Errorf("%s: %w", what, ErrDeadline) }

// Fault takes the error of background work, and stores the first damage. The next operation
// returns it. Any other error is dropped: the work is tried again.
func (s *Session) Fault(err error) {
	if s.Damage == nil && errors.Is(err, client.ErrDamaged) {
		s.Damage = err
	}
}

// WordOf returns the slot's word that a READ of 8 bytes has brought.
func WordOf(op *rdma.Op) race.Word { return race.Word(layout.LE.Uint64(op.Buf)) }

// InFlight reports whether verbs of an operation that failed so may still be on their way:
// waiting for them timed out.
func InFlight(err error) bool {
	return errors.Is(err, rdma.ErrTimeout) && !errors.Is(err, ErrDeadline)
}
