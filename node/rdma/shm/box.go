package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// boxes are the mailboxes of a fabric, by each address at which one is reached. The lock is held
// for the map alone, and never while a message is copied.
type boxes struct {
	sync.RWMutex
	at map[rdma.BoxAddr]*mailbox
}

// mailbox is a worker's. Senders are other goroutines: they fill its buffers in under mu, and
// leave word in wake. It is for mem: pools, where a message is a copy within the process. Its
// owner takes messages out, and no other goroutine does. late is made once, since Await fails so
// in every turn of an idle loop.
//
// A message takes this way, with deliver inside the sender's Post:
//
//	deliver  finds the mailbox, takes a buffer of the inbox, fills it in,
//	         and then counts it in came and leaves word in wake
//	Await    returns when came is not 0, or an op of the owner has completed
//	Next     takes the oldest; the buffer is the owner's until Release
//
// So messages of one sender arrive in the order in which it posted them, and a fence of the
// sender waits for those that are under way. Revoke of the owner does not end the mailbox; its
// Close, and that of the endpoint, do.
type mailbox struct {
	e    *Endpoint
	o    rdma.BoxOptions
	seen uint64 // rdma.Base.Completed, when Await returned last
	wake chan struct{}
	late error // of Await

	// mu is held by a sender while it fills a buffer: when Close has had it, none is being filled.
	// Behind it nothing is locked.
	mu     sync.Mutex
	inbox  *rdma.Inbox
	closed atomic.Bool
	// came is changed under mu. Only the owner takes messages out, so that what it has counted is
	// there.
	came atomic.Int32 // messages in inbox: the owner looks without mu
}

// Listen opens the worker's mailbox. A worker has one at a time. Errors wrap rdma.ErrNotSupported
// on a file, rdma.ErrExists when the worker has one or the number is taken, rdma.ErrAccess when
// the options are out of range, and rdma.ErrClosed.
func (e *Endpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	m, err := e.listen(o)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", e.id, e.fabric.name, err)
	}
	return m, nil
}

func (e *Endpoint) listen(o rdma.BoxOptions) (*mailbox, error) {
	o, err := rdma.CheckBox(o, len(e.lost), e.id)
	switch {
	case err != nil:
		return nil, err
	case e.fabric.faults:
		return nil, fmt.Errorf("listen for messages in shared memory: %w", rdma.ErrNotSupported)
	case e.closed || e.fabric.closing.Load():
		return nil, fmt.Errorf("listen: %w", rdma.ErrClosed)
	case e.box != nil:
		return nil, fmt.Errorf("listen with a second mailbox: %w", rdma.ErrExists)
	}
	m := &mailbox{e: e, o: o, wake: make(chan struct{}, 1), inbox: rdma.NewInbox(o), seen: e.Completed()}
	m.late = fmt.Errorf("wait for a message as client %d: %w", e.id, rdma.ErrTimeout)
	all := &e.fabric.boxes
	all.Lock()
	defer all.Unlock()
	for _, a := range m.addresses() {
		if all.at[a] != nil {
			return nil, fmt.Errorf("%s: %w", a, rdma.ErrExists)
		}
	}
	for _, a := range m.addresses() {
		all.at[a] = m
	}
	e.box = m
	e.Listening()
	return m, nil
}

// addresses returns where the mailbox is reached. One that is reached by all nodes has an address
// at each: a sender names the node by which it sends.
func (m *mailbox) addresses() (all []rdma.BoxAddr) {
	if m.o.Node != rdma.All {
		return []rdma.BoxAddr{m.Addr(m.o.Node)}
	}
	for node := range m.e.lost {
		all = append(all, m.Addr(node))
	}
	return all
}

// Addr returns the mailbox's address by way of a node.
func (m *mailbox) Addr(node int) rdma.BoxAddr { return rdma.BoxAt(node, m.o.Number) }

// Next returns the oldest message, or nil. Without one it takes no lock, so that a loop may call
// it as often as it likes.
func (m *mailbox) Next() *rdma.Message {
	if m.came.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.came.Add(-1)
	return m.inbox.Next()
}

// Release gives the buffer of a message back. The caller uses msg no more: a sender may fill it
// next.
func (m *mailbox) Release(msg *rdma.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inbox.Release(msg)
}

// Await waits until there is a message, or an op has completed since it last returned nil. It
// takes no message out. The error wraps rdma.ErrTimeout, or rdma.ErrClosed once the mailbox or
// the fabric is closed. Forever is no limit.
func (m *mailbox) Await(within time.Duration) error {
	ready, err := m.look()
	if ready || err != nil {
		return err
	}
	var late <-chan time.Time
	if within < rdma.Forever {
		late = m.e.sleeper.Set(max(within, 1))
		defer m.e.sleeper.Unset()
	}
	// Behind the time it looks once more: what came as the time ran out counts. A word in wake
	// may be left over from a message that was taken already, and is only a reason to look.
	for expired := false; !ready && err == nil; ready, err = m.look() {
		if expired {
			return m.late
		}
		select {
		case <-m.wake:
		case <-m.e.fabric.stop:
		case <-late:
			expired = true
		}
	}
	return err
}

// look reports whether there is something that Await waits for. A completion is told once: seen
// moves on. A message is told until it is taken.
func (m *mailbox) look() (bool, error) {
	if m.closed.Load() || m.e.fabric.closing.Load() {
		return false, fmt.Errorf("wait for a message as client %d: %w", m.e.id, rdma.ErrClosed)
	}
	done := m.e.Completed()
	if m.came.Load() == 0 && done == m.seen {
		return false, nil
	}
	m.seen = done
	return true, nil
}

// Close ends the mailbox; again, it does nothing. Senders that have found the mailbox meet
// closed, and others find none: both get rdma.ErrNoBox.
func (m *mailbox) Close() error {
	m.mu.Lock()
	m.closed.Store(true) // and no sender is filling a buffer
	m.mu.Unlock()
	if m.e.box != m {
		return nil
	}
	m.e.box = nil
	all := &m.e.fabric.boxes
	all.Lock()
	defer all.Unlock()
	for _, a := range m.addresses() {
		delete(all.at, a)
	}
	return nil
}

// send executes a SEND. fail calls it, since a SEND has no place in memory.
func (e *Endpoint) send(op *rdma.Op) {
	if err := e.deliver(op); err != nil {
		op.Fail(err)
	}
}

// It runs inside a Post, so that a fence waits for it. Errors wrap rdma.ErrClosed without a
// mailbox of the sender's own, rdma.ErrAccess when a span strays, rdma.ErrNoBox, rdma.ErrBoxFull
// and rdma.ErrMessageSize. With an error nothing was delivered.
func (e *Endpoint) deliver(op *rdma.Op) error {
	to := rdma.BoxAddr(op.Addr)
	if e.box == nil {
		return fmt.Errorf("its sender has closed its mailbox: %w", rdma.ErrClosed)
	}
	for _, s := range op.Spans {
		if !e.gathers(s) {
			// As with a verb that strays: what the worker posts to the node later fails.
			e.lost[to.Node()] = fmt.Errorf("connection to node %d is down since a SEND: %w", to.Node(), rdma.ErrAccess)
			return fmt.Errorf("gather %d bytes at %s: %w", s.Len, s.Addr, rdma.ErrAccess)
		}
	}
	all := &e.fabric.boxes
	all.RLock()
	m := all.at[to]
	all.RUnlock()
	if m == nil {
		return rdma.ErrNoBox
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// It may have been closed since it was found.
	if m.closed.Load() {
		return rdma.ErrNoBox
	}
	msg, err := m.inbox.Add(e.box.Addr(to.Node()), e.id, op.Len())
	if err != nil {
		return err
	}
	// The data is in place before came says that there is a message, and both under mu.
	rest := msg.Data[copy(msg.Data, op.Buf):]
	for _, s := range op.Spans {
		memcopy.Load(rest[:s.Len], unsafe.Add(e.memory, uint64(s.Addr.Node())*e.stride+s.Addr.Offset()))
		rest = rest[s.Len:]
	}
	m.came.Add(1)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return nil
}

// gathers reports whether a message of the worker may gather s: from the node that its mailbox is
// at. A mailbox that is reached by all nodes is at none of them, so that its worker gathers
// nothing.
func (e *Endpoint) gathers(s rdma.Span) bool {
	off := s.Addr.Offset()
	return s.Addr.Node() == e.box.o.Node && s.Len >= 0 && off <= e.size && uint64(s.Len) <= e.size-off
}
