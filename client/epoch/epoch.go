// Package epoch is how the memory of a pool is swept while its clients go on (SWARM 4.5 and 5.4, which leave it to asking all
// clients): what belongs to a client belongs to it in one epoch of the pool's view.
//
// What a sweep looks for is what nobody owns and nothing names: out-of-place buffers and objects that a crash left, objects
// of keys that were deleted. What something names can be read. Who owns what nothing names stands nowhere, since it would
// cost a trip to say so; so nobody does, in the moment in which an epoch begins:
//
//	R1  What a client has got in one epoch, and nothing names, is not its own in the next one. What it has in flight from
//	    the earlier one is fenced off (rdma.Control.Fence), or has landed, and what that replaced is not its own either.
//	R2  Under a busy view a client takes only what was never handed out. It gives nothing back, and what it replaces is
//	    nobody's.
//
// The master counts what was handed out, begins an epoch with a busy view, fences the earlier ones off, and looks. Of what
// was handed out by then, and is in no list of what is free, nobody owns anything: by R1 nobody did when the epoch began, and
// by R2 nobody has come to own it since. So nobody can make anything name it, and what is named may only become less while
// the master looks: what it once finds unnamed is garbage. A buffer is free at once: who still reads it finds by its checksum
// that it was used again.
//
// An object is not, since clients know locations. Of these there are two rules more:
//
//	R3  A location is used in the epoch in which the index named it, or an access found the object there, and in the next one.
//	    Then it is looked up again.
//	R4  An object that the master finds to be garbage in one epoch is buried at that time, or was never published. It is
//	    used again from the second next epoch on, with all its words zero.
//
// So between the last access to an object that the index named and its next life there are two fences, and no verb of the
// former life can find its words: a CAS into another object's life is impossible. An operation that a fence cuts off asks again
// what was dropped, in the next epoch, as long as R3 allows. That is what a slow client would do, and means the same.
//
// Nobody waits for a client: one that stands still for long is fenced, finds that out with its next verb, and owns nothing. Nor
// do clients wait for the master, unless they run out of what was never handed out while it sweeps.
package epoch

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Member is a worker's part in the pool's view, as it knows it. What the worker owns refers to it. It is not safe for concurrent
// use.
type Member struct {
	ep    rdma.Endpoint
	epoch uint64
	busy  bool
	term  uint64
}

// Join returns the membership of the worker of an endpoint.
func Join(ep rdma.Endpoint) (*Member, error) {
	m := &Member{ep: ep}
	return m, m.Join()
}

// Join makes the worker a member of the current view. When that is of another epoch, the worker owns nothing any more that
// nothing names.
func (m *Member) Join() error {
	v, err := m.ep.Join()
	if err != nil {
		return fmt.Errorf("join the pool's view behind epoch %d: %w", m.epoch, err)
	}
	if m.epoch != v.Epoch || m.busy != v.Busy {
		m.epoch, m.busy = v.Epoch, v.Busy
		m.term++
	}
	return nil
}

// Epoch returns the epoch that the worker joined last.
func (m *Member) Epoch() uint64 { return m.epoch }

// Term returns a number that changes when the worker joins another epoch, or the same one when it has become idle: of what was
// in flight then, nothing that it replaces is the worker's, by R1 and R2.
func (m *Member) Term() uint64 { return m.term }

// Busy tells whether the view was busy when the worker joined it last.
func (m *Member) Busy() bool { return m.busy }

// Asking whether a sweep is over begins at a few round trips, and ends where a sweep takes long anyway.
const (
	firstPause = 20 * time.Microsecond
	lastPause  = 2 * time.Millisecond
)

// Await joins until the view is idle, and of the given epoch at least, for as long as within; false: it is not.
func (m *Member) Await(epoch uint64, within time.Duration) (bool, error) {
	began, pause := m.ep.Now(), firstPause
	for {
		if err := m.Join(); err != nil {
			return false, err
		}
		if m.epoch >= epoch && !m.busy {
			return true, nil
		}
		if m.ep.Now()-began >= within {
			return false, nil
		}
		m.ep.Sleep(pause)
		pause = min(2*pause, lastPause)
	}
}
