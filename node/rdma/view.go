package rdma

import (
	"fmt"
	"time"
)

// View is what the members of a pool agree on: which memory nodes serve, and which took another's
// place. A pool's master changes it; every change has a new epoch. It lies outside of the memory
// nodes, where their deaths do not reach it: in the header of a shared pool, or with a coordination
// service (FUSEE 5: the fault-tolerant master's membership).
type View struct {
	Epoch uint64
	// Busy: a master is mending the pool. Until it is done no worker may change what is replicated
	// by its clients.
	Busy    bool
	Members []Member // by node
}

// Gone reports whether a node is gone for good.
func (v *View) Gone(n int) bool { return n < len(v.Members) && v.Members[n].Gone }

// Holder returns the node that has in this view what the given one had when the pool was made, and
// the epoch since which it has; false: no node has it. A stand-in may have died and have one of its
// own.
func (v *View) Holder(original int) (n int, since uint64, ok bool) {
	n = original
	for range v.Members { // each step goes to a node that joined later
		if !v.Gone(n) {
			return n, v.Members[n].Since, true
		}
		next := -1
		for k, m := range v.Members {
			if int(m.Replaces) == n+1 {
				next = k
			}
		}
		if next < 0 {
			return n, 0, false
		}
		n = next
	}
	return n, 0, false
}

// Original returns the node of the pool as it was made that had the contents which the given one
// took over, or the node itself. It is the inverse of Holder.
func (v *View) Original(n int) int {
	for range v.Members {
		s := v.Members[n].Replaces
		if s == 0 {
			break
		}
		n = int(s) - 1
	}
	return n
}

// Member is the state of one memory node. The zero Member serves as it did when the pool was made.
type Member struct {
	// Gone: no worker reaches the node any more, and none ever will.
	Gone bool
	// Replaces is the node, plus one, of which this one took over the contents; 0: none.
	Replaces uint16
	// Since is the epoch in which it did: stand-ins are ordered by it.
	Since uint64
}

const (
	memberGone  = 1 << 63
	standsShift = 47
	standsMask  = 1<<15 - 1 // bit 62 is free for fabrics
	sinceMask   = 1<<standsShift - 1
)

// Word packs m: bit 63 Gone, bits 47 to 61 Replaces, Since below.
func (m Member) Word() uint64 {
	w := uint64(m.Replaces&standsMask)<<standsShift | m.Since&sinceMask
	if m.Gone {
		w |= memberGone
	}
	return w
}

// MemberOf unpacks what Word packed.
func MemberOf(w uint64) Member {
	return Member{Gone: w&memberGone != 0, Replaces: uint16(w >> standsShift & standsMask), Since: w & sinceMask}
}

// Becomes returns an error wrapping ErrAccess when a member cannot change from m to next in the
// given epoch. It takes a place once and goes once, so that no state comes back: a CAS from an old
// state never succeeds on a new one.
func (m Member) Becomes(next Member, epoch uint64) error {
	switch {
	case next == m, m.Gone && !next.Gone, m.Replaces != 0 && next.Replaces != m.Replaces,
		next.Since != m.Since && next.Since != epoch:
		return fmt.Errorf("a node that %v becomes one that %v in epoch %d: %w", m, next, epoch, ErrAccess)
	}
	return nil
}

func (m Member) String() string {
	t := "serves"
	if m.Replaces > 0 {
		t = fmt.Sprintf("stands for node %d since epoch %d", m.Replaces-1, m.Since)
	}
	if m.Gone {
		return "gone (" + t + ")"
	}
	return t
}

// State is the part of a View that masters compete for.
type State struct {
	Epoch uint64
	Busy  bool
}

// Becomes returns an error wrapping ErrAccess when next does not follow s: epochs grow, and within
// one a master comes to an end of its work, but does not begin.
func (s State) Becomes(next State) error {
	if next.Epoch < s.Epoch || next.Epoch == s.Epoch && (next.Busy || !s.Busy) {
		return fmt.Errorf("the view's state %+v becomes %+v: %w", s, next, ErrAccess)
	}
	return nil
}

// Role is the tenure of a pool's master.
type Role struct {
	Owner ClientID
	Epoch uint64        // greater than that of every tenure before
	Until time.Duration // on Env.Now of the same machine
	// FenceEpoch is the epoch that the view has to reach before the master does anything else:
	// verbs of an earlier master may have a way yet to nodes that did not answer when it was fenced
	// off, which ends with that epoch's fence. 0: it need not.
	FenceEpoch uint64
}

// Control is how a pool's master is chosen and changes its view. Its words are linearizable and
// survive every memory node. A tenure is for liveness only: what two masters do at once is decided
// by Advance, and by Fence, which stops the verbs of the master of the earlier epoch.
type Control interface {
	Configs
	// TryMaster makes owner the pool's master for the given time when there is none. False: another
	// client is master, and the role names it and the time until when it is: at the latest, where
	// machines' clocks cannot be compared. A master of which the tenure ran out may still have
	// verbs in flight. So it is fenced off (see Fabric.Revoke) before another one begins. Nodes
	// that do not answer then refuse its verbs from the fence of Role.FenceEpoch on at the latest.
	TryMaster(owner ClientID, lease time.Duration) (Role, bool, error)
	// Renew prolongs a tenure; false: it is over, and another client may be master.
	Renew(r Role, lease time.Duration) (Role, bool, error)
	// Resign ends a tenure early, when nothing of its owner is in flight. One that is over already
	// is no error. Closing the owner's endpoint ends it, too.
	Resign(r Role)

	// View returns the pool's view as it is now.
	View() View
	// Advance replaces the state from by to, if it is still from; false: it was changed meanwhile.
	Advance(from, to State) (bool, error)
	// SetMember replaces one node's state, if it is still from and the view is busy in that epoch;
	// false: it is not, and another client may be master. So the members of an idle view never
	// change. A worker that joined while it was busy does not know the last of them, and joins
	// again.
	SetMember(epoch uint64, node int, from, to Member) (bool, error)
	// Fence returns nil when no verb can land any more that was posted by a worker which had joined
	// an earlier epoch, and none that such a worker posts later, until it joins. It needs no
	// worker's cooperation: idle, slow and stopped workers are fenced, too.
	Fence(epoch uint64) error
	// Expel makes a node one that is down for all workers: when it returns nil no verb lands on it
	// any more, and verbs to it fail with ErrNodeDown.
	//
	// It acts in the given busy epoch only, and ends in ErrStale in any other: a master that was
	// slow must not take away a node that its successor found well.
	Expel(epoch uint64, node int) error
}
