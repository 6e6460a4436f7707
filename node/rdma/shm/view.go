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

func stateWord(s rdma.State) viewWord {
	w := viewWord(s.Epoch << epochShift)
	if s.Busy {
		w |= busyBit
	}
	return w
}

func (w viewWord) epoch() uint64     { return uint64(w >> epochShift) }
func (w viewWord) node() int         { return int(w >> nodeShift % MaxNodes) }
func (w viewWord) state() rdma.State { return rdma.State{Epoch: w.epoch(), Busy: w&busyBit != 0} }

// with announces that a node changes from one state to another one.
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

// member returns the member word that follows old.
func (w viewWord) member(old uint64) uint64 {
	m := rdma.MemberOf(old)
	m.Gone, m.Replaces = w&goneBit != 0, uint16(w&standsBits)
	if w&freshBit != 0 {
		m.Since = w.epoch()
	}
	return m.Word() | old&downBit
}

// settledState returns the view's word without a change under way. A word of a member never comes
// back, so that the CAS of a process that slept since it read the word fails.
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
		next := w.member(old)
		if old == next || atomic.CompareAndSwapUint64(word, old, next) {
			atomic.CompareAndSwapUint64(&h.state, uint64(w), uint64(w.settled()))
		}
	}
}

// View returns the pool's view.
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

// Advance replaces the view's state.
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

// SetMember replaces one node's state in the view. A crash behind the announcement leaves a change
// that is carried out by the next process that looks at the view.
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
			f.head.settledState()
			return true, nil
		}
	}
}

// Fence makes every worker join the epoch before its next verb. Like Revoke it waits for verbs
// being executed, and a process that was stopped in the midst of a Post keeps it from returning
// nil: after 10 s the error wraps rdma.ErrTimeout. All words are raised before one client is waited
// for: a client that has entered since has seen its word. A crash in between leaves clients with
// the fence and clients without: the next master fences the epoch again.
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

// Expel marks a node dead for every process.
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
// at. So a client that was fenced off before the epoch began finds that.
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
