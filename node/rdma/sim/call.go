package sim

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Call runs the pool's handler on a node: one trip, and the node's CPU serves one call at a time. A
// crash of the caller at its k-th verb counts calls, too. A caller that crashes, or waits no
// longer, does not keep the handler from running, once.
//
// A request goes to the node and waits for its CPU, the handler runs in one instant, and the answer
// comes back. Calls are not ordered with verbs, nor with each other: a worker has one at a time,
// but one that it has stopped waiting for may be served behind a later one.
func (e *endpoint) Call(node int, r *rdma.Request, within time.Duration) error {
	s := e.s
	if err := e.usable("call"); err != nil {
		return err
	}
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("call node %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	if s.opts.Handler == nil {
		return fmt.Errorf("call node %d: no handler: %w", node, rdma.ErrNotSupported)
	}
	// Set here, not by the worker: a handler may rely on it.
	r.Client = e.id
	w := s.current
	if w == nil {
		e.Called(node)
		if s.nodes[node].dead {
			return &rdma.CallError{Node: node, Err: rdma.ErrNodeDown}
		}
		return s.opts.Handler(&s.nodes[node].memory, r)
	}
	if w.dead() {
		return w.die()
	}
	// A call that is the client's last verb is sent, and served.
	w.allow(1)
	e.Called(node)
	e.begin()
	f := s.net.takeOff(e, node, r.Step)
	// From here to replied, or to the end of the wait, r may be written by the engine; the worker
	// is parked.
	f.caller, f.req, f.reply, f.root, f.posted = w, *r, r, w.root, s.now()
	e.sendCall(w, f)
	s.net.traceCall(Call, f)
	if w.dead() {
		return w.die()
	}
	// replied finds the caller by the flight, and clears this: that is how the worker knows that it
	// was answered.
	w.call = f
	// Its clock begins when the core has posted the call.
	s.arms(w, within)
	alive := w.park()
	if w.call == nil { // replied took it
		err := w.callErr
		w.callErr = nil
		if s.hw != nil {
			w.spend(s.now(), s.hw.poll)
		}
		return err
	}
	w.call, f.caller = nil, nil // the handler may still run, but has no caller to answer
	if !alive {
		return &rdma.CallError{Node: node, Err: rdma.ErrClosed}
	}
	return fmt.Errorf("call node %d within %v: %w", node, within, rdma.ErrTimeout)
}

// sendCall puts a call on its way. A fault at its number hits behind it. Faults that delay a verb
// delay the call, one that stalls the client begins when the call is sent.
func (e *endpoint) sendCall(w *Worker, f *flight) {
	s := e.s
	if r := w.root; r.faults != nil {
		fly, late := r.delays(s.now(), r.sent)
		f.delay, f.late = fly, late
		// Last: a stall begins with the call under way.
		defer s.injector.fireFaultsAt(r, r.sent)
	}
	if s.hw == nil {
		slow := s.nodes[f.node].factor()
		f.back = slow.of(e.latency())
		s.at(s.now()+slow.of(e.latency())+f.delay, event{kind: arrival, f: f})
		return
	}
	e.draw(f)
	s.at(w.spend(s.now(), s.hw.doorbell+s.hw.verb), event{kind: doorbell, f: f})
}

// arrive queues a call for its node's CPU. A partition may hold it up on its way, and let it fail,
// as it does answers. A node that is dead is told from one that is slow when the call would be
// served.
func (net *network) arrive(f *flight) {
	n := &net.pool.nodes[f.node]
	switch slow := n.factor(); {
	case net.unanswered(f, arrival):
	// The requester gave up while a partition held the request up: it never was at the node.
	case f.err != nil:
		net.at(net.now(), event{kind: reply, f: f})
	// The random network's nodes have one CPU. It is not idle for a caller that has gone.
	case net.hw == nil:
		n.busy = max(n.busy, net.now()) + slow.of(int64(net.opts.ServiceTime))
		net.at(n.busy, event{kind: service, f: f})
	// serve finds that out.
	case n.dead:
		net.at(net.now(), event{kind: service, f: f})
	default:
		t, queue, back := n.reach(f)
		f.back = queue + back + slow.of(net.hw.callExtras)
		net.at(n.serveCall(t, slow.of(net.hw.service)), event{kind: service, f: f})
	}
}

// serve runs a call's handler, in one instant. Rights are asked for now: a caller that was fenced
// off since it called has no effect. A node that dies behind it keeps what the handler did, if its
// memory is kept, and the caller is answered all the same: the handler's words are in memory as
// words of a verb are, but durable.
func (net *network) serve(f *flight) {
	n := &net.pool.nodes[f.node]
	switch {
	case f.ep.revoked:
		f.err = rdma.ErrRevoked
	case f.epoch < net.fenced:
		f.err = rdma.ErrStale
	case net.gone(f):
		f.err = &rdma.CallError{Node: f.node, Err: rdma.ErrNodeDown}
	default:
		// The handler works on f.req: the caller's request is not touched before the answer is
		// there.
		if err := net.opts.Handler(&n.memory, &f.req); err != nil {
			f.err = err
		}
		net.traceCall(Serve, f)
		// Behind the handler: a power cut behind this step finds its words.
		net.pool.stepped(n)
	}
	net.at(net.now()+net.answer(f), event{kind: reply, f: f})
}

// replied hands a call's answer to its caller, if it still waits. It is told an error in the same
// way, with the request as the handler left it.
func (net *network) replied(f *flight) {
	if net.unanswered(f, reply) || net.hw != nil && !net.cards.received(f) {
		return
	}
	w := f.caller
	if w != nil {
		*f.reply = f.req
		w.call, w.callErr = nil, f.err
	}
	net.touchDown(f)
	// Behind touchDown: the caller runs within this event, and may call again.
	if w != nil {
		net.sched.resume(w)
	}
}

// traceCall reports a call that is sent, or served; Value is its procedure.
func (net *network) traceCall(k EventKind, f *flight) {
	if net.opts.Trace != nil {
		net.trace(Event{Kind: k, Worker: f.ep.name, Client: f.ep.id, Step: f.step, Addr: rdma.At(f.node, 0),
			Value: uint64(f.req.Proc), Err: f.err})
	}
}
