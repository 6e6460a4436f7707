package shm

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// MaxLease bounds a tenure. One that seems to last longer was made before the machine was started
// anew.
const MaxLease = time.Minute

// A tenure, by the words that it changes:
//
//	TryMaster  raises the fence of the last owner, if that is another client, and waits for it;
//	           role: owner and end; epoch: one more; config: the epoch, so that it may swap
//	Renew      role: the same owner, a later end
//	Resign     role: 0; so do the Close of the owner's endpoint, and Forget
//	a crash    leaves role as it is, which another TryMaster replaces behind its end

// The role is one word, so that it changes hands in one CAS: owner in the upper 16 bits,
// microseconds in the lower 48. 48 bits of microseconds are nine years since the machine was
// started. Times compare between all processes of the machine, since realtime.Now is the
// machine's own.
const untilBits = 48

// What is below a microsecond is cut off.
func roleWord(r rdma.Role) uint64 {
	return uint64(r.Owner)<<untilBits | uint64(r.Until/time.Microsecond)
}

func roleOf(word uint64) rdma.Role {
	return rdma.Role{
		Owner: rdma.ClientID(word >> untilBits),
		Until: time.Duration(word&(1<<untilBits-1)) * time.Microsecond,
	}
}

// Master returns the role of the pool's master, and for how long yet; false: there is none. The
// word and the epoch are read one after the other: between the two another tenure may begin, so
// that they may be of different ones. Of a pool that was truncated there is none.
func (f *Fabric) Master() (r rdma.Role, left time.Duration, ok bool) {
	defer f.guard(nil)()
	r = roleOf(atomic.LoadUint64(&f.head.role))
	r.Epoch = atomic.LoadUint64(&f.head.epoch)
	left = r.Until - now()
	return r, left, r.Owner != 0 && left > 0 && left <= MaxLease
}

// TryMaster makes owner the pool's master for the given time when there is none. False: another
// client is master, and the role names it and the time until when it is. A crash between fencing
// off the last master and the CAS leaves that master's word, and the next candidate fences it off
// again. The CAS decides between candidates. The last master is fenced off before it, so that no
// two are at work. An owner that was master last, and is again, does not fence itself off. The
// wait for the last one's Post takes patience at most; its error leaves the role as it was.
func (f *Fabric) TryMaster(owner rdma.ClientID, lease time.Duration) (_ rdma.Role, _ bool, err error) {
	defer f.guard(&err)()
	if err := f.g.lease(owner, lease); err != nil {
		return rdma.Role{}, false, err
	}
	old := atomic.LoadUint64(&f.head.role)
	t := now()
	if r := roleOf(old); r.Owner != 0 && t < r.Until && r.Until-t <= MaxLease {
		return r, false, nil
	} else if r.Owner != 0 && r.Owner != owner {
		if err := f.fenceLast(old); err != nil {
			return r, false, fmt.Errorf("make client %d master after client %d: %w", owner, r.Owner, err)
		}
		t = now() // it may have taken a while
	}
	mine := rdma.Role{Owner: owner, Until: (t + lease).Truncate(time.Microsecond)}
	if !atomic.CompareAndSwapUint64(&f.head.role, old, roleWord(mine)) {
		return roleOf(atomic.LoadUint64(&f.head.role)), false, nil
	}
	r, ok := f.draw(mine)
	return r, ok, nil
}

// fenceLast fences off the master that has the role in that word, and not the present holder of
// its identity. An identity changes hands only behind the end of its tenure, so that the life
// read before the role is seen unchanged is the master's. The error wraps rdma.ErrTimeout when a
// Post of the master's has not ended in time.
func (f *Fabric) fenceLast(role uint64) error {
	owner := roleOf(role).Owner
	if err := f.g.known(owner); err != nil {
		return err
	}
	state := atomic.LoadUint64(&f.head.slot(owner).state)
	if !inUse(state) || atomic.LoadUint64(&f.head.role) != role {
		return nil // a master since then has fenced it off
	}
	return f.revoke(owner, life(state))
}

// endTenure ends the tenure of a client before its identity is freed: a successor is not
// taken for the master.
func (h *header) endTenure(c rdma.ClientID) {
	for word := atomic.LoadUint64(&h.role); roleOf(word).Owner == c; word = atomic.LoadUint64(&h.role) {
		atomic.CompareAndSwapUint64(&h.role, word, 0)
	}
}

// draw gives a tenure that has begun its epoch. One counts only if it was drawn while the role
// was still held, as the second look proves: then epochs have the order of tenures. A crash
// before wastes the lease, no more. Epochs that are drawn in vain are left out. The configuration
// is claimed before the caller learns that it is master. So no swap of an earlier tenure succeeds
// behind that.
func (f *Fabric) draw(r rdma.Role) (rdma.Role, bool) {
	r.Epoch = atomic.AddUint64(&f.head.epoch, 1)
	if word := atomic.LoadUint64(&f.head.role); word != roleWord(r) || now() >= r.Until {
		return roleOf(word), false
	}
	f.head.claimConfig(r.Epoch)
	return r, true
}

// Renew prolongs a tenure; false: it is over, and another client may be master. The CAS is from
// the word of this tenure, with its end: an owner that stalled behind the end, and was succeeded,
// finds another word. An owner of which the time is over does not try. The epoch stays. A lease
// begins when it is renewed, and does not add to what is left.
func (f *Fabric) Renew(r rdma.Role, lease time.Duration) (_ rdma.Role, _ bool, err error) {
	defer f.guard(&err)()
	if err := f.g.lease(r.Owner, lease); err != nil {
		return rdma.Role{}, false, err
	}
	t := now()
	longer := rdma.Role{Owner: r.Owner, Epoch: r.Epoch, Until: (t + lease).Truncate(time.Microsecond)}
	if t >= r.Until || !atomic.CompareAndSwapUint64(&f.head.role, roleWord(r), roleWord(longer)) {
		return roleOf(atomic.LoadUint64(&f.head.role)), false, nil
	}
	return longer, true, nil
}

// Resign ends a tenure early. One that is over already is no error.
func (f *Fabric) Resign(r rdma.Role) {
	defer f.guard(nil)()
	atomic.CompareAndSwapUint64(&f.head.role, roleWord(r), 0)
}

// lease checks a tenure's owner and its length: at least a microsecond, the unit of the word, and
// MaxLease at most, by which a word of before the machine's start is told. The error wraps
// rdma.ErrAccess.
func (g Geometry) lease(owner rdma.ClientID, lease time.Duration) error {
	if err := g.known(owner); err != nil {
		return fmt.Errorf("make client %d master: %w", owner, err)
	}
	if lease < time.Microsecond || lease > MaxLease {
		return fmt.Errorf("make client %d master for %v: want up to %v: %w", owner, lease, MaxLease, rdma.ErrAccess)
	}
	return nil
}
