package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// The package's comment says how senders and mailboxes meet. Two kinds of goroutines call this
// file:
//
//  - The worker takes messages, gives their buffers back, and waits.
//  - Whatever reads a link has senders meet the mailbox and part from it, in the order in which the
//    node spoke. A node that fences a sender off waits for that: it waits for no worker, nor for
//    another node's answer.
//
// So the worker holds mu only while it touches what is here, and never while it asks a node
// something: the answer is read behind what the node said before, which may need mu.

// mailbox is a worker's: a receive queue of the device that a queue pair of each sender shares.
type mailbox struct {
	e *Endpoint
	o rdma.BoxOptions
	// nodes is nil while the mailbox is opened; closing it ends offers by way of the nodes.
	nodes interface{ Close() error } // what is there of it at the nodes
	// Only the worker touches nodes and seen; e and o do not change.
	seen uint64 // rdma.Base.Completed, when Await returned last

	mu sync.Mutex // held by the worker, and by goroutines that bring senders and end their connections
	// closed is set under the hold of mu that ends all connections: behind it no sender meets the
	// mailbox.
	closed bool
	err    error // the device does not take a buffer back
	// memory is slot after slot, o.Bytes each.
	memory []byte
	mem    memory
	// cq shares the channel of the worker's own queue: one sleep waits for both.
	cq   completions
	into receives
	// Each slot is in one of three places: with the device, in came, or taken by the worker. It
	// goes round in this order.
	slots []slot
	// came is in the order of the completions: so messages of one sender are in order.
	came    []int32 // slots, in a ring with room for all
	head, n int
	// senders has one connection a client and node by way of which it sends: another one replaces
	// it.
	senders map[senderKey]*sender
	// A completion names its queue pair, and so its sender: nothing in the message itself is relied
	// on.
	pairs map[uint32]*sender // by the number of their queue pair
	found [16]completion
	// Buffers are numbered as they are posted, from 1, and a receive queue takes them in order: one
	// that is less than latest and has not come back was passed by. See reclaim.
	posted uint64 // buffers that were ever given to the device
	latest uint64 // of these, the last one that came back
	lost   uint64 // one that others had passed when senders came or went; 0: there was none
	lostAt time.Duration
}

// slot is a buffer, and the message in it.
type slot struct {
	rdma.Message
	number uint64 // of the buffer, among those that were posted; 0: the device does not have it
	// It is looked at when the message is: one of a connection that broke is not taken.
	connection uint64 // see control.Sender
	taken      bool   // the worker has it
}

type senderKey struct {
	node   int
	client rdma.ClientID
}

// sender is one of those that are connected to a mailbox.
type sender struct {
	control.Sender
	qp pair
	// got is told to the sender when the connection ends: of what it has in flight so many arrived.
	got uint32 // messages
}

// Listen opens the worker's mailbox.
func (e *Endpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	m, err := e.listen(o)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// The device's part is there before the nodes know of the mailbox: senders may meet it at once.
// What was made is given back if there is an error.
func (e *Endpoint) listen(asked rdma.BoxOptions) (*mailbox, error) {
	o, err := rdma.CheckBox(asked, len(e.peers), e.Client())
	switch {
	case err != nil:
		return nil, fmt.Errorf("client %d: %w", e.Client(), err)
	case e.box != nil:
		return nil, fmt.Errorf("client %d: listen with a second mailbox: %w", e.Client(), rdma.ErrExists)
	case o.Slots > e.fabric.lim.slots:
		return nil, fmt.Errorf("client %d: listen with %d buffers: the device has %d: %w", e.Client(),
			o.Slots, e.fabric.lim.slots, rdma.ErrFull)
	}
	if err := e.Usable(); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	m := &mailbox{
		e: e, o: o, seen: e.Completed(), slots: make([]slot, o.Slots), came: make([]int32, o.Slots),
		senders: map[senderKey]*sender{}, pairs: map[uint32]*sender{},
	}
	if err := m.open(); err != nil {
		return nil, fmt.Errorf("listen as client %d: %w", e.Client(), errors.Join(err, m.shut()))
	}
	if m.nodes, err = e.Host(asked, m); err != nil {
		return nil, errors.Join(err, m.shut())
	}
	e.box = m
	e.Listening()
	return m, nil
}

// open makes the device's part, with all buffers posted. What it made by the time of an error is
// for shut.
func (m *mailbox) open() (err error) {
	a := m.e.fabric.a
	m.memory = make([]byte, m.o.Slots*m.o.Bytes)
	if m.mem, err = a.register(unsafe.Pointer(unsafe.SliceData(m.memory)), uint64(len(m.memory)), false); err != nil {
		return err
	}
	if m.cq, err = m.e.cq.beside(m.o.Slots); err != nil { // a buffer has one completion until it is posted again
		return err
	}
	if m.into, err = a.receives(m.o.Slots); err != nil {
		return err
	}
	for i := range m.slots {
		m.post(i)
	}
	return m.err
}

// post gives a buffer to the device. The caller holds mu. A device that takes no buffer leaves the
// error for Await: the buffer is lost, and the mailbox, too.
func (m *mailbox) post(i int) {
	key, _ := m.mem.keys()
	m.posted++
	m.slots[i].number = m.posted
	if err := m.into.post(uint64(i), m.memory[i*m.o.Bytes:(i+1)*m.o.Bytes], key); err != nil && m.err == nil {
		m.err = err
	}
}

// Meet implements control.Host. A goroutine of the link calls it. It waits for no worker, and the
// worker does not hold mu while it waits.
//
// The answer is a card, in which base is the length of a buffer. Errors go back to the sender:
// rdma.ErrNoBox of a mailbox that is closed, rdma.ErrRevoked to an earlier life of a client that
// has met it since.
func (m *mailbox) Meet(s control.Sender, offer []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, rdma.ErrNoBox
	}
	key := senderKey{s.From.Node(), s.Client}
	if old := m.senders[key]; old != nil {
		if old.Life > s.Life {
			return nil, rdma.ErrRevoked
		}
		// Before there is another one: so what went over the last one has arrived or never will,
		// and the sender's messages stay in order.
		m.end(old)
	}
	m.reclaim()
	// The sender only wants the last connection ended: see Endpoint.part and parted.
	if len(offer) == 0 {
		return nil, nil
	}
	remote, err := parseCard(offer)
	if err != nil {
		return nil, err
	}
	qp, err := m.into.pair(m.cq, accessNone)
	if err != nil {
		return nil, err
	}
	if err := qp.connect(remote); err != nil {
		return nil, errors.Join(err, qp.close())
	}
	c := qp.card()
	c.base = uint64(m.o.Bytes)
	// It is in the tables before the answer goes out: no message comes before the sender has that.
	own := &sender{Sender: s, qp: qp}
	m.senders[key], m.pairs[c.qpn] = own, own
	return c.bytes(), nil
}

// Part implements control.Host. When it returns, no message of these senders arrives. Those that
// had come before stay, and may be looked at. The node answers its fence when it has heard that
// Part returned. Senders of other nodes stay: these ask for themselves.
func (m *mailbox) Part(node int, gone func(*control.Sender) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, s := range m.senders {
		if key.node == node && gone(&s.Sender) {
			m.end(s)
		}
	}
	m.reclaim()
}

// end ends a sender's connection. What had arrived stays. The caller holds mu. It stops the queue
// pair before it closes it, so that got counts every message that came: the sender relies on the
// number when it sends the others again. Completions are taken twice: those that came before the
// queue pair was closed may be gone with it, and those that came while it was being closed are
// behind. The sender is in pairs until both are taken, so that all of them find it.
func (m *mailbox) end(s *sender) {
	number := s.qp.card().qpn
	if s.qp.stop() == nil {
		m.receive() // a device may forget completions with their queue pair
	}
	if err := s.qp.close(); err != nil {
		// The node that asked goes on as if nothing could arrive any more.
		panic(fmt.Sprintf("ibverbs: a queue pair that was fenced off is not gone: %v", err))
	}
	m.receive()
	delete(m.pairs, number)
	delete(m.senders, senderKey{s.From.Node(), s.Client})
}

// lostAfter is for how long a device may keep a buffer that others have passed. A message whose
// sender lives has mostly got its last packet long before. One that has not is sent again over
// another connection.
const lostAfter = time.Second

// reclaim takes back buffers that the device has lost: some say nothing of one that they took for a
// message of several packets from a sender that died before the last of these came. Receive queues
// are in order, so such a buffer is passed by others. A message that is still coming may have it,
// however. So all connections are ended, and senders come again: what they had in flight, and had
// not arrived, they send once more. The caller holds mu.
//
// Meet and Part call it, since it is when senders die that buffers are lost; two looks, lostAfter
// apart, that find the same buffer are needed to act.
func (m *mailbox) reclaim() {
	oldest := uint64(0)
	for i := range m.slots {
		if n := m.slots[i].number; n > 0 && n < m.latest && (oldest == 0 || n < oldest) {
			oldest = n
		}
	}
	switch now := realtime.Now(); {
	case oldest == 0 || oldest != m.lost:
		m.lost, m.lostAt = oldest, now
		return
	case now-m.lostAt < lostAfter:
		return
	}
	for _, s := range m.senders {
		m.end(s)
		// The sender counts what had come by this number, and sends the rest again: see
		// Endpoint.lastly.
		m.e.fabric.Bye(&s.Sender, s.got, true)
	}
	for i := range m.slots {
		if n := m.slots[i].number; n > 0 && n < m.latest {
			m.post(i)
		}
	}
	m.lost = 0
}

// receive takes what came. The caller holds mu. A message stays in its buffer. The queue's room is
// one completion a buffer, so that it is never full.
func (m *mailbox) receive() {
	for n := len(m.found); n == len(m.found); {
		n = m.cq.poll(m.found[:], 0)
		for _, c := range m.found[:n] {
			i := int(c.id)
			s := m.pairs[c.pair]
			// The device has done with the buffer, also of one that failed.
			m.latest, m.slots[i].number = max(m.latest, m.slots[i].number), 0
			if c.status != statusSuccess || s == nil {
				m.post(i) // a message that was cut off
				continue
			}
			s.got++
			at := &m.slots[i]
			at.From, at.Client, at.connection = s.From, s.Client, s.Connection
			at.Data = m.memory[i*m.o.Bytes:][:c.n:m.o.Bytes]
			m.came[(m.head+m.n)%len(m.came)] = int32(i)
			m.n++
		}
	}
}

// first returns the message that Next returns; nil: there is none. Held: there is, but its node is
// to say that it serves. What came by way of a connection that broke is dropped: the node has not
// heard of it when it fenced its sender off. The caller holds mu.
//
// A message is dropped here only, and not when the connection breaks: so the order is kept, and the
// buffer goes back by the worker. The time is read behind the completion, as in Endpoint.settle.
func (m *mailbox) first() (s *slot, held bool) {
	for ; m.n > 0; m.pop() {
		i := m.came[m.head]
		s := &m.slots[i]
		connection, until, err := m.e.fabric.Hears(s.From.Node())
		switch {
		case err != nil || connection != s.connection:
			m.post(int(i))
		case realtime.Boot() >= until:
			return nil, true
		default:
			return s, false
		}
	}
	return nil, false
}

// pop takes the first of came out of it. The caller holds mu.
func (m *mailbox) pop() {
	m.head = (m.head + 1) % len(m.came)
	m.n--
}

// Addr returns the mailbox's address by way of a node.
func (m *mailbox) Addr(node int) rdma.BoxAddr { return rdma.BoxAt(node, m.o.Number) }

// Next returns the next message. It does not wait. It polls the device only when nothing is left of
// what came before.
func (m *mailbox) Next() *rdma.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if m.n == 0 {
		m.receive()
	}
	s, _ := m.first()
	if s == nil {
		return nil
	}
	m.pop()
	s.taken = true
	return &s.Message
}

// Release gives a message's buffer back to the device. The message is one of a slot, and the slot
// is found by its address. It may be released behind Close: its memory is the heap's.
func (m *mailbox) Release(msg *rdma.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := int((uintptr(unsafe.Pointer(msg)) - uintptr(unsafe.Pointer(&m.slots[0]))) / unsafe.Sizeof(slot{}))
	if i < 0 || i >= len(m.slots) || &m.slots[i].Message != msg || !m.slots[i].taken {
		panic("ibverbs: message released twice")
	}
	m.slots[i].taken = false
	if !m.closed {
		m.post(i)
	}
}

// Await waits for a message, or for a completion: it polls for a moment, and then sleeps until the
// device tells of one. It goes on with what the worker has in flight meanwhile, and notices nodes
// that do not answer.
func (m *mailbox) Await(within time.Duration) error {
	e, until := m.e, rdma.Forever
	if within < rdma.Forever-realtime.Now() {
		until = realtime.Now() + max(within, 1)
	}
	for slice := sliceMin; ; slice = min(2*slice, sliceMax) {
		// Look, arm, look, sleep: as in Endpoint.await. Arming covers the mailbox's queue as well.
		ready, held, err := m.look(e.fabric.o.Spin)
		if err == nil && !ready {
			if err = e.cq.arm(); err == nil {
				ready, held, err = m.look(0) // what came before the queues were armed makes no event
			}
		}
		if ready || err != nil {
			return err
		}
		now := realtime.Now()
		if now >= until {
			return fmt.Errorf("wait for a message as client %d for %v: %w", e.Client(), within, rdma.ErrTimeout)
		}
		e.fabric.stats.add(&e.did)
		// Both wait for a word by TCP, which ends no sleep.
		if e.lookAll(now) || held {
			slice = heldSlice
		}
		e.did.Waits++
		if err := e.cq.await(min(until, realtime.Now()+slice)); err != nil {
			return fmt.Errorf("wait for messages: %w", err)
		}
	}
}

// look reports whether there is something that Await waits for, or comes in a moment. The order
// matters: the worker's own completions first, outside of mu, since an error among them asks a
// node. ready is also true when ops completed since Await last returned nil: see rdma.Mailbox.
func (m *mailbox) look(spin time.Duration) (ready, held bool, err error) {
	for until := time.Duration(0); ; {
		m.e.progress(0)
		m.mu.Lock()
		closed, first := m.closed, (*slot)(nil)
		if err = m.err; !closed {
			m.receive()
			first, held = m.first()
		}
		m.mu.Unlock()
		if uerr := m.e.Usable(); closed || uerr != nil {
			return false, false, fmt.Errorf("wait for a message as client %d: %w", m.e.Client(), rdma.ErrClosed)
		}
		done := m.e.Completed()
		if err != nil || first != nil || done != m.seen {
			m.seen = done
			return err == nil, false, err
		}
		now := realtime.Now()
		if until == 0 {
			until = now + spin
		}
		if now >= until {
			return false, held, nil
		}
	}
}

// Close drops the messages that are left. Senders are told which of theirs had come.
//
// The worker's own connections to other mailboxes end first: it tells these by the number of its
// own mailbox, and without one it may not send. What it has in flight ends in rdma.ErrClosed, and
// may arrive. A crash leaves at the other ends queue pairs on which nothing comes: see the
// package's comment.
func (m *mailbox) Close() error {
	e := m.e
	if e.box != m {
		return nil
	}
	for _, p := range e.ways {
		if !p.to.ring {
			e.part(p)
		}
	}
	e.rest()
	e.box = nil
	return errors.Join(m.nodes.Close(), m.shut()) // in that order: nothing begins to send to what is shut
}

// shut ends what the device has of the mailbox. Connections end before their receive queue, and
// that before the memory it writes to. It is called once, or behind an open that failed, with only
// a part of it made.
func (m *mailbox) shut() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, s := range m.senders {
		m.end(s)
		m.e.fabric.Bye(&s.Sender, s.got, false)
	}
	var errs []error
	if m.into != nil {
		errs = append(errs, m.into.close())
	}
	if m.cq != nil {
		errs = append(errs, m.cq.close())
	}
	if m.mem != nil {
		errs = append(errs, m.mem.close())
	}
	return errors.Join(errs...)
}
