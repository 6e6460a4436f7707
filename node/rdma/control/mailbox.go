package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Mailboxes as their workers know them. A node keeps two numbers of a mailbox: the buffers that it
// has taken for messages, and how many of them the worker has said that it released. It refuses a
// message while their difference is the number of buffers. The worker opens the mailbox by a listen
// frame, which says how many buffers hold messages of earlier connections. From then on each frame
// of the worker to that node brings the number of those released. A message comes among the node's
// answers, and is put into the inbox by the goroutine that reads. Where messages come from device
// to device, mailboxes are only opened and closed so: see meet.go.

// mailboxes are those of a fabric's workers, by the ids that the nodes know them by: no two
// mailboxes of a process have the same, so that a message that is late finds its own mailbox or
// none. A link's lock is taken before theirs, and theirs before a mailbox's.
type mailboxes struct {
	sync.RWMutex
	by   map[uint32]*mailbox
	last uint32
}

// mailbox is a worker's. The goroutine that reads a node's answers puts messages into it under mu,
// and notifies the endpoint. The fields before mu are the worker's own, or never change.
type mailbox struct {
	w     *Worker
	o     rdma.BoxOptions
	host  Host // nil: messages come by way of the nodes
	id    uint32
	seen  uint64 // rdma.Base.Completed, when Await returned last
	looks int    // how often Next has found nothing since Await was called last
	late  error  // of Await

	// mu is held for moments only. The goroutine that reads puts into inbox, and only the worker
	// takes out.
	mu     sync.Mutex
	inbox  *rdma.Inbox
	via    []via // by node
	closed bool
}

// via is a mailbox at one of the nodes. The node counts the buffers there, so that the mailbox has
// as many for each node; they are made when the first message comes by way of it. All but m is
// under the mailbox's mu. What a frame says of it is read while the link is locked as well.
type via struct {
	m *mailbox
	// It is what makes an opening happen once on a connection, though both openBy and begun ask for
	// it.
	times uint64 // which connection of the link it was opened on last
	heard bool   // there, the node has answered
	err   error  // why it is not open

	made bool // it has buffers
	// held counts messages of earlier connections, too: they are still in the mailbox's buffers.
	// The node is told of them when the mailbox is opened again.
	held uint32 // of these, with messages that are not released
	// released and told wrap, as the node's count does.
	released uint32 // since it was opened
	told     uint32 // of these, the node was told of
}

// listenPatience bounds the wait for a node that is to open a mailbox, or close it. transport
// breaks the connection to a node that is silent for longer, which closes the mailbox there.
const listenPatience = transport.DeadAfter

// Listen opens the worker's mailbox. One at all nodes is opened at those that are in reach, and at
// the others once they are; so it is, too, when a connection is made again. Messages that were on
// their way then are lost. The error wraps rdma.ErrNodeDown where none of its nodes is in reach,
// and rdma.ErrExists where another worker has the number.
func (w *Worker) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	m, err := w.listen(o, nil)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", w.Identity.ID, w.pool.name, err)
	}
	return m, nil
}

// listen makes a mailbox, and waits until the nodes in reach have opened it. It is among the
// process's mailboxes before: a connection that is made meanwhile opens it, too, and a message that
// comes at once finds it.
func (w *Worker) listen(o rdma.BoxOptions, h Host) (*mailbox, error) {
	o, err := rdma.CheckBox(o, len(w.Lost), w.Identity.ID)
	switch {
	case err != nil:
		return nil, err
	case w.Identity.ID == 0:
		return nil, fmt.Errorf("listen without an identity: %w", rdma.ErrAccess)
	case w.pool.record.Fabric != "" && h == nil:
		return nil, fmt.Errorf("listen for messages that go over a device: %w", rdma.ErrNotSupported)
	case w.closed || w.pool.closing.Load():
		return nil, fmt.Errorf("listen: %w", rdma.ErrClosed)
	case w.box != nil:
		return nil, fmt.Errorf("listen with a second mailbox: %w", rdma.ErrExists)
	}
	m := &mailbox{w: w, o: o, host: h, seen: w.Completed(), inbox: rdma.NewInbox(rdma.BoxOptions{Bytes: o.Bytes}),
		via: make([]via, len(w.Lost))}
	m.late = fmt.Errorf("wait for a message as client %d: %w", w.Identity.ID, rdma.ErrTimeout)
	for node := range m.via {
		m.via[node].m = m
	}
	w.pool.boxes.add(m)
	w.box = m
	if err := m.open(); err != nil {
		_ = m.Close()
		return nil, err
	}
	w.Listening()
	return m, nil
}

// add gives a mailbox an id that none had before it.
func (all *mailboxes) add(m *mailbox) {
	all.Lock()
	defer all.Unlock()
	all.last++
	m.id = all.last
	all.by[m.id] = m
}

// remove lets messages that come yet find no mailbox.
func (all *mailboxes) remove(m *mailbox) {
	all.Lock()
	defer all.Unlock()
	delete(all.by, m.id)
}

// begun opens mailboxes at a node to which a connection was just made. The link holds its lock, and
// nothing else was sent over the connection: so the mailbox is open at the node before a verb of
// this process is executed there that could cause an answer.
func (all *mailboxes) begun(s transport.Sending, node int) {
	all.RLock()
	defer all.RUnlock()
	for _, m := range all.by {
		if m.isAt(node) {
			m.openAt(s, node)
		}
	}
}

// take takes a message that came by way of a node. p is the link's, and is copied. An error breaks
// the connection: the node has passed on what breaks the rules. A message for a mailbox that was
// closed is dropped: the node may have sent it before it heard.
func (all *mailboxes) take(node int, h transport.Header, p []byte) error {
	le := binary.LittleEndian
	if len(p) < MessageBytes || le.Uint64(p[8:]) > uint64(len(p)-MessageBytes) {
		return fmt.Errorf("a message of %d bytes: %w", len(p), transport.ErrProtocol)
	}
	from, client, n := int(le.Uint32(p)), le.Uint32(p[4:]), int(le.Uint64(p[8:]))
	if client > maxClients || !MayUse(from, rdma.ClientID(client)) {
		return fmt.Errorf("a message from mailbox %d of client %d: %w", from, client, transport.ErrProtocol)
	}
	all.RLock()
	m := all.by[h.Tag]
	all.RUnlock()
	if m == nil {
		return nil // it was closed
	}
	return m.take(node, rdma.BoxAt(node, from), rdma.ClientID(client), p[MessageBytes:][:n])
}

// take puts a message into the inbox, and then rouses the worker.
func (m *mailbox) take(node int, from rdma.BoxAddr, c rdma.ClientID, data []byte) error {
	if err := m.put(node, from, c, data); err != nil {
		return fmt.Errorf("a message that has no place: %w: %w", transport.ErrProtocol, err)
	}
	m.w.Waits.Notify()
	return nil
}

// A message that finds no place breaks the connection: the node counts buffers, and is wrong. The
// first one by way of a node makes the buffers for it: a mailbox at all nodes takes no memory for
// those that bring nothing.
func (m *mailbox) put(node int, from rdma.BoxAddr, c rdma.ClientID, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.via[node]
	if !v.made {
		v.made = true
		m.inbox.Grow(m.o.Slots)
	}
	if v.held == uint32(m.o.Slots) {
		return rdma.ErrBoxFull
	}
	// The copy is complete before mu is free, and with it before Next returns the message.
	msg, err := m.inbox.Add(from, c, len(data))
	if err == nil {
		copy(msg.Data, data)
		v.held++
	}
	return err
}

// isAt reports whether messages come by way of a node. A worker without a mailbox has nil, which is
// at none.
func (m *mailbox) isAt(node int) bool { return m != nil && (m.o.Node == rdma.All || m.o.Node == node) }

// open opens the mailbox at its nodes, one after another. Of several some may be out of reach:
// those open it when they are connected. An error is that of a node which refuses, or that none was
// in reach.
func (m *mailbox) open() error {
	var down error
	up := false
	for node := range m.via {
		if !m.isAt(node) {
			continue
		}
		err := m.openBy(node)
		switch {
		case err == nil:
			up = true
		case !errors.Is(err, rdma.ErrNodeDown):
			return err
		default:
			down = err
		}
	}
	if !up {
		return down
	}
	return nil
}

// openBy opens the mailbox at a node, and waits until it is, for as long as listenPatience. Where a
// new connection had it opened before, that is what it waits for. When the connection breaks
// meanwhile the next one's opening counts, unless the loss of the first is seen before.
func (m *mailbox) openBy(node int) error {
	if err := m.w.pool.Down(node); err != nil {
		return err
	}
	l := m.w.pool.links[node].verbs
	s, err := l.Begin()
	if err != nil {
		return err
	}
	m.openAt(s, node)
	if s.Done() {
		l.Flush()
	}
	patience := realtime.Within(listenPatience)
	for {
		m.w.Waits.Collect()
		m.mu.Lock()
		heard, err := m.via[node].heard, m.via[node].err
		m.mu.Unlock()
		switch {
		case heard && err != nil:
			return fmt.Errorf("open mailbox %d at node %d: %w", m.o.Number, node, err)
		case heard:
			return nil
		case patience.Over():
			return fmt.Errorf("open mailbox %d: node %d has not answered for %v: %w", m.o.Number, node,
				listenPatience, rdma.ErrNodeDown)
		}
		l.Await(m.w.Waits, patience.Until())
	}
}

// openAt asks a node to open the mailbox, once on each connection. What is held of earlier ones
// still takes buffers. The caller holds the link's lock, so that no frame with an earlier count
// follows. It claims no epoch: only the worker knows which one it has joined, and any goroutine may
// come here. A node opens a mailbox in every epoch, unless the life was revoked.
func (m *mailbox) openAt(s transport.Sending, node int) {
	v := &m.via[node]
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.times == s.Times() {
		return
	}
	// The node counts anew from here.
	v.times, v.heard, v.err, v.released, v.told = s.Times(), false, nil, 0, 0
	out := s.Out()
	from := len(*out)
	*out = append(*out, make([]byte, transport.HeaderBytes)...)
	r := m.w.rights
	r.Key = m.w.pool.links[node].verbs.Key.Load()
	*out = r.Append(*out)
	for _, x := range [...]uint32{uint32(m.o.Number), m.id, uint32(m.o.Slots), uint32(m.o.Bytes), v.held, 0} {
		*out = binary.LittleEndian.AppendUint32(*out, x)
	}
	s.End(transport.KindListen, ListenOpen, from, v)
}

// Land takes the node's word on the opening. Each connection has an opening of its own, and answers
// to an earlier one cannot come any more.
func (v *via) Land(h transport.Header, p []byte) error {
	if h.Kind != transport.KindListen || len(p) > 0 {
		return fmt.Errorf("frame of kind %d with %d bytes answers a listen: %w", h.Kind, len(p), transport.ErrProtocol)
	}
	v.end(h.Status.Err())
	return nil
}

// Lose says that the connection broke before the node's word. The next one opens the mailbox anew.
func (v *via) Lose(err error) { v.end(err) }

// end is called by the link's reader, or by the goroutine that breaks the link.
func (v *via) end(err error) {
	v.m.mu.Lock()
	v.heard, v.err = true, err
	v.m.mu.Unlock()
	v.m.w.Waits.Notify()
}

// Addr returns the mailbox's address by way of a node.
func (m *mailbox) Addr(node int) rdma.BoxAddr { return rdma.BoxAt(node, m.o.Number) }

// mostLooks is how often a worker looks for a message in vain before it is taken for one that does
// not call Await: others read for it then. To have others read costs a switch between threads for
// each message.
const mostLooks = 16

// Next returns the next message, without waiting. Its buffer is the caller's until Release.
func (m *mailbox) Next() *rdma.Message {
	m.mu.Lock()
	msg := m.inbox.Next()
	m.mu.Unlock()
	if msg == nil {
		if m.looks++; m.looks%mostLooks == 0 {
			m.w.LeaveToOthers()
		}
		m.report()
	}
	return msg
}

// Release gives a message's buffer back. Its node is told with the next verbs; or at once, when it
// may lack half of the buffers for want of word. The buffer is free for the inbox at once, and for
// the node when it is told: until then it refuses rather than overruns. The message is one of this
// mailbox, and is released once.
func (m *mailbox) Release(msg *rdma.Message) {
	node := msg.From.Node()
	m.mu.Lock()
	m.inbox.Release(msg)
	v := &m.via[node]
	v.held--
	v.released++
	late := 2*(v.released-v.told) >= uint32(m.o.Slots) && !m.closed
	m.mu.Unlock()
	if late {
		m.send(node)
	}
}

// report tells nodes that may take half of the buffers for used of those that are not, before the
// worker waits for messages that these would be for.
func (m *mailbox) report() {
	for node := range m.via {
		m.mu.Lock()
		v := &m.via[node]
		late := v.released != v.told && 2*(v.held+v.released-v.told) >= uint32(m.o.Slots) && !m.closed
		m.mu.Unlock()
		if late {
			m.send(node)
		}
	}
}

// send tells a node how many buffers were released. There is no answer. Where the link is down
// there is nothing to tell: the next connection's opening says how many buffers are taken.
func (m *mailbox) send(node int) {
	l := m.w.pool.links[node].verbs
	s, err := l.Begin()
	if err != nil {
		return
	}
	out := s.Out()
	at := len(*out)
	*out = m.w.Claim(append(*out, make([]byte, transport.HeaderBytes)...), node)
	s.Tell(transport.KindListen, transport.StatusOK, ListenTell, at)
	if s.Done() {
		l.Flush()
	}
}

// tell returns how many buffers were released, for a frame that is being sent to a node. The caller
// holds the link's lock, so that numbers are sent in the order in which they grow. The node is
// taken to know: a frame that is lost takes the connection with it, and with that the count.
func (m *mailbox) tell(node int) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.via[node]
	v.told = v.released
	return v.told
}

// Await waits for a message, or for a completion. It reads the connections itself where one node
// alone may bring something.
func (m *mailbox) Await(within time.Duration) error {
	m.looks = 0
	until := time.Duration(0)
	if within < rdma.Forever {
		until = realtime.Now() + max(within, 1)
	}
	seen := m.seen
	ready, err := m.look()
	switch {
	// a message that was left there: the worker may wait for verbs, which it does not read so
	case ready && m.seen == seen:
		m.w.LeaveToOthers()
	case !ready && err == nil:
		m.report()
	}
	for ; !ready && err == nil; ready, err = m.look() {
		if until > 0 && realtime.Now() >= until {
			m.w.LeaveToOthers()
			return m.late
		}
		m.await(until)
	}
	return err
}

// look reports whether there is something that Await waits for. It completes what came in, and
// remembers how much that was: a completion makes Await return once.
func (m *mailbox) look() (bool, error) {
	m.w.Waits.Collect()
	m.mu.Lock()
	n, closed := m.inbox.Len(), m.closed
	m.mu.Unlock()
	if closed || m.w.pool.closing.Load() {
		return false, fmt.Errorf("wait for a message as client %d: %w", m.w.Identity.ID, rdma.ErrClosed)
	}
	done := m.w.Completed()
	if n == 0 && done == m.seen {
		return false, nil
	}
	m.seen = done
	return true, nil
}

// await returns when something may have come, or at until. The worker reads the only node that may
// bring something. Of several it reads none: a goroutine of each link does, and rouses it.
func (m *mailbox) await(until time.Duration) {
	w, from, several := m.w, -1, false
	for node := range m.via {
		if m.isAt(node) || w.Flying[node] > 0 {
			from, several = node, from >= 0
			if several {
				break
			}
		}
	}
	if !several {
		w.pool.links[from].verbs.Await(w.Waits, until)
		return
	}
	for node := range m.via {
		if m.isAt(node) || w.Flying[node] > 0 {
			w.Waits.Ask(w.pool.links[node].verbs)
		}
	}
	w.Waits.ParkAside(until)
}

// Close drops the messages that are left. Nodes are told one after another, and each has
// listenPatience. Nodes that do not answer in time have their connections broken soon. A node that
// has not answered may still forward messages. They find no mailbox here, and are dropped.
func (m *mailbox) Close() error {
	w := m.w
	if w.box != m {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	w.pool.boxes.remove(m)
	for node := range m.via {
		if !m.isAt(node) {
			continue
		}
		c := w.newCall()
		err := w.pool.links[node].verbs.Send(transport.KindListen, ListenClose, c, func(out []byte) []byte {
			return w.Claim(out, node)
		})
		if err == nil {
			_ = w.answered(c, node, listenPatience)
		}
	}
	w.box = nil
	return nil
}

// BoxFor returns the number of the worker's mailbox, of which a SEND comes, or why the worker may
// not send it: see mailbox.maySend.
func (w *Worker) BoxFor(op *rdma.Op) (number int, err error) {
	if err := w.box.maySend(op); err != nil {
		return 0, err
	}
	return w.box.o.Number, nil
}

// maySend returns why the worker may not send a message: it has no mailbox, or none at the node of
// which it gathers memory. The node is the one that gathers, so that the message has to go by way
// of it. Only rdma.ErrAccess takes the worker's connection down, as memory that it may not touch
// does.
func (m *mailbox) maySend(op *rdma.Op) error {
	if m == nil {
		return fmt.Errorf("its sender has closed its mailbox: %w", rdma.ErrClosed)
	}
	size, n := m.w.pool.record.Memory, uint64(len(op.Buf))
	for _, s := range op.Spans {
		if off := s.Addr.Offset(); s.Addr.Node() != m.o.Node || s.Len < 0 || off > size || uint64(s.Len) > size-off {
			return fmt.Errorf("gather %d bytes at %s: %w", s.Len, s.Addr, rdma.ErrAccess)
		}
		n += uint64(s.Len)
	}
	switch {
	case len(op.Spans) > 0 && op.Addr.Node() != m.o.Node:
		return fmt.Errorf("gather from node %d by way of another: %w", m.o.Node, rdma.ErrNotSupported)
	case n > rdma.MaxMessage || len(op.Spans) > transport.MaxSpans:
		return fmt.Errorf("%d bytes in %d pieces, and there may be %d in %d: %w", n, len(op.Spans),
			rdma.MaxMessage, transport.MaxSpans, rdma.ErrMessageSize)
	}
	return nil
}

// rouse has the workers that wait for messages see that the fabric closes. One that reads is roused
// by what a node says, to a ping. closing was set before: a worker that looks behind this sees it.
func (p *Pool) rouse() {
	p.boxes.RLock()
	some := len(p.boxes.by) > 0
	for _, m := range p.boxes.by {
		m.w.Waits.Notify()
	}
	p.boxes.RUnlock() // a link's lock is taken first
	if !some {
		return
	}
	for _, l := range p.links[:p.record.Nodes] {
		l.verbs.Nudge()
	}
}
