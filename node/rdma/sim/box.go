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
	s *Sim
	e *endpoint
	o rdma.BoxOptions
	// inbox has BoxOptions.Slots buffers, for messages by way of all nodes together.
	inbox *rdma.Inbox
	seen  uint64 // rdma.Base.Completed, when Await returned last
	// A completion resumes waiter. A message arms it: that comes in the midst of an event.
	waiter *Worker // that is in Await
	closed bool
}

// boxes are the mailboxes of all workers. A SEND takes effect in deliver. Before that, on machines,
// reachBox has decided when it lands.
type boxes struct {
	pool  *pool
	sched *scheduler
	// A mailbox is there once for each node by way of which it is reached.
	byAddr map[rdma.BoxAddr]*mailbox // only looked up, never ranged over
}

var _ rdma.Messenger = (*endpoint)(nil)

// GoAt starts a worker as Go does that runs on a memory node, each on a core of its own: start no
// more than Hardware.NodeCores. It dies with its node. Messages of its mailbox at that node may
// gather from the node's memory.
//
// It sends and receives by the node's NIC. On machines with Hardware.Direct its READs and WRITEs of
// that node do not go by it.
func (s *Sim) GoAt(node int, name string, f func(ep rdma.Endpoint)) *Worker {
	if node < 0 || node >= len(s.nodes) {
		panic(fmt.Sprintf("sim: start %s at node %d of %d", name, node, len(s.nodes)))
	}
	return s.enter(name, &s.nodes[node], nil, f)
}

// Host starts a worker as GoAt does for which no Run waits. It begins anew whenever the node has
// come back. The error is of an unknown node, or says that no identity is left. Each beginning
// takes an identity; that of a worker that died with its node is in use until Forget.
func (s *Sim) Host(node int, name string, f func(ep rdma.Endpoint)) error {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("run %s beside node %d of %d: %w", name, node, len(s.nodes), rdma.ErrAccess)
	}
	n := &s.nodes[node]
	_, err := s.start(name, n, nil, nil, f)
	// Restart starts them in this order.
	if err == nil {
		n.hosted = append(n.hosted, hosted{name, f})
	}
	return err
}

// Listen opens the worker's mailbox. The error wraps ErrExists when the worker has a mailbox, or
// another one has the number, at any of the nodes. The number of a worker that crashed is free.
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
		// All are looked at before any is taken: a Listen that fails changes nothing.
		if e.s.boxes.box(a) != nil {
			return nil, fmt.Errorf("client %d: %s: %w", e.id, a, rdma.ErrExists)
		}
	}
	for _, a := range m.addresses() {
		e.s.boxes.byAddr[a] = m
	}
	e.box = m
	// From here on batches of the endpoint take SENDs.
	e.Listening()
	return m, nil
}

// box returns the mailbox at an address; nil: there is none, or its worker crashed. A worker that
// was fenced off still has its mailbox, and gets messages: only its own verbs are dropped.
func (bs *boxes) box(a rdma.BoxAddr) *mailbox {
	m := bs.byAddr[a]
	if m == nil || m.e.crashed() {
		return nil
	}
	return m
}

// addresses returns the mailbox's address at each node by way of which it is reached.
func (m *mailbox) addresses() (all []rdma.BoxAddr) {
	for node := range m.s.nodes {
		if m.o.Node == rdma.All || m.o.Node == node {
			all = append(all, m.Addr(node))
		}
	}
	return all
}

// Addr does not look whether the mailbox is reached by way of the node.
func (m *mailbox) Addr(node int) rdma.BoxAddr { return rdma.BoxAt(node, m.o.Number) }

// Next also charges the worker's CPU for the message. A worker on a memory node pays with
// ServiceTime for all that it does with the message but posting and polling.
func (m *mailbox) Next() *rdma.Message {
	msg := m.inbox.Next()
	if h, w := m.s.hw, m.s.current; msg != nil && h != nil && w != nil && !m.s.closed {
		cost := h.poll
		if n := w.root.home; n != nil {
			service := h.service
			// A message of a worker on a memory node, this one's or another's, is a peer's.
			if from := m.s.clients[msg.Client]; from != nil && from.owner != nil && from.owner.root.home != nil {
				service = h.peer
			}
			cost = max(cost, n.factor().of(service))
		}
		w.spend(m.s.now(), cost)
	}
	return msg
}

// Release gives the message's buffer back: the next one may overwrite Data at once.
func (m *mailbox) Release(msg *rdma.Message) { m.inbox.Release(msg) }

// Await gives way until a message is there, or an op of the worker is complete. Once the simulation
// is closing it fails at once. Outside Run nothing comes, and it does not wait.
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
	// deliver and complete find the worker by waiter; describe names box.
	w.box, m.waiter = m, w
	s.arms(w, within)
	// What came in the moment of the limit counts: ready is asked first.
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
// polling. A call that returns true uses up the completions that it saw. It counts as a spin: a
// worker that finds something each time and does not take it would loop for ever.
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

// Senders meet ErrNoBox from now on, those of messages in flight, too. The number is free.
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
// the SEND lands, as one step: the message is in its mailbox, or the SEND fails. The bytes are
// copied here, those that the message gathers as well: it has what is in memory when it lands.
// Without a free buffer the error wraps ErrBoxFull, and the message is dropped.
func (bs *boxes) deliver(e *endpoint, op *rdma.Op) error {
	to := rdma.BoxAddr(op.Addr)
	m := bs.box(to)
	if m == nil {
		return rdma.ErrNoBox
	}
	from := rdma.BoxAddr(0)
	// A sender that has closed its mailbox since has no address to be answered at.
	if e.box != nil {
		from = e.box.Addr(to.Node())
	}
	msg, err := m.inbox.Add(from, e.id, op.Len())
	if err != nil {
		return err
	}
	// The buffer is the receiver's from Next to Release, and the fabric's before.
	rest := msg.Data[copy(msg.Data, op.Buf):]
	for _, g := range op.Spans {
		bs.pool.nodes[g.Addr.Node()].memory.Read(g.Addr.Offset(), rest[:g.Len])
		rest = rest[g.Len:]
	}
	// Armed for now, not resumed: the event in which the SEND lands is not at its end.
	if m.waiter != nil {
		bs.sched.arm(m.waiter, bs.sched.now())
	}
	return nil
}

// gathers returns why a message may not gather what it does: a worker reaches the memory of the
// node that it runs on, by a mailbox there. It is asked when the message is posted. What it gathers
// is read when it lands.
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
// Partitions of the receiver cut messages to it; its machine is where they arrive.
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
//
// A message to a worker of another machine goes on from the node over its link, in the NIC's hands:
// it takes none of the node's CPU. The acknowledgement comes from the receiver, by the same way.
func (cs *cards) reachBox(f *flight) (t, queue, back int64) {
	h, n := cs.hw, &cs.pool.nodes[f.node]
	request, _ := h.wire(f.op)
	t, back = cs.now(), h.prop
	if f.root.home != n {
		t, queue, back = n.reach(f)
	}
	to := cs.boxes.receiver(f)
	switch {
	// The message ends at the node.
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
