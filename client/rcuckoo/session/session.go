// Package session is what all parts of an RCuckoo client share while an operation is at work: the
// endpoint and the layout, the operation with its deadline and its heartbeat (Op), what the worker
// knows of each shard, and its place in the pool's view. An Op is passed to all that an operation
// calls.
package session

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Session is what a worker's verbs go through, and what it knows of each shard and of the pool's
// view.
type Session struct {
	Table *table.Layout
	EP    rdma.Endpoint
	// ID is at least 1 and at most Params.Clients. The membership gives it to one living client
	// at a time.
	ID rdma.ClientID
	// Opt has no zero durations: open fills in the defaults.
	Opt Options
	// View is the worker's membership in the pool's view.
	View *kit.Member
	// Shards has an element for each shard.
	Shards []ShardState
	// TakeoverPending are the shards that have a leader which is not known to have taken over, as
	// the view was busy when the worker joined it. Nothing is read from these shards meanwhile.
	TakeoverPending []bool
	// ending is the WRITE that ended the last intent, of endingSeq in shard endingIn. The worker
	// owns the batch until Ended releases it. nil: none is in flight.
	ending    *rdma.Batch
	endingIn  int
	endingSeq uint64
	// PendingCleanup are the shards where earlier operations left something: see DeferCleanup.
	PendingCleanup []int
	// NextCleanup is when the worker tries again to settle them.
	NextCleanup time.Duration
	// reaches is how often the operation at work has waited for an unreachable node. It sets the
	// next pause.
	reaches int
	// heartbeats counts those that the worker sent while backups kept it waiting. It only grows,
	// so no two of these heartbeats are equal.
	heartbeats uint64
	Stats      Stats
}

// Op is an operation at work: the session, and the limits of the operation. It is passed to all
// that the operation calls. A part of it that has less time, or other heartbeats, gets an op of its
// own: see Bounded.
type Op struct {
	*Session
	// Each is how long one batch may wait for its nodes.
	Each time.Duration
	// Until is when the operation has used up its time, on the endpoint's clock.
	Until time.Duration
	// Heartbeat sends a heartbeat to the leader while a batch takes long, so that no other client
	// takes the worker for a failed one. nil: no client waits for the worker, or there are no
	// backups.
	Heartbeat func(*Op) error
	Pace      kit.Retry // paces an operation that waits for other clients
}

// New returns the session of a worker. The error wraps rdma.ErrFull when the pool was made
// for fewer clients, and ErrParams when it was made for shorter timeouts.
func New(ep rdma.Endpoint, l *table.Layout, v *kit.Member, o Options) (*Session, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	o.Failure = cmp.Or(o.Failure, defaultFailure)
	o.Failure = min(o.Failure, o.Timeout/failureShare) // so that an operation outlives a few failed clients
	id := ep.Client()
	switch {
	case int(id) > l.Clients: // it has no records in the pool
		return nil, fmt.Errorf("client %d: the pool was made for %d clients: %w", id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w",
			o.Timeout, l.Timeout, table.ErrParams)
	}
	return &Session{Table: l, View: v, EP: ep, ID: id, Opt: o, Shards: make([]ShardState, l.Shards)}, nil
}

// NewOp returns an operation that has not begun. A worker uses it again and again.
func (s *Session) NewOp() *Op { return s.Bounded(s.Opt.Timeout, 0, nil) }

// Begin starts an operation: it sets the time limit, and no heartbeat is needed yet.
func (o *Op) Begin() *Op {
	o.Until, o.Heartbeat, o.reaches = o.EP.Now()+o.Opt.Timeout, nil, 0
	return o
}

// Bounded returns the operation with other limits. It has the same session: what a part of an
// operation notes of a shard, the whole operation sees.
func (s *Session) Bounded(each, until time.Duration, heartbeat func(*Op) error) *Op {
	o := &Op{Session: s, Each: each, Until: until, Heartbeat: heartbeat}
	o.Pace = kit.Retry{Env: s.EP, Pause: forLocks(s.Opt.Failure), Over: o.Over}
	return o
}

// Left is how long the operation at work may still take.
func (o *Op) Left() time.Duration { return max(o.Until-o.EP.Now(), 0) }

// Over reports whether the operation at work has used up its time.
func (o *Op) Over() bool { return o.Left() == 0 }

// Do posts a batch as a step of the protocol and waits for it. When that takes too long the error
// wraps rdma.ErrTimeout, and verbs that are in flight may land at any time. The caller owns the
// batch, in each case.
func (o *Op) Do(step rdma.Step, b *rdma.Batch) error {
	if o.Heartbeat != nil {
		return o.doWithHeartbeat(step, b)
	}
	return rdma.Do(o.EP, b.As(step), o.Each)
}

// A client that does not get a lock pauses, for longer each time and at random. The longest pause
// is far shorter than a failure timer, since each try is a heartbeat.
const (
	FirstPause  = time.Microsecond
	LastPause   = time.Millisecond
	PauseShares = 16 // of the failure timer
)

// forLocks returns these pauses: each is drawn between half the first pause and a bound that
// doubles.
func forLocks(failure time.Duration) kit.Pause {
	return kit.Spread(FirstPause/2, kit.Doubling(FirstPause, min(LastPause, failure/PauseShares)))
}

// Carry posts a batch as a step, waits for it and releases it. An error says what was to be done.
// It takes over the batch in each case.
func (o *Op) Carry(step rdma.Step, shard int, b *rdma.Batch, what string, args ...any) error {
	if err := o.Do(step, b); err != nil {
		return o.Failed(shard, b, fmt.Errorf(what+": %w", append(args, err)...))
	}
	b.Release()
	return nil
}

// KeepFlying takes over a batch that failed: it releases the batch, or keeps it while verbs of it
// that change something are in flight. abandon waits for those, and so there are few batches.
func (s *Session) KeepFlying(shard int, b *rdma.Batch) {
	switch {
	case b == nil:
	case b.Finished(), onlyReads(b):
		b.Release()
	default:
		st := &s.Shards[shard]
		st.Flying = append(st.Flying, b)
	}
}

func onlyReads(b *rdma.Batch) bool {
	for i := range b.Len() {
		if b.Op(i).Verb != rdma.Read {
			return false
		}
	}
	return true
}

// Briefly returns the operation with a share of its time, so that another shard's node does not
// delay it for longer.
func (o *Op) Briefly() *Op {
	each := o.Each / reachShare
	return o.Bounded(each, min(o.Until, o.EP.Now()+each), o.Heartbeat)
}

// Repeat calls f until its error does not wrap ErrAgain, with pauses, as long as there is time.
func (o *Op) Repeat(f func() error) error {
	for r := o.Pace; ; {
		if err := f(); !errors.Is(err, ErrAgain) {
			return err
		}
		if !r.Again() {
			return ErrWaited
		}
	}
}

// ReadWord reads one word of the pool's memory.
func (o *Op) ReadWord(a rdma.Addr) (uint64, error) {
	b := o.EP.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := o.Do(steps.ReadWord, b); err != nil {
		return 0, err
	}
	return le.Uint64(op.Buf), nil
}

// doWithHeartbeat is do for batches that other clients wait for. A backup may be slow, or
// unreachable for a moment, so the worker sends heartbeats to the leader while it waits. An error
// of a heartbeat ends the wait, while verbs of the batch may be in flight.
func (o *Op) doWithHeartbeat(step rdma.Step, b *rdma.Batch) error {
	if err := o.EP.Post(b.As(step)); err != nil {
		return err
	}
	// As many heartbeats as other clients look, so no look finds the worker unchanged for long.
	part, limit := o.Opt.Failure/LookShares, o.EP.Now()+o.Each
	for {
		err := o.EP.Wait(b, rdma.All, min(part, max(limit-o.EP.Now(), 0)))
		switch {
		case err == nil:
			return b.Err()
		case !errors.Is(err, rdma.ErrTimeout) || o.EP.Now() >= limit:
			return err
		}
		if err := o.Heartbeat(o.WithHeartbeat(nil)); err != nil { // the heartbeat waits for the leader alone
			return err
		}
	}
}

// WithHeartbeat returns the operation with another heartbeat.
func (o *Op) WithHeartbeat(heartbeat func(*Op) error) *Op {
	return o.Bounded(o.Each, o.Until, heartbeat)
}

// SendHeartbeat sends a heartbeat of the worker's intent in a shard, and waits for it.
func (o *Op) SendHeartbeat(shard int) error {
	b := o.EP.Batch()
	o.AddHeartbeat(b, shard)
	return o.Carry(steps.WriteBackups, shard, b, "wait for the backups of shard %d", shard)
}

// AddHeartbeat adds a heartbeat that differs from all before it. Bit 62 sets it apart from the
// heartbeats of clients that wait for a lock, which are small numbers.
func (o *Op) AddHeartbeat(b *rdma.Batch, shard int) {
	o.heartbeats++
	b.WriteWord(o.Table.IntentAt(shard, o.ID).Add(table.IntentHeartbeat), 1<<62|o.heartbeats)
}

// Failed takes over a batch that failed, and returns err. Verbs of it may still land.
func (s *Session) Failed(shard int, b *rdma.Batch, err error) error {
	s.KeepFlying(shard, b)
	return err
}

var (
	// ErrAgain sends an operation back to its beginning: nothing is held, and nothing was changed.
	ErrAgain = errors.New("begin again")
	// ErrWaited: the time of the operation is used up by waiting for locks. Nothing was changed.
	ErrWaited = fmt.Errorf("others hold its locks: %w", rdma.ErrTimeout)
)

// LookShares is how many looks there are in the time of a failure timer.
const LookShares = 8
