package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Enter begins with the view in which the layout was read. If that is busy, the leaders may not
// have taken over: the shards are dirty, and their intents are read again when the view is idle.
func (s *Session) Enter() {
	s.TakeoverPending = make([]bool, s.Table.Shards)
	for shard := range s.TakeoverPending {
		s.TakeoverPending[shard] = s.Table.Replicas > 1 && s.View.Busy
		s.Shards[shard].Dirty = s.TakeoverPending[shard]
	}
}

// errMending is the error of an operation that used up its time while the view was busy.
var errMending = fmt.Errorf("the pool's view is busy: %w", rdma.ErrTimeout)

// waiting reports whether the view forbids changes (C5).
func (o *Op) waiting() bool { return o.Table.Replicas > 1 && o.View.Busy }

// AwaitIdleView waits until the view is idle (C5). It joins new views meanwhile. The error wraps
// rdma.ErrTimeout when the time is used up.
func (o *Op) AwaitIdleView() error {
	if !o.waiting() {
		return nil
	}
	ok, err := o.View.AwaitIdle(0, kit.Retry{Env: o.EP, Pause: kit.WhileBusy, Over: o.Over})
	switch {
	case err != nil:
		return fmt.Errorf("wait until the pool is mended: %w", err)
	case !ok:
		return errMending
	}
	return nil
}

// AwaitLeader waits until a shard's leader can be read: it is the one that led before, or the
// view is idle (C5).
func (o *Op) AwaitLeader(shard int) error {
	if o.TakeoverPending[shard] {
		return o.AwaitIdleView()
	}
	return nil
}

// Retryable reports whether an operation may go on after an error: other clients have repaired
// something, the pool's view has changed, or a node does not answer and may be unreachable only
// for a moment. It joins the new view, or waits for the node.
func (o *Op) Retryable(shard int, err error) bool {
	switch {
	case errors.Is(err, rdma.ErrClosed), errors.Is(err, rdma.ErrUnreachable) && o.Table.Replicas == 1:
		return false
	case errors.Is(err, ErrAgain):
		return true
	case errors.Is(err, rdma.ErrStale):
		return o.View.Join() == nil
	case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrUnreachable):
		return o.reach(shard)
	}
	return false
}

const (
	// reachShare: without replicas, an operation waits for an unreachable node for a quarter of
	// its timeout. Then the shard counts as down.
	reachShare = 4
	// reachPause is the first pause between two tries to reach a node.
	reachPause = 500 * time.Microsecond
)

// reach pauses before the next try to reach a shard's node. false: the operation has waited for
// long enough, or the shard has no copy any more. With replicas the master replaces a dead node,
// so the operation waits for that as long as it has time; the pauses grow, so that it joins the
// view less than joins times. A view that cannot be read is the same outage.
func (o *Op) reach(shard int) bool {
	err := o.View.Join()
	switch {
	case err == nil && o.Table.Orphan[shard], // no copy is left to wait for
		err != nil && !errors.Is(err, rdma.ErrUnreachable):
		return false
	case o.Table.Replicas > 1:
		o.EP.Sleep(min(reachPause<<min(o.reaches, 10), max(reachPause, o.Each/(Joins/2))))
		o.reaches++
		return o.Left() > 0
	case o.Left() < o.Each-o.Each/reachShare:
		return false
	}
	o.EP.Sleep(reachPause)
	return true
}

// Joins bounds how often an operation joins the pool's view: an epoch has begun each time.
const Joins = 1000

// ErrEpochs is the error of an operation during which the view never stopped changing.
var ErrEpochs = fmt.Errorf("the pool's view changes again and again: %w", rdma.ErrTimeout)
