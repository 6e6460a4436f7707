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
//
// Its memory changes where verbs land, handlers of calls run and NTStore writes, each in one event.
// The times at which its parts are busy are only of Options.Hardware, but for busy.
type node struct {
	*engine
	id     int
	memory memory.Memory
	busy   int64  // until when its CPU serves calls, without Options.Hardware
	verbs  uint64 // that took effect
	killAt uint64 // it dies behind this verb; 0: never
	dead   bool
	// slow are the spans of SlowFaults, all of them there from the beginning.
	slow  []interval
	board // of Options.Hardware
	// life, expelled and hosted count without persistent memory, too.
	power
	modules
}

// diedSince reports whether the node is dead, or has come back since the pool had seen so many
// comebacks.
func (n *node) diedSince(comebacks uint64) bool { return n.dead || n.born > comebacks }

// factor returns how slow the node is now: what slows it at once multiplies. It is asked anew in
// each step, so that a message may be slowed at one part and not at the next. 0 is for a node
// without such faults, as 1, and spares the conversion to float64.
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
//
// t is when the NIC has served the request: from there serveVerb, serveCall or a ring goes on. back
// is the answer's time on the link and its way. A slow node delays its own port and the way of its
// answers, and not the requests' way to it.
func (n *node) reach(f *flight) (t, queue, back int64) {
	h, slow := n.hw, n.factor()
	request, answer := h.wire(f.op)
	n.messages++
	n.bytesIn += uint64(request)
	// Both are counted when the request comes, whether it is executed or fails.
	n.bytesOut += uint64(answer)
	onLink := h.onLink(answer)
	t = n.in.pass(n.now(), slow.of(h.onLink(request)))
	t = n.unit.pass(t, slow.of(h.served(f)))
	queue = n.out.pass(t, slow.of(onLink)) - t
	return t, queue, onLink/psPerNs + slow.of(h.prop)
}

// serveVerb returns when the node's NIC has served a verb and how long it waits for memory. An
// atomic waits for its unit, then for its word. A WRITE does not wait for the latency of PCIe, but
// for its turn there, and until modules have taken it, if there are some.
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
		// The table is 64 KiB, of which nodes without atomics have none.
		if n.words == nil {
			n.words = make([]resource, hotWords)
		}
		// Two words of the same entry wait for each other, which changes times alone.
		word := &n.words[random.Mix(off)%hotWords]
		done = word.pass(unit.pass(t, slow.of(all)), slow.of(one))
		// In the modules an atomic reads its word, and then writes it.
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

// onDevice reports whether an offset is in the node's NIC. A verb is in it by its first byte.
// Options.Device holds few ranges.
func (n *node) onDevice(off uint64) bool {
	return slices.ContainsFunc(n.opts.Device, func(r Range) bool {
		return r.Node == n.id && off >= r.Offset && off-r.Offset < r.Bytes
	})
}

// serveCall returns when the core that is free first has served a call. Calls are served in the
// order in which they come, and none is preempted.
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
// NICs write goes to the modules in order: one that is full holds up what comes behind. It counts
// the write even if the verb is barred later, when it lands.
func (n *node) dma(t int64, off uint64, size int) int64 {
	if n.pmem == nil {
		return t
	}
	n.pmem.DMA(off, uint64(size))
	n.posted = n.taken(max(t, n.posted), off, size)
	// shuffle takes it, once.
	n.waited = n.posted - t
	return n.posted
}

// load reads what a NIC does, and returns when the modules are through, and the media's latency
// beside that of main memory. A READ does not pass WRITEs that the modules have not taken: it waits
// for posted, as on PCIe. Where the caches or the module's buffer have the words it takes no longer
// than with main memory.
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
// ever, and write each line when it has just become the one to be evicted. It draws nothing where
// no module was waited for.
func (n *node) shuffle(g *random.Generator) int64 {
	most := n.waited
	n.waited = 0
	return g.UpTo(most)
}

// taken returns when the modules are through with what was just done to them. A READ or a write of
// nothing takes nothing, and on the random network modules count and take no time. A slow node's
// modules are slow, too.
func (n *node) taken(t int64, off uint64, size int) int64 {
	if n.hw == nil || size == 0 {
		return t
	}
	return t + n.factor().of(int64(n.pmem.Taken(time.Duration(t), off, uint64(size)))-t)
}

// touch counts a verb where nothing is modelled that it takes. An atomic reads and writes. It is
// called once for each verb, with its first piece.
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
