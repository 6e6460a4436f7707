package sim

import (
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
)

// modules are a node's with Options.PMem. What verbs do to its memory goes through a model of them,
// which counts it; with Options.Hardware it also delays it. A verb comes to them when its node's
// NIC has served it, so that a verb of a client that is fenced off in the last moment counts, too.
// What handlers of calls touch does not.
type modules struct {
	pmem   *pmem.Device // nil: its memory is not persistent
	posted int64        // when they have what the NIC wrote so far, which goes over PCIe in order
	waited int64        // how long its last verb waits for them
}

// insert gives nodes their modules.
func (s *Sim) insert() {
	for i := range s.nodes {
		if o := s.opts.PMem; o != nil {
			s.nodes[i].pmem = pmem.NewDevice(*o)
		}
	}
}

// PMem returns the modules of a node; nil: its memory is not persistent.
func (s *Sim) PMem(node int) *pmem.Device { return s.nodes[node].pmem }

// dma writes what a NIC does, and returns when the modules have it, if it comes at time t.
func (s *Sim) dma(n *node, t int64, off uint64, size int) int64 {
	if n.pmem == nil {
		return t
	}
	n.pmem.DMA(off, uint64(size))
	n.posted = s.taken(n, max(t, n.posted), off, size)
	n.waited = n.posted - t
	return n.posted
}

// load reads what a NIC does, and returns when the modules are through, and the media's latency
// beside that of main memory.
func (s *Sim) load(n *node, t int64, off uint64, size int) (through, late int64) {
	if n.pmem == nil {
		return t, 0
	}
	through = max(t, n.posted)
	if latency := n.pmem.Read(off, uint64(size)); latency > 0 {
		through, late = s.taken(n, through, off, size), n.factor(s.now).of(int64(latency-pmem.DRAMLatency))
	}
	n.waited = through - t
	return through, late
}

// shuffle draws how much longer the answer of a node's last verb takes: up to as long as it waits
// for the modules. Clients that wait for each other's writes would else come in the same order for
// ever, and write each line when it has just become the one to be evicted.
func (n *node) shuffle(g *generator) int64 {
	most := n.waited
	n.waited = 0
	return g.upTo(most)
}

// taken returns when the modules are through with what was just done to them.
func (s *Sim) taken(n *node, t int64, off uint64, size int) int64 {
	if s.hw == nil || size == 0 {
		return t
	}
	return t + n.factor(s.now).of(int64(n.pmem.Taken(time.Duration(t), off, uint64(size)))-t)
}

// touch counts a verb where nothing is modelled that it takes.
func (s *Sim) touch(n *node, op *rdma.Op) {
	if n.pmem == nil || s.onDevice(op.Addr) {
		return
	}
	if op.Verb != rdma.Write {
		n.pmem.Read(op.Addr.Offset(), uint64(op.Len()))
	}
	if op.Verb != rdma.Read {
		n.pmem.DMA(op.Addr.Offset(), uint64(op.Len()))
	}
}

// NTStore writes p at a, past the caches, and returns when it is persistent: before, any words of
// it may be. The worker runs on a's node (GoAt), which has persistent memory, and its core does
// nothing else meanwhile. Outside Run that takes no time.
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
		n.memory.write(off, p)
		return
	}
	t := s.now + int64(poll)
	if s.hw != nil {
		t = s.taken(n, w.spend(s.now, s.hw.ntStore), off, len(p))
		w.core.busy = t
	}
	n.memory.landsFrom(&w.ep.stores)
	n.memory.write(off, p)
	n.memory.landsFrom(nil)
	if s.outlives(w, n); s.closing() {
		return
	}
	s.arm(w, t)
	if w.park() {
		w.ep.stores.flushed = n.memory.pm.stamp
		s.outlives(w, n)
	}
}

// outlives counts a step that a worker of the node makes, which ends with it if power is lost
// behind that.
func (s *Sim) outlives(w *Worker, n *node) {
	if s.stepped(n); w.dead() {
		_ = w.die()
	}
}
