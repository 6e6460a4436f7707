package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// control lets a worker reach what lies outside of the memory nodes: change happens at one moment,
// a message's way after it was asked for, and the answer takes another. To CrashAt it counts as a
// verb.
func (s *scheduler) control(change func()) error {
	if s.closing() {
		return rdma.ErrClosed
	}
	w := s.current
	if w == nil {
		change()
		return nil
	}
	if w.dead() {
		return w.die()
	}
	w.allow(1)
	s.pause()
	if s.closing() {
		return rdma.ErrClosed
	}
	change()
	if w.dead() {
		return w.die()
	}
	s.pause()
	return nil
}

// membership is the pool's view, its master and the store's configuration.
type membership struct {
	sched   *scheduler
	pool    *pool
	ids     *identities
	net     *network
	view    rdma.View
	role    rdma.Role
	tenures uint64
	config  rdma.Config
}

// clock returns the virtual time.
func (ms *membership) clock() time.Duration { return time.Duration(ms.sched.now()) }

// View returns the pool's view. It takes no time; Join does.
func (ms *membership) View() rdma.View {
	v := ms.view
	v.Members = slices.Clone(v.Members)
	return v
}

// Advance replaces the view's state.
func (ms *membership) Advance(from, to rdma.State) (ok bool, err error) {
	if err := from.Becomes(to); err != nil {
		return false, fmt.Errorf("advance the view: %w", err)
	}
	err = ms.sched.control(func() {
		if ok = ms.view.Epoch == from.Epoch && ms.view.Busy == from.Busy; ok {
			ms.view.Epoch, ms.view.Busy = to.Epoch, to.Busy
		}
	})
	return ok, err
}

// SetMember replaces one node's state in the view.
func (ms *membership) SetMember(epoch uint64, node int, from, to rdma.Member) (ok bool, err error) {
	if node < 0 || node >= len(ms.pool.nodes) {
		return false, fmt.Errorf("change member %d of %d: %w", node, len(ms.pool.nodes), rdma.ErrAccess)
	}
	if err := from.Becomes(to, epoch); err != nil {
		return false, fmt.Errorf("change member %d: %w", node, err)
	}
	err = ms.sched.control(func() {
		if ok = ms.view.Busy && ms.view.Epoch == epoch && ms.view.Members[node] == from; ok {
			ms.view.Members[node] = to
		}
	})
	return ok, err
}

// Fence drops what workers of earlier epochs have in flight.
func (ms *membership) Fence(epoch uint64) error {
	return ms.sched.control(func() {
		ms.net.fenced = max(ms.net.fenced, epoch)
		ms.sched.trace(Event{Kind: Fence, Worker: "all", Value: epoch})
	})
}

// Expel kills a node for all workers.
func (ms *membership) Expel(epoch uint64, node int) (err error) {
	if node < 0 || node >= len(ms.pool.nodes) {
		return fmt.Errorf("expel node %d of %d: %w", node, len(ms.pool.nodes), rdma.ErrAccess)
	}
	lost := ms.sched.control(func() {
		if ms.view.Epoch != epoch || !ms.view.Busy {
			err = fmt.Errorf("expel node %d in epoch %d, which is over: %w", node, epoch, rdma.ErrStale)
			return
		}
		ms.pool.nodes[node].expelled = true
		ms.pool.kill(node)
	})
	return errors.Join(err, lost)
}

// TryMaster makes owner the master when there is none, and fences off the last one if its tenure
// ran out.
func (ms *membership) TryMaster(owner rdma.ClientID, lease time.Duration) (r rdma.Role, ok bool, err error) {
	err = ms.sched.control(func() {
		if ok = ms.role.Owner == 0 || ms.clock() >= ms.role.Until; ok {
			if last := ms.ids.holder(ms.role.Owner); last != nil && ms.role.Owner != owner {
				ms.ids.fenceOff(last)
			}
			ms.tenures++
			ms.role = rdma.Role{Owner: owner, Epoch: ms.tenures, Until: ms.clock() + lease}
		}
		r = ms.role
	})
	return r, ok, err
}

// Renew prolongs a tenure.
func (ms *membership) Renew(r rdma.Role, lease time.Duration) (now rdma.Role, ok bool, err error) {
	err = ms.sched.control(func() {
		if ok = ms.role == r && ms.clock() < r.Until; ok {
			ms.role.Until = ms.clock() + lease
		}
		now = ms.role
	})
	return now, ok, err
}

// Resign ends a tenure early.
func (ms *membership) Resign(r rdma.Role) {
	_ = ms.sched.control(func() {
		if ms.role == r {
			ms.role = rdma.Role{}
		}
	})
}

// Join makes the worker a member of the current view.
func (e *endpoint) Join() (v rdma.View, err error) {
	if e.s.closing() || e.closed {
		return v, fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrClosed)
	}
	if e.revoked {
		return v, fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrRevoked)
	}
	err = e.s.control(func() {
		v = e.s.View()
		e.joined = v.Epoch
	})
	if err == nil && e.revoked {
		err = fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrRevoked)
	}
	return v, err
}
