package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// membership is the pool's view, its master and the store's configuration. All of it is outside of
// the memory nodes, and never lost. A change is one step: no worker sees half of it, and a crash
// leaves it undone or done.
//
// On fabrics of processes it is kept by nodes, or by a registry. Here each change is one step in
// the midst of a worker's round trip (scheduler.control). Outside Run it takes effect at once.
// Errors wrap rdma.ErrClosed when the simulation is closed.
type membership struct {
	sched *scheduler
	pool  *pool
	ids   *identities
	net   *network
	// view has all nodes as members, in order; role is zero when there is no master.
	view rdma.View
	role rdma.Role
	// tenures is the number of the last tenure that began. A configuration is replaced only in that
	// one.
	tenures uint64
	config  rdma.Config
}

// clock returns the virtual time.
func (ms *membership) clock() time.Duration { return time.Duration(ms.sched.now()) }

// View returns the pool's view. It takes no time; Join does. The members are a copy: a view does
// not change after it was returned.
func (ms *membership) View() rdma.View {
	v := ms.view
	v.Members = slices.Clone(v.Members)
	return v
}

// Advance replaces the view's state. False: another client has changed it first. Members stay.
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

// SetMember replaces one node's state in the view. False: it was changed, or the view is not busy
// in that epoch. The error of a change that no member may make wraps rdma.ErrAccess, and costs no
// trip.
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

// Fence drops what workers of earlier epochs have in flight. It takes effect at once for all nodes:
// a verb of an earlier epoch that has not landed, or a piece of one, does not. A WRITE of which
// some pieces had landed is torn. An epoch below the last fence changes nothing. Workers find it at
// their next Post or Call, and Join again.
func (ms *membership) Fence(epoch uint64) error {
	return ms.sched.control(func() {
		ms.net.fenced = max(ms.net.fenced, epoch)
		ms.sched.trace(Event{Kind: Fence, Worker: "all", Value: epoch})
	})
}

// Expel kills a node for all workers. It is final: a node that is restarted stays away. It acts in
// the given epoch alone, while the view is busy, and ends in rdma.ErrStale else.
func (ms *membership) Expel(epoch uint64, node int) (err error) {
	if node < 0 || node >= len(ms.pool.nodes) {
		return fmt.Errorf("expel node %d of %d: %w", node, len(ms.pool.nodes), rdma.ErrAccess)
	}
	lost := ms.sched.control(func() {
		if ms.view.Epoch != epoch || !ms.view.Busy {
			err = fmt.Errorf("expel node %d in epoch %d, which is over: %w", node, epoch, rdma.ErrStale)
			return
		}
		// Before the kill: WhenCrashed of workers at the node may restart it.
		ms.pool.nodes[node].expelled = true
		ms.pool.kill(node)
	})
	return errors.Join(err, lost)
}

// TryMaster makes owner the master when there is none, and fences off the last one if its tenure
// ran out. The last owner is fenced off in the step in which the next tenure begins. A real pool
// takes two, in the same order.
func (ms *membership) TryMaster(owner rdma.ClientID, lease time.Duration) (r rdma.Role, ok bool, err error) {
	err = ms.sched.control(func() {
		if ok = ms.role.Owner == 0 || ms.clock() >= ms.role.Until; ok {
			if last := ms.ids.holder(ms.role.Owner); last != nil && ms.role.Owner != owner {
				ms.ids.fenceOff(last)
			}
			// Tenures are numbered from 1, so that 0 is no master's.
			ms.tenures++
			ms.role = rdma.Role{Owner: owner, Epoch: ms.tenures, Until: ms.clock() + lease}
		}
		r = ms.role
	})
	return r, ok, err
}

// Renew prolongs a tenure. False: the tenure has run out, or another one has begun; the role is
// then the present one. A tenure is not renewed at the moment of its end: another client may take
// over then.
func (ms *membership) Renew(r rdma.Role, lease time.Duration) (now rdma.Role, ok bool, err error) {
	err = ms.sched.control(func() {
		if ok = ms.role == r && ms.clock() < r.Until; ok {
			ms.role.Until = ms.clock() + lease
		}
		now = ms.role
	})
	return now, ok, err
}

// Resign ends a tenure early. One that is over already is left alone. A master of which the worker
// crashes here has resigned, or not.
func (ms *membership) Resign(r rdma.Role) {
	_ = ms.sched.control(func() {
		if ms.role == r {
			ms.role = rdma.Role{}
		}
	})
}

// Join makes the worker a member of the current view. A client that is fenced off while it joins is
// told so.
func (e *endpoint) Join() (v rdma.View, err error) {
	if e.s.closing() || e.closed {
		return v, fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrClosed)
	}
	if e.revoked {
		return v, fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrRevoked)
	}
	// View and epoch are of one moment, in the midst of the round trip.
	err = e.s.control(func() {
		v = e.s.View()
		e.joined = v.Epoch
	})
	if err == nil && e.revoked {
		err = fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrRevoked)
	}
	return v, err
}

// Config returns the store's configuration. Data is the caller's. It takes a round trip.
func (ms *membership) Config() (c rdma.Config, err error) {
	err = ms.sched.control(func() { c = ms.config })
	return rdma.Config{Version: c.Version, Data: bytes.Clone(c.Data)}, err
}

// SwapConfig replaces the store's configuration. False: its version is another one by now. The
// error wraps rdma.ErrStale when a later tenure has begun, and rdma.ErrMessageSize when data is too
// long. A tenure that has run out without a successor may still replace it.
func (ms *membership) SwapConfig(r rdma.Role, version uint64, data []byte) (ok bool, err error) {
	if err := rdma.CheckConfig(data); err != nil {
		return false, err
	}
	// The caller's buffer may change during the round trip.
	data = bytes.Clone(data)
	lost := ms.sched.control(func() {
		if r.Epoch == 0 || r.Epoch != ms.tenures {
			err = fmt.Errorf("replace the configuration as master of epoch %d, and that of epoch %d has begun: %w",
				r.Epoch, ms.tenures, rdma.ErrStale)
			return
		}
		if ok = ms.config.Version == version; ok {
			ms.config = rdma.Config{Version: version + 1, Data: data}
		}
	})
	if lost != nil {
		return false, lost
	}
	return ok, err
}

// configPace is how long a worker that waits for another configuration sleeps between two looks.
const configPace = 20 * time.Microsecond

// AwaitConfig waits for another configuration.
//
// It polls: each look takes a round trip, so that within may be passed by a pause and a look.
// Outside Run it looks once.
func (ms *membership) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	for until := ms.clock() + within; ; {
		c, err := ms.Config()
		switch {
		case err != nil || c.Version != version:
			return c, err
		case ms.clock() >= until || ms.sched.current == nil:
			return rdma.Config{}, fmt.Errorf("wait for a configuration behind version %d: %w", version, rdma.ErrTimeout)
		}
		ms.sched.current.ep.Sleep(configPace)
	}
}
