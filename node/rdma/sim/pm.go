package sim

import (
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
)

// modules are a node's with Options.PMem. What verbs do to its memory goes through a model of them,
// which counts it; with Options.Hardware it also delays it. A verb comes to them when its node's
// NIC has served it, so that a verb of a client that is fenced off in the last moment counts, too.
// What handlers of calls touch does not.
type modules struct {
	// The model has no contents: those are in node.memory, with what of them is durable.
	pmem   *pmem.Device // nil: its memory is not persistent
	posted int64        // when they have what the NIC wrote so far, which goes over PCIe in order
	waited int64        // how long its last verb waits for them
}

// NTStore writes p at a, past the caches, and returns when it is persistent: before, any words of
// it may be. The worker runs on a's node (GoAt), which has persistent memory, and its core does
// nothing else meanwhile. Outside Run that takes no time.
//
// It makes two steps of the node: at the first the words are in memory, and each may survive a loss
// of power or not; at the second all of them survive. A worker whose node dies at either does not
// return.
func (s *Sim) NTStore(a rdma.Addr, p []byte) {
	n, w, off := &s.nodes[a.Node()], s.current, a.Offset()
	if n.pmem == nil || w != nil && w.root.home != n {
		panic("sim: NTStore to memory that is not persistent, or from elsewhere")
	}
	if s.closing() {
		return
	}
	n.pmem.Write(off, uint64(len(p)))
	if w == nil {
		n.memory.Write(off, p)
		return
	}
	t := s.now() + int64(poll)
	if s.hw != nil {
		t = n.taken(w.spend(s.now(), s.hw.ntStore), off, len(p))
		w.core.busy = t
	}
	// stores is apart from the connections: READs by the NIC do not see a core's stores to the
	// media.
	n.memory.LandsFrom(&w.ep.stores)
	n.memory.Write(off, p)
	n.memory.LandsFrom(nil)
	if s.outlives(w, n); s.closing() {
		return
	}
	s.arm(w, t)
	if w.park() {
		n.memory.Drain(&w.ep.stores)
		s.outlives(w, n)
	}
}

// outlives counts a step that a worker of the node makes, which ends with it if power is lost
// behind that. The worker that made the step cannot be stopped within it: pool.kill has marked it
// to die.
func (s *Sim) outlives(w *Worker, n *node) {
	if s.stepped(n); w.dead() {
		_ = w.die()
	}
}
