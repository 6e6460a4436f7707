package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Call runs the pool's handler on a node: one trip, and the node's CPU serves one call at a time. A
// crash of the caller at its k-th verb counts calls, too.
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
	r.Client = e.id
	w := s.current
	if w == nil {
		e.Called(node)
		if s.nodes[node].dead {
			return &rdma.CallError{Node: node, Err: rdma.ErrNodeDown}
		}
		return s.opts.Handler(&s.nodes[node].view, r)
	}
	if w.dead() {
		return w.die()
	}
	w.allow(1)
	e.Called(node)
	f := s.takeOff(e, node, r.Step)
	f.caller, f.req, f.reply, f.root, f.posted = w, *r, r, w.root, s.now
	e.sendCall(w, f)
	s.traceCall(Call, f)
	if w.dead() {
		return w.die()
	}
	w.call = f
	s.arms(w, within)
	alive := w.park()
	if w.call == nil { // replied took it
		err := w.callErr
		w.callErr = nil
		if s.hw != nil {
			w.spend(s.now, s.hw.poll)
		}
		return err
	}
	w.call, f.caller = nil, nil // the handler may still run, but has no caller to answer
	if !alive {
		return &rdma.CallError{Node: node, Err: rdma.ErrClosed}
	}
	return fmt.Errorf("call node %d within %v: %w", node, within, rdma.ErrTimeout)
}

// sendCall puts a call on its way. A fault at its number hits behind it.
func (e *endpoint) sendCall(w *Worker, f *flight) {
	s := e.s
	if r := w.root; r.faults != nil {
		fly, late := r.delays(s.now, r.sent)
		f.delay, f.late = fly, late
		defer s.fireFaultsAt(r, r.sent)
	}
	if s.hw == nil {
		slow := s.nodes[f.node].factor(s.now)
		f.back = slow.of(e.latency())
		s.at(s.now+slow.of(e.latency())+f.delay, event{kind: arrival, f: f})
		return
	}
	e.draw(f)
	s.at(w.spend(s.now, s.hw.doorbell+s.hw.verb), event{kind: doorbell, f: f})
}

// arrive queues a call for its node's CPU.
func (s *Sim) arrive(f *flight) {
	n := &s.nodes[f.node]
	switch slow := n.factor(s.now); {
	case s.unanswered(f, arrival):
	case f.err != nil:
		s.at(s.now, event{kind: reply, f: f})
	case s.hw == nil:
		n.busy = max(n.busy, s.now) + slow.of(int64(s.opts.ServiceTime))
		s.at(n.busy, event{kind: service, f: f})
	case n.dead:
		s.at(s.now, event{kind: service, f: f})
	default:
		t, queue, back := s.reach(f)
		f.back = queue + back + slow.of(s.hw.callExtras)
		s.at(n.serveCall(t, slow.of(s.hw.service)), event{kind: service, f: f})
	}
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

// serve runs a call's handler, in one instant.
func (s *Sim) serve(f *flight) {
	n := &s.nodes[f.node]
	switch {
	case f.ep.revoked:
		f.err = rdma.ErrRevoked
	case f.epoch < s.fenced:
		f.err = rdma.ErrStale
	case s.gone(f):
		f.err = &rdma.CallError{Node: f.node, Err: rdma.ErrNodeDown}
	default:
		if err := s.opts.Handler(&n.view, &f.req); err != nil {
			f.err = err
		}
		s.traceCall(Serve, f)
		s.stepped(n)
	}
	s.at(s.now+s.answer(f), event{kind: reply, f: f})
}

// replied hands a call's answer to its caller, if it still waits.
func (s *Sim) replied(f *flight) {
	if s.unanswered(f, reply) || s.hw != nil && !s.received(f) {
		return
	}
	w := f.caller
	if w != nil {
		*f.reply = f.req
		w.call, w.callErr = nil, f.err
	}
	s.touchDown(f)
	if w != nil {
		s.resume(w)
	}
}

func (s *Sim) traceCall(k EventKind, f *flight) {
	if s.opts.Trace != nil {
		s.trace(Event{Kind: k, Worker: f.ep.name, Client: f.ep.id, Step: f.step, Addr: rdma.At(f.node, 0),
			Value: uint64(f.req.Proc), Err: f.err})
	}
}

// nodeMemory is a node's own view of its memory; its atomics count as atomics.
type nodeMemory struct{ n *node }

func (m *nodeMemory) Node() int    { return m.n.id }
func (m *nodeMemory) Size() uint64 { return m.n.memory.size }

// word checks that off names a word; a handler that strays is a bug in the handler.
func (m *nodeMemory) word(off uint64) uint64 {
	if off%8 != 0 || off > m.n.memory.size-8 {
		panic(fmt.Sprintf("sim: handler touches %#x of node %d, which has %#x bytes", off, m.n.id, m.n.memory.size))
	}
	return off
}

func (m *nodeMemory) Load(off uint64) uint64 {
	p, at := m.n.memory.seen(m.word(off)), off%pageBytes
	if p == nil {
		return 0
	}
	m.n.memory.observed(p, at, 8)
	return binary.LittleEndian.Uint64(p.data[at:])
}

func (m *nodeMemory) CompareSwap(off, expect, value uint64) uint64 {
	return m.n.memory.atomic(m.word(off), &rdma.Op{Verb: rdma.CompareSwap, Expect: expect, Value: value})
}

func (m *nodeMemory) FetchAdd(off, n uint64) uint64 {
	return m.n.memory.atomic(m.word(off), &rdma.Op{Verb: rdma.FetchAdd, Value: n})
}

func (m *nodeMemory) Commit(off, n uint64) error {
	if off > m.n.memory.size || n > m.n.memory.size-off {
		return fmt.Errorf("commit %d bytes at %#x of node %d: %w", n, off, m.n.id, rdma.ErrAccess)
	}
	return nil // pages are made when they are touched
}
