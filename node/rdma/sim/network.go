package sim

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
)

// conn is a worker's connection to a node: what keeps its verbs in order.
//
// Each endpoint has one to each node, from its beginning to its end, and none is connected anew.
// The two networks keep the order in different ways. On the random one, send draws when a verb
// lands, and notes it in floor, order and reads. On machines a verb's times are decided step by
// step: arrived, order and answered are those of the steps, and flying and stalled are of fences.
type conn struct {
	floor int64 // a fence: what is posted later departs later
	// order is never lowered. What may be passed, a READ or an atomic, does not raise it.
	order int64 // when everything that must not be passed has landed
	reads int64 // when the READs and atomics so far have completed
	// Once refused is set every later verb fails with ErrAccess. A verb that was posted before is
	// on its way yet, and lands.
	refused bool // a verb was refused: the queue pair is in error
	// lost is moved on by each message that is given up, to the moment at which its requester does
	// that. What belongs to a batch that was begun before that moment and has not landed fails. Of
	// later batches all goes on.
	lost int64 // until when what was posted fails: a partition lasted too long
	// While it is not 0 all that comes behind waits, too.
	held int // pieces that wait for the end of a partition

	// The list is linked by flight.behind. Its first entry is the only one that takes places.
	entry, lastEntry *flight // APPENDs that have not taken all their places, in posting order

	// A READ of the connection moves it on, where it sees WRITEs to the media: what landed before
	// is durable.
	writes memory.Writer // of its verbs: durable, or not

	// With Options.Hardware. The lists are linked by flight.next. All are empty between two Posts
	// but for what is stalled.
	bell, last          *flight // what the current Post has for it
	wrote               bool    // the last verb that reached the node was a WRITE
	rung                int64   // how many those are
	flying              int     // READs and atomics that departed and have not completed
	stalled, stalledEnd *flight // what waits for them, at a fence and behind it
	// Neither goes back: on one connection messages arrive in order, and so do answers leave.
	arrived, answered int64 // when the last message was there, and left
}

// flight is a verb or a call on its way. It is taken by takeOff, and given back by touchDown, once:
// when its verb has completed or its call has been answered. Events that have not happened yet
// point to it. So it is not given back while a piece of it is on its way.
//
// An event that cannot happen yet, since a partition holds it up or a link is busy, is scheduled
// again with the same flight.
type flight struct {
	// batch and op are of a verb alone, and stay valid until it is complete: a batch that was
	// released is recycled behind its last completion. The buffers of an op belong to the fabric
	// meanwhile.
	ep    *endpoint
	batch *rdma.Batch
	op    *rdma.Op
	index int
	node  int
	tear  memory.Tear
	// left counts, for an APPEND, places and pieces of blocks, and is 1 while the first block has
	// no place. err is why it fails; once it is set no more pieces of a READ or a WRITE land, and
	// no partition holds it up.
	left uint16 // pieces that have not landed
	back int64  // how long its answer takes
	err  error
	next *flight // in the free list, or in a list of its connection

	// The client is the one of the worker that posts: its faults and its machine count, and not
	// those of the worker that opened the endpoint.
	root *Worker // the client it belongs to
	// A stall may come between the first two and the third.
	began     int64  // when its batch was
	comebacks uint64 // of all nodes until then
	posted    int64
	// delay is of calls, and of verbs on machines. That of a verb on the random network is part of
	// the moment at which it lands.
	delay  int64  // what luck and faults add to its way
	late   int64  // and to its answer's
	spread int64  // over how long it lands
	luck   uint64 // whether it may be passed
	// waits has a bit for each piece.
	waits  uint8 // pieces that wait for the end of a partition
	sent   bool  // it left its NIC
	stalls bool  // fences wait for it
	got    bool  // its answer passed its client's link
	direct bool  // it takes no NIC

	// ring is set by the first block: an entry is not continued in another ring of the same number.
	// blocks is used again by the next flight, so that an APPEND allocates nothing.
	ring   *ring   // of an APPEND
	blocks []block // that have a place
	gap    int64   // between one of its blocks and the next
	sees   int64   // from its last block to its READ
	behind *flight // the next of its connection
	came   bool    // it waits for those ahead of it

	// number and step are for traces alone.
	number uint64 // of the batch
	step   rdma.Step
	// epoch is the one that its sender had joined when it was posted. Joining a later one does not
	// save it from a fence.
	epoch uint64

	// req is a copy, on which the handler works. It is copied to reply, which is the caller's, when
	// the answer is there, so that a caller that has stopped waiting finds its request as it was.
	caller *Worker // of a call; nil when it has stopped waiting
	req    rdma.Request
	reply  *rdma.Request
}

// network is what is on its way: verbs and calls, which take effect at nodes, and their answers.
//
// In a Run a verb takes effect in land, an APPEND in placeBlock, settle and see of rings, and a
// call in serve. What a fence, a revocation or a node's death has to stop is stopped there.
type network struct {
	*engine
	sched   *scheduler
	pool    *pool
	boxes   *boxes
	cards   *cards
	flights *flight // free list
	// A Run whose workers have ended goes on until inflight is 0.
	inflight int // verbs and calls that have not completed
	// fenced only grows.
	fenced uint64 // verbs of earlier epochs do not land
}

// takeOff returns a flight for a verb or a call of an endpoint. It notes the sender's epoch, and
// when its batch began. A node that the pool does not have is refused later.
func (net *network) takeOff(e *endpoint, node int, step rdma.Step) *flight {
	f := net.flights
	if f == nil {
		f = new(flight)
	} else {
		net.flights = f.next
	}
	*f = flight{ep: e, node: node, number: e.batches, step: step, epoch: e.joined, began: e.began,
		comebacks: e.comebacks, blocks: f.blocks}
	net.inflight++
	e.inflight++
	return f
}

// touchDown gives a flight back: no event and no list points to it any more.
func (net *network) touchDown(f *flight) {
	net.inflight--
	f.ep.inflight--
	*f = flight{next: net.flights, blocks: f.blocks[:0]}
	net.flights = f
}

// latency draws the duration of one way. It draws nothing where both bounds are the same, as on
// machines.
func (e *endpoint) latency() int64 {
	o := &e.s.opts
	return int64(o.MinLatency) + e.net.UpTo(int64(o.MaxLatency-o.MinLatency))
}

// refuse returns why op can be refused without looking at memory, and breaks the connection as an
// RNIC's responder would: what is posted behind a refused verb fails, too.
//
// Mailboxes and rings are not looked at: what they refuse is decided when the verb lands, and
// breaks nothing. Neither does the length of an entry.
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
	// An endpoint without a mailbox has closed it: Batch.Send panics where there never was one.
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
//
// The order of the draws is part of what a seed means: another one makes other runs of all seeds.
// Which are made depends on the options and the op, and not on what other workers do.
func (e *endpoint) send(w *Worker, b *rdma.Batch, i int) {
	s := e.s
	op := b.Op(i)
	f := s.net.takeOff(e, op.Addr.Node(), b.Step())
	f.batch, f.op, f.index, f.root = b, op, i, w.root
	// late is set for this verb alone, by launchWithFaults; so is fly.
	f.posted, f.late = s.now(), e.late
	s.net.traceOp(Post, f, 0)
	if f.err = e.refuse(op); f.err != nil {
		s.at(s.now()+e.latency()+e.latency(), event{kind: completion, f: f})
		return
	}
	slow := s.nodes[f.node].factor()
	c := &e.conns[f.node]
	// A fence departs when what it waits for has been answered, and holds up what is posted behind
	// it. That is the stall of a requester, which costs a latency.
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
	// Nothing passes what it must not pass. At the same time the verb that was scheduled first
	// lands first.
	start = max(start, c.order)
	if op.Verb == rdma.Append {
		e.sendEntry(f, start)
		return
	}
	spread := e.split(f)
	if op.Verb.Fetches() && s.opts.Reorder {
		if luck := e.net.Uint64(); luck&1 == 0 {
			// With Reorder no READ or atomic raises order, and half of them land later by this.
			start += int64(luck >> 1 % uint64(s.opts.MaxLatency+1)) // later ops need not wait for it
		}
	} else {
		// A verb that may tear holds up the next until its last piece can have landed.
		c.order = start + spread
	}
	if op.Verb.Fetches() {
		// When its answer is back; what makes an answer late (f.late) does not count for a fence.
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

// split decides how a verb tears, and over how long. A quarter of the verbs stay whole. The others
// are in two pieces, or three, that land within the time returned. Atomics, and what lies in one
// word, stay whole. Pieces of a WRITE that has not landed as a whole when its client is fenced off,
// or its node dies, stay as they are: a torn record.
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
//
// A node that is to die behind this verb dies here, when the verb has taken effect. Whether its
// answer is lost then is drawn in complete.
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
		// Between the two calls of LandsFrom the words belong to the connection. What handlers
		// write outside of them is durable at once.
		n.memory.LandsFrom(&c.writes)
		if f.op.Verb == rdma.Send {
			f.err = net.boxes.deliver(f.ep, f.op)
		} else {
			words = net.execute(f.ep, n, f.op, &f.tear, piece)
			// On machines the modules have counted it when it came: node.dma, node.load.
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
		// Landed counts verbs by their first piece: KillNodeAt may split one.
		if first {
			n.verbs++
		}
		// Before stepped: a node that is killed here is not hit by a power cut behind the same
		// step.
		if n.killAt != 0 && n.verbs >= n.killAt {
			net.pool.kill(n.id)
		}
		net.pool.stepped(n)
	}
	// Only behind the last piece is the answer on its way, whether pieces landed or not.
	if f.left == 0 {
		net.at(net.now()+net.answer(f), event{kind: completion, f: f})
	}
}

// barred returns why a verb that has not landed does not, if so. A revocation comes first: joining
// the view again does not mend it.
func (net *network) barred(f *flight) error {
	switch {
	case f.ep.revoked:
		return rdma.ErrRevoked
	case f.epoch < net.fenced:
		return rdma.ErrStale
	// Dead, or dead and back since: a new life knows no queue pair of before.
	case net.gone(f):
		return rdma.ErrNodeDown
	}
	return nil
}

// answer returns how long the requester still has to wait. A dead node is found out NodeTimeout
// behind the moment at which the verb would have landed, and a connection that was given up,
// RetryTimeout behind the post. All other failures are answers of the node, which take an answer's
// way.
func (net *network) answer(f *flight) int64 {
	if f.err != nil && net.gone(f) {
		return int64(net.opts.NodeTimeout)
	}
	if f.err != nil && f.op != nil && f.began < f.ep.conns[f.node].lost {
		return f.posted + int64(net.opts.RetryTimeout) - net.now() // at() takes care of what is over
	}
	return f.back + f.late
}

// execute applies op, or a piece of it, to the memory of n at once. It does not look whether the
// verb may land: callers have. The words of a READ are in its buffer from here on, ahead of the
// completion; the worker may not look at them before.
func (net *network) execute(e *endpoint, n *node, op *rdma.Op, t *memory.Tear, piece int) (words int) {
	off := op.Addr.Offset()
	if op.Verb.Atomic() {
		op.Result = n.memory.Atomic(off, op)
		return 1
	}
	// The WRITE still lands: the Run ends behind this event, and the trace shows what it did.
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
//
// It runs in the engine, at the end of the answer's way. An answer that a partition holds up, or
// that waits for its compute node's link, is scheduled again. The worker that waits is resumed by
// the last line, within this event: nothing may follow that relies on what was before.
func (net *network) complete(f *flight) {
	if net.unanswered(f, completion) || net.hw != nil && !net.cards.received(f) {
		return
	}
	if f.err == nil && net.gone(f) && f.ep.net.Uint64()&1 == 0 {
		// With f.err set it is complete the next time. The verb has taken effect: its outcome is
		// unknown to the requester, as with a real node.
		f.err = rdma.ErrNodeDown
		net.at(net.now()+int64(net.opts.NodeTimeout), event{kind: completion, f: f})
		return
	}
	if f.err != nil {
		f.op.Fail(f.err)
	}
	net.traceOp(Complete, f, 0)
	// touchDown clears f, so what is needed below is copied.
	e, b := f.ep, f.batch
	i := f.index
	stalls, direct := f.stalls, f.direct
	node := f.node
	net.touchDown(f)
	// Before the worker goes on: what was stalled departs ahead of what it posts now.
	if stalls {
		net.cards.unstall(&e.conns[node])
	}
	before := b.Done()
	b.Complete(i)
	if !direct {
		// A batch that was released is recycled by its last completion, and has 0 chains done then.
		e.polls += max(0, b.Done()-before)
	}
	if w := e.waiter; w != nil && w.waitFor == b && b.Done() >= w.waitN {
		net.sched.resume(w)
	} else if m := e.box; m != nil && m.waiter != nil {
		net.sched.resume(m.waiter)
	}
}

// gone reports whether the node of a message is dead, or was when the message's batch began, or has
// died since. A node that has come back since then is another one to the message.
func (net *network) gone(f *flight) bool { return net.pool.nodes[f.node].diedSince(f.comebacks) }
