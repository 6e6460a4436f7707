package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
)

// downBit marks a node that is down, in its member word: the death comes first, the view follows.
const downBit = 1 << 62

// isDown reports whether a node with that member word is out of service: it is down, or gone from
// the view.
func isDown(word uint64) bool { return word>>62 != 0 }

// viewWord is the word in which masters meet. A change of a member has to be refused once the state
// is another. So it is announced here, and then carried out by any process that looks at the view:
// a process that stops between the two steps delays no other.
//
//	bits  0 to 14  Replaces of the member that changes
//	bit   15       its Since becomes the epoch
//	bit   16       it is gone
//	bits 17 to 24  its node
//	bit   25       there is such a change
//	bit   26       Busy
//	bits 27 to 36  number of the change in its epoch, so that no state comes back
//	bits 37 to 63  Epoch
//
// A member's word in the header has its Since and Replaces in full: see rdma.Member.Word. Of the
// announcement only Replaces has to be whole, since Since becomes the epoch or stays.
//
// A master that mends the pool changes it in this order. What a crash leaves is what is done up
// to there; the next master begins with an epoch of its own.
//
//	Advance    to a later epoch, busy
//	Expel      each node that the view loses
//	Fence      workers of earlier epochs post nothing more until they join
//	SetMember  for each member that changes
//	Advance    to the same epoch, idle
type viewWord uint64

const (
	standsBits  = 1<<15 - 1
	freshBit    = 1 << 15
	goneBit     = 1 << 16
	nodeShift   = 17
	changeBit   = 1 << 25
	busyBit     = 1 << 26
	changeShift = 27
	epochShift  = 37
	changeBits  = 1<<changeShift - 1 - busyBit
	numberBits  = 1<<epochShift - 1<<changeShift
)

// stateWord is the word of a state without a change. Its number begins at 0 again. That brings no
// word of this epoch back: an epoch that is idle does not become busy again (rdma.State.Becomes).
func stateWord(s rdma.State) viewWord {
	w := viewWord(s.Epoch << epochShift)
	if s.Busy {
		w |= busyBit
	}
	return w
}

// node is that of the change under way, and means nothing without one. MaxNodes fits its bits.
func (w viewWord) epoch() uint64     { return uint64(w >> epochShift) }
func (w viewWord) node() int         { return int(w >> nodeShift % MaxNodes) }
func (w viewWord) state() rdma.State { return rdma.State{Epoch: w.epoch(), Busy: w&busyBit != 0} }

// with announces that a node changes from one state to another one. from is what was read before,
// and decides whether Since changes. w has no change under way.
func (w viewWord) with(node int, from, to rdma.Member) viewWord {
	w |= changeBit | viewWord(node)<<nodeShift | viewWord(to.Replaces&standsBits)
	if to.Gone {
		w |= goneBit
	}
	if to.Since != from.Since {
		w |= freshBit
	}
	return w
}

// settled is w once its change is carried out. The number wraps within its bits; no epoch has
// nearly as many changes.
func (w viewWord) settled() viewWord {
	return w&^(changeBits|numberBits) | (w+1<<changeShift)&numberBits
}

// member returns the member word that follows old. downBit stays: the death of a node is not the
// view's to take back.
func (w viewWord) member(old uint64) uint64 {
	m := rdma.MemberOf(old)
	m.Gone, m.Replaces = w&goneBit != 0, uint16(w&standsBits)
	if w&freshBit != 0 {
		m.Since = w.epoch()
	}
	return m.Word() | old&downBit
}

// settledState returns the view's word without a change under way. A word of a member never comes
// back, so that the CAS of a process that slept since it read the word fails. A process that
// reads a change under way does not wait for its author: it carries the change out, and so may
// several at once. The CAS of the member lets one of them succeed; then one ends the change.
func (h *header) settledState() viewWord {
	for { // ends: masters change it a few times a second at most
		w := viewWord(atomic.LoadUint64(&h.state))
		if w&changeBit == 0 {
			return w
		}
		word := &h.members[w.node()]
		old := atomic.LoadUint64(word)
		if atomic.LoadUint64(&h.state) != uint64(w) {
			continue // what was read may be what another one has made of it
		}
		// A member that has the change already was given it by another process.
		next := w.member(old)
		if old == next || atomic.CompareAndSwapUint64(word, old, next) {
			atomic.CompareAndSwapUint64(&h.state, uint64(w), uint64(w.settled()))
		}
	}
}

// View returns the pool's view. It is a snapshot: members change only by way of the view's word,
// which is the same before and behind the copy. After a fault it is what was read by then.
func (f *Fabric) View() (v rdma.View) {
	v.Members = make([]rdma.Member, f.g.Nodes)
	defer f.guard(nil)()
	for { // ends, as settledState does
		w := f.head.settledState()
		for n := range v.Members {
			v.Members[n] = rdma.MemberOf(atomic.LoadUint64(&f.head.members[n]))
			if f.shared && int(v.Members[n].Replaces) > f.g.Nodes {
				v.Members[n].Replaces = 0 // no node: another user wrote it, and masters use it as an index
			}
		}
		if atomic.LoadUint64(&f.head.state) == uint64(w) {
			s := w.state()
			v.Epoch, v.Busy = s.Epoch, s.Busy
			return v
		}
	}
}

// Advance replaces the view's state. False: the view is in another state by now. It takes one
// CAS, from a word without a change: a change that is announced in between makes it fail, and is
// carried out first. The error wraps rdma.ErrAccess when to does not follow from.
func (f *Fabric) Advance(from, to rdma.State) (_ bool, err error) {
	defer f.guard(&err)()
	if err := from.Becomes(to); err != nil {
		return false, fmt.Errorf("advance the view of %s: %w", f.name, err)
	}
	for { // ends: each turn means that the view was changed
		w := f.head.settledState()
		if w.state() != from {
			return false, nil
		}
		if atomic.CompareAndSwapUint64(&f.head.state, uint64(w), uint64(stateWord(to))) {
			return true, nil
		}
	}
}

// SetMember replaces one node's state in the view. A crash behind the announcement leaves a
// change that is carried out by the next process that looks at the view. False: the view is not
// busy in that epoch, or the member is not from. The member is read behind the view's word, and
// the CAS is from that word: the member has not changed in between.
func (f *Fabric) SetMember(epoch uint64, node int, from, to rdma.Member) (_ bool, err error) {
	defer f.guard(&err)()
	err = from.Becomes(to, epoch)
	if uint(node) >= uint(f.g.Nodes) {
		err = fmt.Errorf("the pool has %d nodes: %w", f.g.Nodes, rdma.ErrAccess)
	}
	if err != nil {
		return false, fmt.Errorf("change member %d: %w", node, err)
	}
	for { // ends: each turn means that the view was changed
		w := f.head.settledState()
		if w.state() != (rdma.State{Epoch: epoch, Busy: true}) ||
			rdma.MemberOf(atomic.LoadUint64(&f.head.members[node])) != from {
			return false, nil
		}
		if atomic.CompareAndSwapUint64(&f.head.state, uint64(w), uint64(w.with(node, from, to))) {
			// Carried out before it returns, so that the caller's next View has it.
			f.head.settledState()
			return true, nil
		}
	}
}

// Fence makes every worker join the epoch before its next verb. Like Revoke it waits for verbs
// being executed, and a process that was stopped in the midst of a Post keeps it from returning
// nil: after 10 s the error wraps rdma.ErrTimeout. All words are raised before one client is
// waited for: a client that has entered since has seen its word. A crash in between leaves
// clients with the fence and clients without: the next master fences the epoch again. When
// it returns nil, no verb of an earlier epoch can land any more. An endpoint without an identity
// is not fenced.
func (f *Fabric) Fence(epoch uint64) (err error) {
	defer f.guard(&err)()
	for c := rdma.ClientID(1); int(c) <= f.g.Clients; c++ {
		stale := &f.head.slot(c).stale
		for old := atomic.LoadUint64(stale); old < epoch; old = atomic.LoadUint64(stale) {
			atomic.CompareAndSwapUint64(stale, old, epoch)
		}
	}
	for c := rdma.ClientID(1); int(c) <= f.g.Clients; c++ {
		if err := f.drain(c); err != nil {
			return fmt.Errorf("fence epoch %d: %w", epoch, err)
		}
	}
	return nil
}

// Expel marks a node dead for every process. The error wraps rdma.ErrStale when the epoch is
// over, or what KillNode returns.
func (f *Fabric) Expel(epoch uint64, node int) (err error) {
	defer f.guard(&err)()
	// Nothing but KillNode makes a node of shared memory fail a verb, so that what a master expels
	// is dead already: that the epoch may end between the two lines takes no node away from any
	// client.
	if s := f.head.settledState().state(); s.Epoch != epoch || !s.Busy {
		return fmt.Errorf("expel node %d in epoch %d, which is over: %w", node, epoch, rdma.ErrStale)
	}
	return f.KillNode(node)
}

// Join makes the worker a member of the current view. The view is read before the fence is looked
// at. So a client that was fenced off before the epoch began finds that. A fence of a later epoch
// than the one read makes it fail with rdma.ErrStale: the caller joins again.
func (e *Endpoint) Join() (_ rdma.View, err error) {
	defer e.fabric.guard(&err)()
	if e.closed || e.fabric.closing.Load() {
		return rdma.View{}, fmt.Errorf("join the view as client %d: %w", e.id, rdma.ErrClosed)
	}
	v := e.fabric.View()
	e.joined = v.Epoch
	if err := e.barred(); err != nil {
		return rdma.View{}, fmt.Errorf("join the view: %w", err)
	}
	return v, nil
}
