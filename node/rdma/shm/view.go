package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
)

// downBit marks a node that is down, in its member word: the death comes first, the view follows.
const downBit = 1 << 62

// isDown tells whether a node with that member word serves nobody: it is down, or gone from the view.
func isDown(word uint64) bool { return word>>62 != 0 }

func stateOf(word uint64) rdma.State { return rdma.State{Epoch: word >> 1, Busy: word&1 != 0} }

func stateWord(s rdma.State) uint64 {
	w := s.Epoch << 1
	if s.Busy {
		w |= 1
	}
	return w
}

// View returns the pool's view. Members change only while a master is busy, so two equal states have the same ones, but
// for those that the master is changing.
func (f *Fabric) View() rdma.View {
	v := rdma.View{Members: make([]rdma.Member, f.g.Nodes)}
	for {
		word := atomic.LoadUint64(&f.head.state)
		for n := range v.Members {
			v.Members[n] = rdma.MemberOf(atomic.LoadUint64(&f.head.members[n]))
		}
		if atomic.LoadUint64(&f.head.state) == word { // ends: masters change it a few times a second at most
			s := stateOf(word)
			v.Epoch, v.Busy = s.Epoch, s.Busy
			return v
		}
	}
}

// Advance replaces the view's state.
func (f *Fabric) Advance(from, to rdma.State) (bool, error) {
	return atomic.CompareAndSwapUint64(&f.head.state, stateWord(from), stateWord(to)), nil
}

// SetMember replaces one node's state in the view.
func (f *Fabric) SetMember(node int, from, to rdma.Member) (bool, error) {
	if uint(node) >= uint(f.g.Nodes) {
		return false, fmt.Errorf("change member %d: pool has %d nodes: %w", node, f.g.Nodes, rdma.ErrAccess)
	}
	word := &f.head.members[node]
	for { // ends: only masters and KillNode change it
		old := atomic.LoadUint64(word)
		if rdma.MemberOf(old) != from {
			return false, nil
		}
		if atomic.CompareAndSwapUint64(word, old, to.Word()|old&downBit) {
			return true, nil
		}
	}
}

// Fence makes every worker join the epoch before its next verb. Like Revoke it waits for verbs being executed, and a
// process that was stopped in the midst of a Post keeps it from returning nil: after 10 s the error wraps
// rdma.ErrTimeout.
func (f *Fabric) Fence(epoch uint64) error {
	for c := rdma.ClientID(1); int(c) <= f.g.Clients; c++ {
		stale := &f.slot(c).stale
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
func (f *Fabric) Expel(node int) error { return f.KillNode(node) }

// Join makes the worker a member of the current view.
func (e *Endpoint) Join() (rdma.View, error) {
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
