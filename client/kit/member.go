package kit

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// How the memory of a pool is swept while its clients go on (SWARM 4.5 and 5.4, which leave it to
// asking all clients): what belongs to a client belongs to it in one epoch of the pool's view.
//
// A sweep looks for what no client owns and nothing names: out-of-place buffers and objects that a
// crash left, objects of keys that were deleted. What something names can be read. No word says
// which client owns what nothing names, since that would cost a trip; so no client owns it in the
// moment in which an epoch begins:
//
//	R1  What a client has got in one epoch, and nothing names, is not its own in the next one that is swept. In every epoch,
//	    what it has in flight from an earlier one is fenced off (rdma.Control.Fence), or has landed, and what that replaced
//	    is not its own.
//	R2  Under a busy view a client takes only what was never handed out. It gives nothing back, and what it replaces no client
//	    owns.
//
// The master counts what was handed out, begins an epoch with a busy view, fences the earlier ones
// off, and looks. Of what was handed out by then, and is in no list of what is free, no client owns
// anything: by R1 none did when the epoch began, and by R2 none has come to own it since. So none
// can make anything name it, and what is named may only become less while the master looks: what it
// once finds unnamed is garbage. A buffer is free at once: a client that still reads it finds by
// its checksum that it was used again.
//
// An object is not, since clients know locations. Of these there are two rules more:
//
//	R3  A location is used in the epoch in which the index named it, or an access found the object there, and in the next one.
//	    Then it is looked up again.
//	R4  An object that the master finds to be garbage in one epoch is buried at that time, or was never published. It is
//	    used again from the third next epoch on, which begins behind the fence of the second, with all its words zero. One
//	    that a client retires is used again from the fourth next epoch on: see package swarm.
//
// Epochs may begin without a sweep, so that objects grow old enough. The view is idle in them all
// the time, and clients keep what they own. The master writes down the epoch of each sweep before
// it looks, where each client that joins an idle view of a later epoch reads it.
//
// So between the last access to an object that the index named and its next life there are two
// fences, and no verb of the former life can find its words: a CAS into another object's life is
// impossible. An operation that a fence cuts off asks again what was dropped, in the next epoch, as
// long as R3 allows. That is what a slow client would do, and means the same.
//
// A sweep waits for no client: one that stands still for long is fenced, finds that out with its
// next verb, and owns nothing. Nor do clients wait for the master, unless they run out of what was
// never handed out while it sweeps.

// Member is a worker's part in the pool's view. What the worker knows of the pool, and what it owns
// there, belongs to the view that it joined last. It is not safe for concurrent use.
type Member struct {
	rdma.View // that was joined last; only Join and Enter change it

	ep    rdma.Endpoint
	term  uint64
	apply func(v *rdma.View)
	swept uint64                             // the latest epoch that may have been swept
	read  func(v *rdma.View) (uint64, error) // nil: each may
}

// Join returns the membership of the worker of an endpoint, in the pool's current view.
func Join(ep rdma.Endpoint) (*Member, error) {
	m := &Member{ep: ep}
	return m, m.Join()
}

// Follow has apply called with each view that is joined from now on, before the Member changes to
// it, also when nothing changed.
func (m *Member) Follow(apply func(v *rdma.View)) { m.apply = apply }

// FollowSweeps has read called in each new epoch that is joined while it is idle, for the latest
// epoch that the master began to sweep.
func (m *Member) FollowSweeps(read func(v *rdma.View) (uint64, error)) { m.read = read }

// Keeps reports whether what the worker got in an epoch is its own still (R1).
func (m *Member) Keeps(epoch uint64) bool { return m.swept <= epoch }

// Join makes the worker a member of the current view. In another epoch the verbs of the epochs
// before have landed, or never land.
func (m *Member) Join() error {
	v, err := m.ep.Join()
	if err != nil {
		return fmt.Errorf("join the pool's view behind epoch %d: %w", m.Epoch, err)
	}
	if v.Epoch != m.Epoch {
		m.swept = v.Epoch
		if m.read != nil && !v.Busy {
			if swept, err := m.read(&v); err == nil {
				m.swept = swept
			}
		}
	}
	m.Enter(v)
	return nil
}

// An operation waits for a node that does not answer for a part of its time: it may be out of reach
// for a moment.
const (
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// Rejoin reports whether it makes sense to go on behind an error, with some of an operation's
// timeout left: verbs were fenced off, and the worker has joined the view again; or a node does not
// answer, for which it has paused.
func (m *Member) Rejoin(err error, left, timeout time.Duration) bool {
	switch {
	case left <= 0:
		return false
	case errors.Is(err, rdma.ErrStale):
		return m.Join() == nil
	case !errors.Is(err, rdma.ErrNodeDown) || left < timeout-timeout/reachShare:
		return false
	}
	if err := m.Join(); err != nil && !errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrUnreachable) {
		return false
	}
	m.ep.Sleep(reachPause)
	return true
}

// Enter makes a view, which the endpoint has joined, the worker's: a master's endpoint joins by
// itself.
func (m *Member) Enter(v rdma.View) {
	if m.apply != nil {
		m.apply(&v)
	}
	if m.Epoch != v.Epoch || m.Busy != v.Busy {
		m.term++
	}
	m.View = v
}

// Term returns a number that changes when the worker joins another epoch, or the same one when it
// has become idle: of what was in flight then, nothing that it replaces is the worker's, by R1 and
// R2.
func (m *Member) Term() uint64 { return m.term }

// WhileBusy is the pause before a worker asks again whether the view is idle: a master takes some
// round trips, or copies for long.
var WhileBusy = Doubling(20*time.Microsecond, 2*time.Millisecond)

// AwaitIdle joins until the view is idle, and of the given epoch at least; false: the time of r was
// over before.
func (m *Member) AwaitIdle(epoch uint64, r Retry) (bool, error) {
	for m.Busy || m.Epoch < epoch {
		if !r.Again() {
			return false, nil
		}
		if err := m.Join(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Await joins at least once, and then as AwaitIdle, for as long as within.
func (m *Member) Await(epoch uint64, within time.Duration) (bool, error) {
	began := m.ep.Now()
	if err := m.Join(); err != nil {
		return false, err
	}
	return m.AwaitIdle(epoch, Retry{Env: m.ep, Pause: WhileBusy,
		Over: func() bool { return m.ep.Now()-began >= within }})
}
