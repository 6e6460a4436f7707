package sim

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// cards are the NICs of Options.Hardware, through which verbs and calls go, with the compute nodes
// that they are in. They decide when something is at its node, and when its answer is back.
//
// A verb takes these steps. In its Post, enqueue puts it into the list of its connection, and
// ringAll charges the worker's core and schedules the doorbell. At the doorbell, ring hands the
// list to the compute node's NIC, verb by verb: depart sends it, or stall keeps it behind a fence.
// At the node, incoming schedules when it lands and how long its answer takes back. At the compute
// node, received lets the answer pass the link; then network.complete takes it.
//
// A message takes its turn at the compute node's NIC in the event of its doorbell, and at the
// node's parts in that of its arrival, so that messages of several workers pass in the order in
// which they come. The answer takes its turn at the node's link together with the request:
// node.reach.
type cards struct {
	*engine
	pool     *pool
	boxes    *boxes
	machines []*machine
	placed   int // clients on a core of their own
}

// place gives a worker its compute node, and a core of it: of its own, or that of the one it is
// beside. A task is on its client's compute node. A client goes to the first ones in turn, until
// these are full. One on a memory node is on that, with a core of its own beside those that serve
// calls.
func (cs *cards) place(w, beside *Worker) {
	// Without Hardware the core is never busy.
	w.core = new(core)
	if beside != nil {
		w.core, w.machine = beside.core, beside.machine
		return
	}
	if cs.hw == nil {
		return
	}
	if w.root != w {
		w.machine = w.root.machine
	} else if w.home != nil {
		w.machine = w.home.host
		return
	} else {
		i, per, deal := cs.placed, cs.hw.ClientsPerNode, cs.hw.ComputeNodes
		cs.placed++
		at := i / per
		if i < per*deal {
			at = i % deal
		}
		for len(cs.machines) <= at {
			cs.machines = append(cs.machines, &machine{port: new(port), number: len(cs.machines)})
		}
		w.machine = cs.machines[at]
	}
	w.core.seat = w.machine.workers
	w.machine.workers++
}

// core is what a worker runs on: its own, unless it was started by GoOnCoreOf.
type core struct {
	// Posting a batch costs the core its time while virtual time stands. What the worker does next
	// begins no earlier than busy.
	busy int64 // ns: until when it is busy with verbs, ahead of virtual time
	// seat counts from 0, in the order in which workers began.
	seat int // its number on its compute node
}

// slowed is how long something takes a core, or a hyper-thread of one that two workers share. Seats
// from Cores on are the second threads, each beside the seat that is Cores below. A core becomes
// slow when the second one begins, and stays so.
func (c *core) slowed(d int64, h *timing, workers int) int64 {
	if h.Cores > 0 && h.HyperSpeed > 0 && (c.seat >= h.Cores || c.seat+h.Cores < workers) {
		return int64(float64(d) / h.HyperSpeed)
	}
	return d
}

// spend lets a worker's core be busy for a while, and returns until when. It is charged to the
// machine at once, even if it lies ahead.
func (w *Worker) spend(now, d int64) int64 {
	c := w.core
	d = c.slowed(d, w.s.hw, w.machine.workers)
	c.busy = max(c.busy, now) + d
	w.machine.cpu += d
	return c.busy
}

// polled charges for the completions that came since the worker looked last. It is called when the
// worker looks: what came while it slept, or did other things, costs no time before.
func (e *endpoint) polled(w *Worker) {
	if e.polls > 0 {
		w.spend(e.s.now(), int64(e.polls)*e.s.hw.poll)
		e.polls = 0
	}
}

// enqueue puts the i-th op of b into the send queue of its connection, and draws its luck. All
// draws of a verb are made here, in posting order, but for its wait for modules (node.shuffle). An
// op that is refused is not sent: its error takes two ways.
func (e *endpoint) enqueue(w *Worker, b *rdma.Batch, i int) {
	s := e.s
	op := b.Op(i)
	f := s.net.takeOff(e, op.Addr.Node(), b.Step())
	f.batch, f.op, f.index, f.root = b, op, i, w.root
	f.posted = s.now()
	s.net.traceOp(Post, f, 0)
	if f.err = e.refuse(op); f.err != nil {
		s.at(max(s.now(), w.core.busy)+2*s.hw.prop, event{kind: completion, f: f})
		return
	}
	// Before any draw: a core neither loses what it loads nor delays it.
	if s.hw.Direct && w.root.home == &s.nodes[f.node] && (op.Verb == rdma.Read || op.Verb == rdma.Write) {
		e.direct(w, f)
		return
	}
	// Both are set for this verb alone by launchWithFaults.
	f.delay, f.late = e.fly, e.late
	e.draw(f)
	c := &e.conns[f.node]
	if op.Verb == rdma.Append {
		e.entry(f)
		c.rung++ // its READ
	} else {
		f.spread = e.split(f)
		if op.Verb.Fetches() && s.opts.Reorder {
			// Its last bit says whether the verb may be passed, and the rest, how much later it
			// lands then: see incoming.
			f.luck = e.net.Uint64()
		}
	}
	if c.bell == nil {
		c.bell = f
		e.bells = append(e.bells, f.node)
	} else {
		c.last.next = f
	}
	c.last = f
	c.rung++
}

// direct has a worker's core load or store what a verb does to the memory of the node that it runs
// on. It lands behind what has come to the node on the same connection (order), and its completion
// costs no Poll. A store keeps the core until the modules have it; a load does not. The core copies
// without a tear.
func (e *endpoint) direct(w *Worker, f *flight) {
	s, op, n, c := e.s, f.op, &e.s.nodes[f.node], &e.conns[f.node]
	at := max(s.now(), w.core.busy)
	switch off := op.Addr.Offset(); {
	case op.Verb == rdma.Write:
		at = w.spend(s.now(), s.hw.ntStore)
		if n.pmem != nil {
			n.pmem.Write(off, uint64(op.Len()))
			at = n.taken(at, off, op.Len())
			w.core.busy = at
		}
	case n.pmem != nil:
		if latency := n.pmem.Read(off, uint64(op.Len())); latency > 0 {
			at = n.taken(at, off, op.Len()) + int64(latency)
		}
	}
	at = max(at, c.order)
	before := c.order
	c.order = at
	f.tear.Ways, f.got, f.direct = 1, true, true
	if s.cards.schedule(f, at, before) {
		s.net.land(f, 0)
	}
}

// draw decides whether a message or its answer is delayed. A message is lost in one of the
// directions, each with the same probability, or in both. The retransmission is not lost again.
func (e *endpoint) draw(f *flight) {
	o := &e.s.opts
	if e.net.Chance(o.FlyProb) {
		f.delay += e.net.UpTo(int64(o.FlyMax))
	}
	if loss := e.s.hw.Loss; loss > 0 {
		if e.net.Chance(loss) {
			f.delay += e.s.hw.retransmit
		}
		if e.net.Chance(loss) {
			f.late += e.s.hw.retransmit
		}
	}
}

// ringAll rings the doorbells of what was enqueued, one node after the other. The core fills the
// lists one after the other: the node of the second doorbell gets its verbs later by what the first
// one took.
func (e *endpoint) ringAll(w *Worker) {
	s := e.s
	for _, n := range e.bells {
		c := &e.conns[n]
		at := w.spend(s.now(), s.hw.doorbell+c.rung*s.hw.verb)
		s.at(at, event{kind: doorbell, f: c.bell})
		c.bell, c.last, c.rung = nil, nil, 0
	}
	e.bells = e.bells[:0]
}

// ring hands the verbs of one doorbell to the NIC, in order. Behind a fence that has to stall all
// of them wait. Calls have no fence, and pass one that stalls.
func (cs *cards) ring(f *flight) {
	for f != nil {
		next := f.next
		f.next = nil
		if f.op == nil {
			cs.depart(f)
		} else if c := &f.ep.conns[f.node]; c.stalled != nil || f.op.Fence && c.flying > 0 {
			c.stall(f)
		} else {
			cs.depart(f)
		}
		f = next
	}
}

// stall appends a verb to those that wait, which are in posting order: what is behind a fence waits
// with it, whether it has one or not.
func (c *conn) stall(f *flight) {
	if c.stalled == nil {
		c.stalled = f
	} else {
		c.stalledEnd.next = f
	}
	c.stalledEnd = f
}

// unstall goes on behind a fence after the READs and atomics before it have completed. It is called
// once for each verb that stalls counted. It stops at the next fence that has something to wait
// for: what has just departed counts, too.
func (cs *cards) unstall(c *conn) {
	c.flying--
	if c.flying > 0 {
		return
	}
	for f := c.stalled; f != nil && !(f.op.Fence && c.flying > 0); f = c.stalled {
		c.stalled, f.next = f.next, nil
		cs.depart(f)
	}
}

// depart sends a verb or a call through its compute node's NIC. A connection's messages arrive in
// the order in which they depart, also when one is delayed. An APPEND is two verbs to the NIC. A
// READ or an atomic counts as flying from here to its completion, unless the node's NIC keeps the
// order by itself (DeviceFence).
func (cs *cards) depart(f *flight) {
	h, m := cs.hw, f.machine()
	c := &f.ep.conns[f.node]
	bytes, _ := h.wire(f.op)
	m.messages++
	m.bytesOut += uint64(bytes)
	onLink := h.onLink(bytes)
	unit := h.clientVerb
	if f.op != nil && f.op.Verb == rdma.Append {
		unit *= 2
	}
	t := m.out.pass(m.unit.pass(cs.now(), unit), onLink)
	// arrived keeps the order of the connection: what is behind a message that is delayed, or was
	// lost and sent again, waits for it.
	t = max(t+onLink/psPerNs+h.prop+f.delay, c.arrived)
	c.arrived = t
	kind := arrival
	if f.op != nil {
		kind = incoming
		f.sent = true
		device := f.op.Verb.Atomic() && cs.pool.nodes[f.node].onDevice(f.op.Addr.Offset())
		if f.stalls = f.op.Verb.Fetches() && !(h.DeviceFence && device); f.stalls {
			c.flying++
		}
	}
	cs.at(t, event{kind: kind, f: f})
}

// machine returns the compute node that a message leaves and its answer comes back to.
func (f *flight) machine() *machine { return f.root.machine }

// served is how long a node's NIC is busy with a verb or a call, in ps. A READ that sees a WRITE
// into memory completes what the two take together. It has to be asked once for each message, in
// their order: it notes in the connection whether the last one was a WRITE. The WRITE has paid
// nodeVerb already.
func (h *timing) served(f *flight) int64 {
	c := &f.ep.conns[f.node]
	wrote := c.wrote
	c.wrote = f.op != nil && f.op.Verb == rdma.Write
	switch {
	case f.op == nil:
	case f.op.Verb == rdma.Append:
		return h.nodePersist
	case f.op.Verb == rdma.Read && wrote && f.op.Len() <= 8:
		return h.nodePersist - h.nodeVerb
	}
	return h.nodeVerb
}

// incoming decides when a verb lands: when the node's parts have served it, and behind what it must
// not pass. A READ or an atomic that may be passed reaches memory anywhere on its way over PCIe;
// its answer leaves at the end of it. It reports whether the verb lands at once. Order is that of
// arrival: order is raised to when this verb has landed, unless later ones may pass it.
func (cs *cards) incoming(f *flight) bool {
	if f.op.Verb == rdma.Append {
		cs.incomingEntry(f)
		return false
	}
	n, c := &cs.pool.nodes[f.node], &f.ep.conns[f.node]
	before, land := c.order, max(cs.now(), c.order)
	// It takes nothing of the node: land fails it, and the requester waits for NodeTimeout.
	if n.dead {
		return cs.schedule(f, land, before)
	}
	var t, queue, back, pcie int64
	if f.op.Verb == rdma.Send {
		t, queue, back = cs.reachBox(f)
	} else {
		t, queue, back = n.reach(f)
		t, pcie = n.serveVerb(f.op, t)
		queue += n.shuffle(&f.ep.net)
	}
	// What is not to be passed lands at order or later. An equal time is enough: what was scheduled
	// first happens first.
	land = max(t, c.order)
	leave := land + pcie
	if f.luck&1 == 1 && pcie > 0 {
		land += int64(f.luck >> 1 % uint64(pcie+1))
	} else {
		c.order = land + f.spread
	}
	// Answers leave in the order of requests, as acknowledgements of a queue pair do.
	leave = max(leave+queue, c.answered)
	c.answered = leave
	// What is left of the way when the last piece has landed; f.late comes on top in
	// network.answer.
	f.back = max(0, leave-land-f.spread) + back
	return cs.schedule(f, land, before)
}

// schedule lets a verb land, or its pieces. It reports whether the caller has to land it at once:
// nothing that it must not pass can still be ahead. Pieces land at times of their own, within
// spread behind land, derived from the verb's luck so that they draw nothing more.
func (cs *cards) schedule(f *flight, land, before int64) bool {
	f.left = uint16(f.tear.Ways)
	// If order was now, what has to be ahead may still be among the events of this time.
	if f.left == 1 && land == cs.now() && before < cs.now() {
		return true
	}
	for piece := range f.tear.Ways {
		at := land
		if f.spread > 0 {
			at += int64(random.Mix(f.tear.Luck+uint64(piece)) % uint64(f.spread+1))
		}
		cs.at(at, event{kind: landing, f: f, piece: uint16(piece)})
	}
	return false
}

// received reports whether an answer is through its compute node's link, and comes back when it is.
// It is called twice for an answer that waits there: got says that it has. An op that failed has no
// answer to pass. An idle link adds nothing: what the answer takes on it is part of its way.
func (cs *cards) received(f *flight) bool {
	if f.got || f.err != nil {
		return true
	}
	f.got = true
	m := f.machine()
	_, bytes := cs.hw.wire(f.op)
	m.bytesIn += uint64(bytes)
	t := m.in.pass(cs.now(), cs.hw.onLink(bytes))
	if t == cs.now() {
		return true
	}
	kind := completion
	if f.op == nil {
		kind = reply
	}
	cs.at(t, event{kind: kind, f: f})
	return false
}

// Range is a part of a memory node.
type Range struct {
	Node          int
	Offset, Bytes uint64
}
