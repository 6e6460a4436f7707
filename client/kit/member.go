package kit

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// How the memory of a pool is swept while its clients go on (SWARM 4.5 and 5.4, which ask all
// clients instead). The idea: a client owns memory only within one epoch of the pool's view.
//
// A sweep looks for memory that no client owns and that nothing names: out-of-place buffers and
// objects that a crash left, and objects of keys that were deleted. What is named can be found by
// reading. But no word says which client owns what is not named: that would cost a trip. So
// ownership ends when an epoch begins:
//
//	R1  What a client got in one epoch, and nothing names, it does not own from the beginning of
//	    the next epoch that is swept. When any epoch begins, what the client has in flight from an
//	    earlier one is fenced off (rdma.Control.Fence), or has landed, and the client does not own
//	    what that replaced.
//	R2  Under a busy view a client takes only what was never handed out. It gives nothing back,
//	    and no client owns what it replaces.
//
// The master counts what was handed out, begins an epoch with a busy view, fences earlier epochs
// off, and examines memory. Of what was handed out by then and is not in a free list, no client
// owns anything: by R1 no client did when the epoch began, and by R2 none has come to own it since.
// So no client can make a word name it. While the master examines memory, the set of named items
// can only shrink: what it once finds unnamed is garbage. A buffer is free at once: a client that
// still reads it sees by the checksum that it was reused.
//
// An object is not free at once, since clients cache locations. For objects there are two more
// rules:
//
//	R3  A location is used in the epoch in which the index named it, or an access found the object
//	    there, and in the next one. Then it is looked up again.
//	R4  An object that the master finds to be garbage in one epoch is ended at that time, or was
//	    never published. It is reused from the third next epoch on, which begins behind the fence
//	    of the second, with all its words zero. One that a client retires is reused from the
//	    fourth next epoch on: see package swarm.
//
// Epochs may begin without a sweep, so that objects grow old enough. The view is idle in them all
// the time, and clients keep what they own. The master writes down the epoch of each sweep before
// it looks, where each client that joins an idle view of a later epoch reads it.
//
// So two fences lie between the last access to an object that the index named and its next use. No
// verb of the former use finds its words: a CAS into another object's life is impossible. An
// operation that a fence interrupts repeats, in the next epoch, what was dropped, as long as R3
// allows. That is what a slow client would do, and has the same effect.
//
// A sweep waits for no client: a client that is stopped for long is fenced off, learns that with
// its next verb, and owns nothing. And clients do not wait for the master, unless they run out of
// memory that was never handed out while it sweeps.

// Member is a worker's membership in the pool's view. What the worker knows about the pool, and
// what it owns there, belongs to the view that it joined last. It belongs to the worker and is not
// safe for concurrent use. The zero Member has joined no view: its epoch is 0 and idle for ever.
type Member struct {
	// The view that was joined last. Only Join and Enter change it.
	rdma.View

	ep rdma.Endpoint
	// See Term.
	term  uint64
	apply func(v *rdma.View)
	swept uint64                             // the latest epoch that may have been swept
	read  func(v *rdma.View) (uint64, error) // nil: each may
}

// Join returns the membership of an endpoint's worker, in the pool's current view.
func Join(ep rdma.Endpoint) (*Member, error) {
	m := &Member{ep: ep}
	return m, m.Join()
}

// ReadHeader joins the pool's current view and reads the pool's header in it.
func ReadHeader(ep rdma.Endpoint) (node.Header, *Member, error) {
	m, err := Join(ep)
	if err != nil {
		return node.Header{}, nil, err
	}
	h, err := node.ReadHeader(ep, len(m.Members))
	return h, m, err
}

// Follow makes the Member call apply with each view that is joined from now on, also an unchanged
// one, before the Member's fields change.
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

// An operation waits for a node that does not answer only for a part of its time: for the first
// quarter. The node may be unreachable for a moment.
const (
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// Rejoin reports whether an operation should go on after an error, with left of its timeout left.
// It should if verbs were fenced off, and the worker has joined the view again; and if a node does
// not answer, after a pause.
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

// Enter sets a view that the endpoint has joined already: a master's endpoint joins by itself.
func (m *Member) Enter(v rdma.View) {
	if m.apply != nil {
		m.apply(&v)
	}
	if m.Epoch != v.Epoch || m.Busy != v.Busy {
		m.term++
	}
	m.View = v
}

// Term returns a number that changes when the worker joins another epoch, or when the epoch becomes
// idle. What verbs that were in flight then replace does not belong to the worker, by R1 and R2.
func (m *Member) Term() uint64 { return m.term }

// WhileBusy is the pause before a worker asks again whether the view is idle. A master takes a few
// round trips, or copies for long.
var WhileBusy = Doubling(20*time.Microsecond, 2*time.Millisecond)

// AwaitIdle joins until the view is idle and has at least the given epoch. It reports false if the
// time of r is over before.
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

// Await joins at least once, and then waits as AwaitIdle does, for at most within.
func (m *Member) Await(epoch uint64, within time.Duration) (bool, error) {
	began := m.ep.Now()
	if err := m.Join(); err != nil {
		return false, err
	}
	return m.AwaitIdle(epoch, Retry{Env: m.ep, Pause: WhileBusy,
		Over: func() bool { return m.ep.Now()-began >= within }})
}
