package sim

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
)

// conn is a worker's connection to a node: what keeps its verbs in order.
type conn struct {
	floor int64 // a fence: what is posted later departs later
	// order is never lowered. What may be passed, a READ or an atomic, does not raise it.
	order   int64 // when everything that must not be passed has landed
	reads   int64 // when the READs and atomics so far have completed
	refused bool  // a verb was refused: the queue pair is in error
	lost    int64 // until when what was posted fails: a partition lasted too long
	// While it is not 0 all that comes behind waits, too.
	held int // pieces that wait for the end of a partition

	entry, lastEntry *flight // APPENDs that have not taken all their places, in posting order

	writes memory.Writer // of its verbs: durable, or not

	// With Options.Hardware.
	bell, last          *flight // what the current Post has for it
	wrote               bool    // the last verb that reached the node was a WRITE
	rung                int64   // how many those are
	flying              int     // READs and atomics that departed and have not completed
	stalled, stalledEnd *flight // what waits for them, at a fence and behind it
	arrived, answered   int64   // when the last message was there, and left
}

// flight is a verb or a call on its way. It is taken by takeOff, and given back by touchDown, once:
// when its verb has completed or its call has been answered. Events that have not happened yet
// point to it. So it is not given back while a piece of it is on its way.
type flight struct {
	ep    *endpoint
	batch *rdma.Batch
	op    *rdma.Op
	index int
	node  int
	tear  memory.Tear
	left  uint16 // pieces that have not landed
	back  int64  // how long its answer takes
	err   error
	next  *flight // in the free list, or in a list of its connection

	root   *Worker // the client it belongs to
	life   uint64  // of the node, when it was posted
	posted int64
	delay  int64  // what luck and faults add to its way
	late   int64  // and to its answer's
	spread int64  // over how long it lands
	luck   uint64 // whether it may be passed
	waits  uint8  // pieces that wait for the end of a partition
	sent   bool   // it left its NIC
	stalls bool   // fences wait for it
	got    bool   // its answer passed its client's link
	direct bool   // it takes no NIC

	ring   *ring   // of an APPEND
	blocks []block // that have a place
	gap    int64   // between one of its blocks and the next
	sees   int64   // from its last block to its READ
	behind *flight // the next of its connection
	came   bool    // it waits for those ahead of it

	number uint64 // of the batch
	step   rdma.Step
	// epoch is the one that its sender had joined when it was posted. Joining a later one does not
	// save it from a fence.
	epoch uint64

	caller *Worker // of a call; nil when it has stopped waiting
	req    rdma.Request
	reply  *rdma.Request
}

// network is what is on its way: verbs and calls, which take effect at nodes, and their answers.
type network struct {
	*engine
	sched    *scheduler
	pool     *pool
	boxes    *boxes
	cards    *cards
	flights  *flight // free list
	inflight int     // verbs and calls that have not completed
	fenced   uint64  // verbs of earlier epochs do not land
}

func (net *network) takeOff(e *endpoint, node int, step rdma.Step) *flight {
	f := net.flights
	if f == nil {
		f = new(flight)
	} else {
		net.flights = f.next
	}
	*f = flight{ep: e, node: node, number: e.batches, step: step, epoch: e.joined, blocks: f.blocks}
	if node < len(net.pool.nodes) {
		f.life = net.pool.nodes[node].life
	}
	net.inflight++
	e.inflight++
	return f
}

func (net *network) touchDown(f *flight) {
	net.inflight--
	f.ep.inflight--
	*f = flight{next: net.flights, blocks: f.blocks[:0]}
	net.flights = f
}

// latency draws the duration of one way.
func (e *endpoint) latency() int64 {
	o := &e.s.opts
	return int64(o.MinLatency) + e.net.UpTo(int64(o.MaxLatency-o.MinLatency))
}

// refuse returns why op can be refused without looking at memory, and breaks the connection as an
// RNIC's responder would: what is posted behind a refused verb fails, too.
func (e *endpoint) refuse(op *rdma.Op) error {
	n := op.Addr.Node()
	if n >= len(e.s.nodes) {
		return fmt.Errorf("the pool has %d nodes: %w", len(e.s.nodes), rdma.ErrAccess)
	}
	c := &e.conns[n]
	if c.refused {
		return fmt.Errorf("connection is down since a verb was refused: %w", rdma.ErrAccess)
	}
	off, size := op.Addr.Offset(), e.s.nodes[n].memory.Size()
	switch {
	case op.Verb == rdma.Send:
		if e.box == nil {
			return fmt.Errorf("its sender has closed its mailbox: %w", rdma.ErrClosed)
		}
		err := e.gathers(op)
		c.refused = err != nil
		return err
	case op.Verb == rdma.Append:
		if n := len(op.Buf); n < 1 || n > rdma.MaxMessage {
			return rdma.ErrMessageSize
		}
		return nil
	case op.Verb.Atomic() && off%8 != 0:
		c.refused = true
		return fmt.Errorf("misaligned: %w", rdma.ErrAccess)
	case off > size || uint64(op.Len()) > size-off:
		c.refused = true
		return fmt.Errorf("outside the node's %d bytes: %w", size, rdma.ErrAccess)
	}
	return nil
}

// send puts the i-th op of b on its way: all its moments are drawn here, from the worker's own
// generator. What the op must keep behind is in its connection.
func (e *endpoint) send(w *Worker, b *rdma.Batch, i int) {
	s := e.s
	op := b.Op(i)
	f := s.net.takeOff(e, op.Addr.Node(), b.Step())
	f.batch, f.op, f.index, f.root = b, op, i, w.root
	f.posted, f.late = s.now(), e.late
	s.net.traceOp(Post, f, 0)
	if f.err = e.refuse(op); f.err != nil {
		s.at(s.now()+e.latency()+e.latency(), event{kind: completion, f: f})
		return
	}
	slow := s.nodes[f.node].factor()
	c := &e.conns[f.node]
	depart := max(s.now(), c.floor)
	if op.Fence {
		depart = max(depart, c.reads)
		c.floor = depart
	}
	start := depart + slow.of(e.latency()) + e.fly
	f.back = slow.of(e.latency())
	if e.net.Chance(s.opts.FlyProb) {
		start += e.net.UpTo(int64(s.opts.FlyMax))
	}
	start = max(start, c.order)
	if op.Verb == rdma.Append {
		e.sendEntry(f, start)
		return
	}
	spread := e.split(f)
	if op.Verb.Fetches() && s.opts.Reorder {
		if luck := e.net.Uint64(); luck&1 == 0 {
			start += int64(luck >> 1 % uint64(s.opts.MaxLatency+1)) // later ops need not wait for it
		}
	} else {
		c.order = start + spread
	}
	if op.Verb.Fetches() {
		c.reads = max(c.reads, start+spread+f.back)
	}
	f.left = uint16(f.tear.Ways)
	for piece := range f.tear.Ways {
		at := start
		if spread > 0 {
			at += e.net.UpTo(spread)
		}
		s.at(at, event{kind: landing, f: f, piece: uint16(piece)})
	}
}

// split decides how a verb tears, and over how long. A quarter of the verbs stay whole.
func (e *endpoint) split(f *flight) (spread int64) {
	f.tear.Ways = 1
	o := &e.s.opts
	if !o.Tear || f.op.Verb != rdma.Read && f.op.Verb != rdma.Write {
		return 0
	}
	off := f.op.Addr.Offset()
	words := (off+uint64(f.op.Len())+7)/8 - off/8
	if words < 2 {
		return 0
	}
	luck := e.net.Uint64()
	if luck&3 == 0 {
		return 0
	}
	f.tear = memory.Tear{Ways: uint8(2 + luck>>2&1), Luck: luck >> 3, Words: words}
	return int64(o.MaxLatency)
}

// land lets a piece of a verb take effect, if the node is alive and the client has not been fenced
// off. Whether it may land is asked for each piece, at the moment at which it lands: fences and
// deaths act in between. Behind a piece that did not land no other piece does.
func (net *network) land(f *flight, piece int) {
	if net.held(f, event{kind: landing, f: f, piece: uint16(piece)}) {
		return
	}
	n := &net.pool.nodes[f.node]
	first := f.left == uint16(f.tear.Ways)
	f.left--
	if f.err == nil { // no earlier piece did not land
		f.err = net.barred(f)
	}
	if f.err == nil {
		words := 0
		c := &f.ep.conns[f.node]
		n.memory.LandsFrom(&c.writes)
		if f.op.Verb == rdma.Send {
			f.err = net.boxes.deliver(f.ep, f.op)
		} else {
			words = net.execute(f.ep, n, f.op, &f.tear, piece)
			if first && net.hw == nil {
				n.touch(f.op)
			}
		}
		// A READ flushes what its connection wrote ahead of it, when all of it has executed.
		if f.op.Verb == rdma.Read && f.left == 0 && len(f.op.Buf) > 0 && !n.onDevice(f.op.Addr.Offset()) {
			n.memory.Flush(&c.writes)
		}
		n.memory.LandsFrom(nil)
		net.traceOp(Land, f, words)
		if first {
			n.verbs++
		}
		if n.killAt != 0 && n.verbs >= n.killAt {
			net.pool.kill(n.id)
		}
		net.pool.stepped(n)
	}
	if f.left == 0 {
		net.at(net.now()+net.answer(f), event{kind: completion, f: f})
	}
}

// barred returns why a verb that has not landed does not, if so.
func (net *network) barred(f *flight) error {
	switch {
	case f.ep.revoked:
		return rdma.ErrRevoked
	case f.epoch < net.fenced:
		return rdma.ErrStale
	case net.gone(f):
		return rdma.ErrNodeDown
	}
	return nil
}

// answer returns how long the requester still has to wait.
func (net *network) answer(f *flight) int64 {
	if f.err != nil && net.gone(f) {
		return int64(net.opts.NodeTimeout)
	}
	if f.err != nil && f.op != nil && f.posted < f.ep.conns[f.node].lost {
		return f.posted + int64(net.opts.RetryTimeout) - net.now() // at() takes care of what is over
	}
	return f.back + f.late
}

// execute applies op, or a piece of it, to the memory of n at once.
func (net *network) execute(e *endpoint, n *node, op *rdma.Op, t *memory.Tear, piece int) (words int) {
	off := op.Addr.Offset()
	if op.Verb.Atomic() {
		op.Result = n.memory.Atomic(off, op)
		return 1
	}
	if op.Verb == rdma.Write && !net.opts.AllowMixing && n.memory.ChangedByAtomics(off, len(op.Buf)) {
		breach := &rdma.OpError{Verb: op.Verb, Addr: op.Addr, Len: len(op.Buf), Err: ErrMixed}
		net.fail(fmt.Errorf("%s: %w", e.name, breach))
	}
	switch {
	case t.Ways > 1:
		return n.memory.CopyPiece(op, t, piece)
	case op.Verb == rdma.Read:
		n.memory.Read(off, op.Buf)
	default:
		n.memory.Write(off, op.Buf)
	}
	return (len(op.Buf) + 7) / 8
}

// complete tells the requester. A node that died after the verb took effect may have died before it
// answered. It takes effect once for each verb, behind all of its pieces.
func (net *network) complete(f *flight) {
	if net.unanswered(f, completion) || net.hw != nil && !net.cards.received(f) {
		return
	}
	if f.err == nil && net.gone(f) && f.ep.net.Uint64()&1 == 0 {
		f.err = rdma.ErrNodeDown
		net.at(net.now()+int64(net.opts.NodeTimeout), event{kind: completion, f: f})
		return
	}
	if f.err != nil {
		f.op.Fail(f.err)
	}
	net.traceOp(Complete, f, 0)
	e, b := f.ep, f.batch
	i := f.index
	stalls, direct := f.stalls, f.direct
	node := f.node
	net.touchDown(f)
	if stalls {
		net.cards.unstall(&e.conns[node])
	}
	before := b.Done()
	b.Complete(i)
	if !direct {
		e.polls += max(0, b.Done()-before)
	}
	if w := e.waiter; w != nil && w.waitFor == b && b.Done() >= w.waitN {
		net.sched.resume(w)
	} else if m := e.box; m != nil && m.waiter != nil {
		net.sched.resume(m.waiter)
	}
}

// gone reports whether the node of a message has died since that was posted.
func (net *network) gone(f *flight) bool {
	n := &net.pool.nodes[f.node]
	return n.dead || n.life != f.life
}
