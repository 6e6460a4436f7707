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
func (s *Sim) control(change func()) error {
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

// View returns the pool's view. It takes no time; Join does.
func (s *Sim) View() rdma.View {
	v := s.view
	v.Members = slices.Clone(v.Members)
	return v
}

// Advance replaces the view's state.
func (s *Sim) Advance(from, to rdma.State) (ok bool, err error) {
	if err := from.Becomes(to); err != nil {
		return false, fmt.Errorf("advance the view: %w", err)
	}
	err = s.control(func() {
		if ok = s.view.Epoch == from.Epoch && s.view.Busy == from.Busy; ok {
			s.view.Epoch, s.view.Busy = to.Epoch, to.Busy
		}
	})
	return ok, err
}

// SetMember replaces one node's state in the view.
func (s *Sim) SetMember(epoch uint64, node int, from, to rdma.Member) (ok bool, err error) {
	if node < 0 || node >= len(s.nodes) {
		return false, fmt.Errorf("change member %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	if err := from.Becomes(to, epoch); err != nil {
		return false, fmt.Errorf("change member %d: %w", node, err)
	}
	err = s.control(func() {
		if ok = s.view.Busy && s.view.Epoch == epoch && s.view.Members[node] == from; ok {
			s.view.Members[node] = to
		}
	})
	return ok, err
}

// Fence drops what workers of earlier epochs have in flight.
func (s *Sim) Fence(epoch uint64) error {
	return s.control(func() {
		s.fenced = max(s.fenced, epoch)
		s.trace(Event{Kind: Fence, Worker: "all", Value: epoch})
	})
}

// Expel kills a node for all workers.
func (s *Sim) Expel(epoch uint64, node int) (err error) {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("expel node %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	lost := s.control(func() {
		if s.view.Epoch != epoch || !s.view.Busy {
			err = fmt.Errorf("expel node %d in epoch %d, which is over: %w", node, epoch, rdma.ErrStale)
			return
		}
		s.nodes[node].expelled = true
		s.kill(node)
	})
	return errors.Join(err, lost)
}

// TryMaster makes owner the master when there is none, and fences off the last one if its tenure
// ran out.
func (s *Sim) TryMaster(owner rdma.ClientID, lease time.Duration) (r rdma.Role, ok bool, err error) {
	err = s.control(func() {
		if ok = s.role.Owner == 0 || s.Now() >= s.role.Until; ok {
			if last := s.holder(s.role.Owner); last != nil && s.role.Owner != owner {
				s.fenceOff(last)
			}
			s.tenures++
			s.role = rdma.Role{Owner: owner, Epoch: s.tenures, Until: s.Now() + lease}
		}
		r = s.role
	})
	return r, ok, err
}

// Renew prolongs a tenure.
func (s *Sim) Renew(r rdma.Role, lease time.Duration) (now rdma.Role, ok bool, err error) {
	err = s.control(func() {
		if ok = s.role == r && s.Now() < r.Until; ok {
			s.role.Until = s.Now() + lease
		}
		now = s.role
	})
	return now, ok, err
}

// Resign ends a tenure early.
func (s *Sim) Resign(r rdma.Role) {
	_ = s.control(func() {
		if s.role == r {
			s.role = rdma.Role{}
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
