package sim

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// mailbox is a worker's. A message goes one way: from its sender to the node, or from a worker at
// that node to the receiver. One between two workers of other machines passes the node, of which
// the CPU does not see it.
type mailbox struct {
	s      *Sim
	e      *endpoint
	o      rdma.BoxOptions
	inbox  *rdma.Inbox
	seen   uint64  // rdma.Base.Completed, when Await returned last
	waiter *Worker // that is in Await
	closed bool
}

// boxes are the mailboxes of all workers.
type boxes struct {
	pool   *pool
	sched  *scheduler
	byAddr map[rdma.BoxAddr]*mailbox // only looked up, never ranged over
}

var _ rdma.Messenger = (*endpoint)(nil)

// GoAt starts a worker as Go does that runs on a memory node, each on a core of its own: start no
// more than Hardware.NodeCores. It dies with its node. Messages of its mailbox at that node may
// gather from the node's memory.
func (s *Sim) GoAt(node int, name string, f func(ep rdma.Endpoint)) *Worker {
	if node < 0 || node >= len(s.nodes) {
		panic(fmt.Sprintf("sim: start %s at node %d of %d", name, node, len(s.nodes)))
	}
	return s.enter(name, &s.nodes[node], nil, f)
}

// Host starts a worker as GoAt does for which no Run waits. It begins anew whenever the node has
// come back.
func (s *Sim) Host(node int, name string, f func(ep rdma.Endpoint)) error {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("run %s beside node %d of %d: %w", name, node, len(s.nodes), rdma.ErrAccess)
	}
	n := &s.nodes[node]
	_, err := s.start(name, n, nil, nil, f)
	if err == nil {
		n.hosted = append(n.hosted, hosted{name, f})
	}
	return err
}

// Listen opens the worker's mailbox.
func (e *endpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	if err := e.usable("listen"); err != nil {
		return nil, err
	}
	o, err := rdma.CheckBox(o, len(e.s.nodes), e.id)
	if err != nil {
		return nil, fmt.Errorf("client %d: %w", e.id, err)
	}
	m := &mailbox{s: e.s, e: e, o: o, inbox: rdma.NewInbox(o), seen: e.Completed()}
	if e.box != nil {
		return nil, fmt.Errorf("client %d: listen with a second mailbox: %w", e.id, rdma.ErrExists)
	}
	for _, a := range m.addresses() {
		if e.s.boxes.box(a) != nil {
			return nil, fmt.Errorf("client %d: %s: %w", e.id, a, rdma.ErrExists)
		}
	}
	for _, a := range m.addresses() {
		e.s.boxes.byAddr[a] = m
	}
	e.box = m
	e.Listening()
	return m, nil
}

// box returns the mailbox at an address; nil: there is none, or its worker crashed.
func (bs *boxes) box(a rdma.BoxAddr) *mailbox {
	m := bs.byAddr[a]
	if m == nil || m.e.crashed() {
		return nil
	}
	return m
}

func (m *mailbox) addresses() (all []rdma.BoxAddr) {
	for node := range m.s.nodes {
		if m.o.Node == rdma.All || m.o.Node == node {
			all = append(all, m.Addr(node))
		}
	}
	return all
}

func (m *mailbox) Addr(node int) rdma.BoxAddr { return rdma.BoxAt(node, m.o.Number) }

// Next also charges the worker's CPU for the message.
func (m *mailbox) Next() *rdma.Message {
	msg := m.inbox.Next()
	if h, w := m.s.hw, m.s.current; msg != nil && h != nil && w != nil && !m.s.closed {
		cost := h.poll
		if n := w.root.home; n != nil {
			service := h.service
			if from := m.s.clients[msg.Client]; from != nil && from.owner != nil && from.owner.root.home != nil {
				service = h.peer
			}
			cost = max(cost, n.factor().of(service))
		}
		w.spend(m.s.now(), cost)
	}
	return msg
}

func (m *mailbox) Release(msg *rdma.Message) { m.inbox.Release(msg) }

func (m *mailbox) Await(within time.Duration) error {
	s, w := m.s, m.s.current
	if m.ready() {
		return nil
	}
	if s.closing() || m.closed {
		return fmt.Errorf("wait for a message as client %d: %w", m.e.id, rdma.ErrClosed)
	}
	if w == nil {
		return fmt.Errorf("wait for a message outside Run: %w", rdma.ErrTimeout)
	}
	w.box, m.waiter = m, w
	s.arms(w, within)
	alive := w.park()
	w.box, m.waiter = nil, nil
	switch {
	case m.ready():
		return nil
	case !alive:
		return fmt.Errorf("wait for a message as client %d: %w", m.e.id, rdma.ErrClosed)
	}
	return fmt.Errorf("wait for a message as client %d for %v: %w", m.e.id, within, rdma.ErrTimeout)
}

// ready reports whether there is something that Await waits for, and charges the worker for
// polling.
func (m *mailbox) ready() bool {
	done := m.e.Completed()
	if m.closed || m.s.closed || m.inbox.Len() == 0 && done == m.seen {
		return false
	}
	m.seen = done
	if w := m.s.current; w != nil {
		w.spin(1)
		if m.s.hw != nil {
			m.e.polled(w)
		}
	}
	return true
}

func (m *mailbox) Close() error {
	if m.closed {
		return nil
	}
	m.closed, m.e.box = true, nil
	for _, a := range m.addresses() {
		if m.s.boxes.byAddr[a] == m {
			delete(m.s.boxes.byAddr, a)
		}
	}
	return nil
}

// deliver puts a message into its mailbox, and wakes the worker that waits for one. It happens when
// the SEND lands, as one step: the message is in its mailbox, or the SEND fails.
func (bs *boxes) deliver(e *endpoint, op *rdma.Op) error {
	to := rdma.BoxAddr(op.Addr)
	m := bs.box(to)
	if m == nil {
		return rdma.ErrNoBox
	}
	from := rdma.BoxAddr(0)
	if e.box != nil {
		from = e.box.Addr(to.Node())
	}
	msg, err := m.inbox.Add(from, e.id, op.Len())
	if err != nil {
		return err
	}
	rest := msg.Data[copy(msg.Data, op.Buf):]
	for _, g := range op.Spans {
		bs.pool.nodes[g.Addr.Node()].memory.Read(g.Addr.Offset(), rest[:g.Len])
		rest = rest[g.Len:]
	}
	if m.waiter != nil {
		bs.sched.arm(m.waiter, bs.sched.now())
	}
	return nil
}

// gathers returns why a message may not gather what it does: a worker reaches the memory of the
// node that it runs on, by a mailbox there.
func (e *endpoint) gathers(op *rdma.Op) error {
	for _, g := range op.Spans {
		n := g.Addr.Node()
		if e.owner == nil || e.box.o.Node != n || e.owner.root.home != &e.s.nodes[n] {
			return fmt.Errorf("gather from node %d, at which the worker does not run and listen: %w", n, rdma.ErrAccess)
		}
		off, size := g.Addr.Offset(), e.s.Size()
		if g.Len < 0 || off > size || uint64(g.Len) > size-off {
			return fmt.Errorf("gather %d bytes at %s: %w", g.Len, g.Addr, rdma.ErrAccess)
		}
	}
	return nil
}

// receiver returns the client that a message is for; nil: there is none, or no client has it.
func (bs *boxes) receiver(f *flight) *Worker {
	if f.op == nil || f.op.Verb != rdma.Send {
		return nil
	}
	if m := bs.box(rdma.BoxAddr(f.op.Addr)); m != nil && m.e.owner != nil {
		return m.e.owner.root
	}
	return nil
}

// reachBox is reach for a message. What comes from a worker at the node has passed the node's port.
func (cs *cards) reachBox(f *flight) (t, queue, back int64) {
	h, n := cs.hw, &cs.pool.nodes[f.node]
	request, _ := h.wire(f.op)
	t, back = cs.now(), h.prop
	if f.root.home != n {
		t, queue, back = n.reach(f)
	}
	to := cs.boxes.receiver(f)
	switch {
	case to == nil:
	case to.home == n:
		t = n.store.pass(t, n.factor().of(h.onPCIe(f.op.Len())))
	default:
		if f.root.home != n { // passed on
			t = n.out.pass(t, h.onLink(request)) + h.prop
			n.bytesOut += uint64(request)
			back += h.prop
		}
		to.machine.bytesIn += uint64(request)
		t = to.machine.in.pass(t, h.onLink(request))
	}
	return t, queue, back
}
