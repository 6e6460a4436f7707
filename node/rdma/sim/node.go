package sim

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// node is a memory node: its memory, and the hardware that verbs and calls pass there.
type node struct {
	*engine
	id     int
	memory memory.Memory
	busy   int64  // until when its CPU serves calls, without Options.Hardware
	verbs  uint64 // that took effect
	killAt uint64 // it dies behind this verb; 0: never
	dead   bool
	slow   []interval
	board  // of Options.Hardware
	power
	modules
}

// factor returns how slow the node is now: what slows it at once multiplies.
func (n *node) factor() stretch {
	if n.slow == nil {
		return 0
	}
	k := 1.0
	for i := range n.slow {
		if n.slow[i].holds(n.now()) {
			k *= n.slow[i].factor
		}
	}
	return stretch(k)
}

// reach lets a message pass a node's port, and returns when it is through and how long its answer
// waits for the link. The answer takes its turn on the link now: in the order of requests, whatever
// each still waits for at the node.
func (n *node) reach(f *flight) (t, queue, back int64) {
	h, slow := n.hw, n.factor()
	request, answer := h.wire(f.op)
	n.messages++
	n.bytesIn += uint64(request)
	n.bytesOut += uint64(answer)
	onLink := h.onLink(answer)
	t = n.in.pass(n.now(), slow.of(h.onLink(request)))
	t = n.unit.pass(t, slow.of(h.served(f)))
	queue = n.out.pass(t, slow.of(onLink)) - t
	return t, queue, onLink/psPerNs + slow.of(h.prop)
}

// serveVerb returns when the node's NIC has served a verb and how long it waits for memory.
func (n *node) serveVerb(op *rdma.Op, t int64) (done, pcie int64) {
	h, slow, off := n.hw, n.factor(), op.Addr.Offset()
	device := n.onDevice(off)
	pcie = slow.of(h.pcie)
	if device {
		pcie = 0
	}
	switch {
	case op.Verb.Atomic():
		unit, all, one := &n.atomics, h.atomic, h.atomicWord
		if device {
			unit, all, one = &n.device, h.device, h.deviceWord
		}
		if n.words == nil {
			n.words = make([]resource, hotWords)
		}
		word := &n.words[random.Mix(off)%hotWords]
		done = word.pass(unit.pass(t, slow.of(all)), slow.of(one))
		if !device {
			var late int64
			done, late = n.load(done, off, 8)
			done, pcie = n.dma(done, off, 8), pcie+late
		}
		return done, pcie
	case device:
		return t, 0
	case op.Verb == rdma.Read:
		done, late := n.load(n.fetch.pass(t, slow.of(h.onPCIe(len(op.Buf)))), off, len(op.Buf))
		return done, pcie + late
	}
	return n.dma(n.store.pass(t, slow.of(h.onPCIe(len(op.Buf)))), off, len(op.Buf)), 0
}

// onDevice reports whether an offset is in the node's NIC.
func (n *node) onDevice(off uint64) bool {
	return slices.ContainsFunc(n.opts.Device, func(r Range) bool {
		return r.Node == n.id && off >= r.Offset && off-r.Offset < r.Bytes
	})
}

// serveCall returns when the core that is free first has served a call.
func (n *node) serveCall(t, service int64) int64 {
	core := &n.cores[0]
	for i := range n.cores {
		if n.cores[i].busy < core.busy {
			core = &n.cores[i]
		}
	}
	return core.pass(t+service, service*psPerNs)
}

// dma writes what a NIC does, and returns when the modules have it, if it comes at time t. What
// NICs write goes to the modules in order: one that is full holds up what comes behind.
func (n *node) dma(t int64, off uint64, size int) int64 {
	if n.pmem == nil {
		return t
	}
	n.pmem.DMA(off, uint64(size))
	n.posted = n.taken(max(t, n.posted), off, size)
	n.waited = n.posted - t
	return n.posted
}

// load reads what a NIC does, and returns when the modules are through, and the media's latency
// beside that of main memory.
func (n *node) load(t int64, off uint64, size int) (through, late int64) {
	if n.pmem == nil {
		return t, 0
	}
	through = max(t, n.posted)
	if latency := n.pmem.Read(off, uint64(size)); latency > 0 {
		through, late = n.taken(through, off, size), n.factor().of(int64(latency-pmem.DRAMLatency))
	}
	n.waited = through - t
	return through, late
}

// shuffle draws how much longer the answer of a node's last verb takes: up to as long as it waits
// for the modules. Clients that wait for each other's writes would else come in the same order for
// ever, and write each line when it has just become the one to be evicted.
func (n *node) shuffle(g *random.Generator) int64 {
	most := n.waited
	n.waited = 0
	return g.UpTo(most)
}

// taken returns when the modules are through with what was just done to them.
func (n *node) taken(t int64, off uint64, size int) int64 {
	if n.hw == nil || size == 0 {
		return t
	}
	return t + n.factor().of(int64(n.pmem.Taken(time.Duration(t), off, uint64(size)))-t)
}

// touch counts a verb where nothing is modelled that it takes.
func (n *node) touch(op *rdma.Op) {
	if n.pmem == nil || n.onDevice(op.Addr.Offset()) {
		return
	}
	if op.Verb != rdma.Write {
		n.pmem.Read(op.Addr.Offset(), uint64(op.Len()))
	}
	if op.Verb != rdma.Read {
		n.pmem.DMA(op.Addr.Offset(), uint64(op.Len()))
	}
}
