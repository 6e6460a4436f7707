package rdma

import (
	"fmt"
	"time"
)

// BoxAddr is where a message goes: the number of a mailbox, and the node by way of which it is
// reached. The zero BoxAddr is none.
type BoxAddr Addr

// MaxBox bounds the numbers of mailboxes. Those below OwnBoxes are for callers to choose, from 1
// on; the rest are the workers' own, by their identities.
const (
	OwnBoxes = 1 << 16
	MaxBox   = 2*OwnBoxes - 1
)

// BoxAt returns the address of a mailbox by way of a node.
func BoxAt(node, number int) BoxAddr {
	if number < 1 || number > MaxBox {
		panic(fmt.Sprintf("rdma: no mailbox %d", number))
	}
	return BoxAddr(At(node, uint64(number)))
}

// Node returns the node by way of which a is reached.
func (a BoxAddr) Node() int { return Addr(a).Node() }

// Number returns the number of a's mailbox.
func (a BoxAddr) Number() int { return int(Addr(a).Offset()) }

func (a BoxAddr) String() string { return fmt.Sprintf("mailbox %d at node %d", a.Number(), a.Node()) }

// Span is a range of pool memory that a message gathers.
type Span struct {
	Addr Addr
	Len  int
}

// BoxOptions shape a mailbox. Zero values mean defaults.
type BoxOptions struct {
	// Node is the node by way of which messages come; All: any. A worker that runs beside that node
	// serves others so: its messages may gather from the node's memory.
	Node int
	// Number is the mailbox's among those of Node; 0: the worker's own.
	Number int
	// Slots are how many messages it has buffers for, 64 by default and MaxSlots at most, and Bytes
	// how long each may be, 4096 by default and MaxMessage at most. On tcp it has as many for each
	// of its nodes that it gets messages by.
	Slots, Bytes int
}

// Bounds of a mailbox's memory: 256 MiB.
const (
	MaxSlots   = 1 << 12
	MaxMessage = 64 << 10
)

// Mailbox is the queue of messages that come to a worker, and lets it send some: see Batch.Send. It
// has as many buffers as its options say. A message for which there is none is refused with
// ErrBoxFull: with senders unknown and many, credits for each would reserve most buffers for
// senders that are silent; package rpc, of which the clients bound what they have in flight, seldom
// meets a refusal. Messages that one worker sends to one mailbox arrive in the order in which they
// were posted; those that are refused are left out.
//
// A mailbox belongs to its worker, and is not safe for concurrent use.
type Mailbox interface {
	// Addr returns the mailbox's address by way of a node.
	Addr(node int) BoxAddr
	// Next returns the message that came first among those that it has not returned yet; nil: there
	// is none.
	Next() *Message
	// Release gives the buffer of a message back, in any order.
	Release(m *Message)
	// Await returns nil when there is a message, or when an op of the worker completed since Await
	// last returned nil. So a loop that looks at its batches and its messages in turn, and then
	// awaits, misses nothing. After the given time the error wraps ErrTimeout; once the mailbox,
	// its worker's endpoint or its fabric is closed, ErrClosed.
	Await(within time.Duration) error
	// Close drops the messages that are left. What comes later is refused with ErrNoBox.
	Close() error
}

// Message is one that came. It belongs to the worker until Release.
type Message struct {
	From   BoxAddr  // the sender's mailbox, by way of the node by which the message came
	Client ClientID // the sender
	Data   []byte   // in a buffer of the mailbox
	buffer []byte
	taken  bool
}

// CheckBox returns o with its defaults for a worker of a pool of so many nodes. It is for fabrics,
// as all that follows.
func CheckBox(o BoxOptions, nodes int, c ClientID) (BoxOptions, error) {
	if o.Slots == 0 {
		o.Slots = 64
	}
	if o.Bytes == 0 {
		o.Bytes = 4096
	}
	switch {
	case o.Node < All || o.Node >= nodes:
		return o, fmt.Errorf("listen at node %d of %d: %w", o.Node, nodes, ErrAccess)
	case o.Number < 0 || o.Number >= OwnBoxes:
		return o, fmt.Errorf("listen as mailbox %d: want 1 to %d, or 0 for the worker's own: %w",
			o.Number, OwnBoxes-1, ErrAccess)
	case o.Slots < 1 || o.Slots > MaxSlots || o.Bytes < 1 || o.Bytes > MaxMessage:
		return o, fmt.Errorf("listen with %d buffers of %d bytes: want 1 to %d, of 1 to %d: %w",
			o.Slots, o.Bytes, MaxSlots, MaxMessage, ErrAccess)
	case o.Number == 0 && c == 0:
		return o, fmt.Errorf("listen without an identity: %w", ErrAccess)
	}
	if o.Number == 0 {
		o.Number = OwnBoxes + int(c)
	}
	return o, nil
}

// Inbox holds the buffers of a mailbox and what is in them. It is not safe for concurrent use.
type Inbox struct {
	bytes   int
	free    []*Message
	came    []*Message // a ring with room for all
	head, n int
}

// NewInbox makes the buffers of a mailbox. Its options were checked.
func NewInbox(o BoxOptions) *Inbox {
	q := &Inbox{bytes: o.Bytes}
	q.Grow(o.Slots)
	return q
}

// Grow makes more buffers.
func (q *Inbox) Grow(slots int) {
	came := make([]*Message, len(q.came)+slots)
	for i := range q.n {
		came[i] = q.came[(q.head+i)%len(q.came)]
	}
	q.came, q.head = came, 0
	messages, memory := make([]Message, slots), make([]byte, slots*q.bytes)
	for i := range messages {
		m := &messages[i]
		m.buffer = memory[i*q.bytes : (i+1)*q.bytes : (i+1)*q.bytes]
		q.free = append(q.free, m)
	}
}

// Add takes a buffer for a message of n bytes, which the caller fills in before Next is called. The
// error wraps ErrBoxFull or ErrMessageSize.
func (q *Inbox) Add(from BoxAddr, c ClientID, n int) (*Message, error) {
	last := len(q.free) - 1
	switch {
	case n > q.bytes:
		return nil, fmt.Errorf("%d bytes, and the mailbox takes %d: %w", n, q.bytes, ErrMessageSize)
	case last < 0:
		return nil, ErrBoxFull
	}
	m := q.free[last]
	q.free = q.free[:last]
	m.From, m.Client, m.Data, m.taken = from, c, m.buffer[:n], true
	q.came[(q.head+q.n)%len(q.came)] = m
	q.n++
	return m, nil
}

// Len returns how many messages Next would return.
func (q *Inbox) Len() int { return q.n }

// Next is Mailbox.Next.
func (q *Inbox) Next() *Message {
	if q.n == 0 {
		return nil
	}
	m := q.came[q.head]
	q.head = (q.head + 1) % len(q.came)
	q.n--
	return m
}

// Release is Mailbox.Release.
func (q *Inbox) Release(m *Message) {
	if !m.taken {
		panic("rdma: message released twice")
	}
	m.taken = false
	q.free = append(q.free, m)
}
