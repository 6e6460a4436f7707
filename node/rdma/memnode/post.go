package memnode

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Messages at the node. A SEND is executed when its message is among the mail of the receiver's
// connection: there a buffer of the mailbox is taken for it, until the receiver says that it has
// given one back. The goroutine that executed it forwards the mail before it answers, as far as
// that does not wait for the receiver.

// box is a mailbox, as far as a node has to do with it. It is made by open, and ends with its
// worker's connection, with its worker's life, or by ListenClose. The node has no buffers of it: it
// counts those of the receiver, so that it never sends more than the receiver has room for.
type box struct {
	// All up to bytes never change. slots is how many buffers the mailbox has for this node, and
	// bytes how long a message may be.
	to     *outlet
	owner  owner
	number int
	id     uint32 // by which its process knows it
	slots  uint32
	bytes  int
	// taken and released wrap. Only their difference counts, which is at most slots. taken begins
	// with the buffers that hold messages of earlier connections.
	taken uint32 // buffers, since it was opened; under to.mail.mu
	// credit stores it, under the executing of the receiver's session, while senders of other
	// sessions look at it. One that is behind makes them refuse a message that there would be room
	// for.
	released atomic.Uint32 // of these
}

// boxes are the mailboxes of a pool at this node, by their numbers. Both maps are under the lock,
// which is held for a look or a change only.
type boxes struct {
	sync.RWMutex
	at      map[int]*box
	senders map[uint64]*outlet // by number: those that have made offers; see meet.go
}

// listen executes a listen frame. The caller holds s.executing. Its body begins with rights: see
// package transport for the format. The error is a breach. ListenTell is not answered, and tells
// only what credit notes. To close a mailbox that is not there is no error. What was delivered
// before the close is in the mail, ahead of the answer.
func (s *session) listen(h transport.Header, p []byte) error {
	want := transport.RightsBytes
	if h.Items == control.ListenOpen {
		want += control.OpenBytes
	}
	if len(p) != want || h.Items > control.ListenClose {
		return fmt.Errorf("listen frame for %d with %d bytes: %w", h.Items, len(p), transport.ErrProtocol)
	}
	r := transport.ParseRights(p)
	st := transport.StatusOK
	switch h.Items {
	case control.ListenTell:
		s.credit(&r)
		return nil
	case control.ListenOpen:
		st = s.open(&r, p[transport.RightsBytes:])
	// Without mailboxes the process is not asked to part any more: see pool.part.
	case control.ListenClose:
		if b := s.boxes[owner{r.Client, r.Life}]; b != nil {
			s.shut(b)
		}
		s.hosts.Store(s.hosts.Load() && len(s.boxes) > 0)
	}
	if st != transport.StatusOK {
		s.counters.failed(st, 1)
	}
	s.answer(h, st, 0, len(s.out)+transport.HeaderBytes)
	return nil
}

// open opens a mailbox. Its worker may have missed an epoch: it only posts in one. A mailbox of an
// earlier life is replaced. One of the same life is not, until the connection that it came by is
// over: the node ends that before it lets the next one in. It fails with StatusExists for those,
// with StatusAccess for a number that is not the worker's to use or options out of bounds, and with
// what bars the worker. taken is how many buffers hold messages that came over earlier connections:
// their release is counted over this one.
func (s *session) open(r *transport.Rights, p []byte) transport.Status {
	le := binary.LittleEndian
	number, id, slots, bytes, taken := le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[8:]),
		le.Uint32(p[12:]), le.Uint32(p[16:])
	switch st := s.barred(r); {
	case st != transport.StatusOK && st != transport.StatusStale:
		return st
	case s.readsOnly(r) || !control.MayUse(int(number), r.Client) || slots < 1 || slots > rdma.MaxSlots ||
		taken > slots ||
		bytes < 1 || bytes > rdma.MaxMessage:
		return transport.StatusAccess
	}
	all := &s.pool.boxes
	all.Lock()
	defer all.Unlock()
	caller := owner{r.Client, r.Life}
	if old := all.at[int(number)]; old != nil && (old.owner.client != caller.client || old.owner.life >= caller.life) ||
		s.boxes[caller] != nil {
		return transport.StatusExists
	}
	b := &box{to: s.outlet, owner: caller, number: int(number), id: id, slots: slots, bytes: int(bytes), taken: taken}
	all.at[b.number] = b
	if s.boxes == nil {
		s.boxes = map[owner]*box{}
	}
	// A worker has one mailbox. credit finds it by the worker.
	s.boxes[caller] = b
	s.hosts.Store(s.pool.region != nil)
	return transport.StatusOK
}

// shut closes a mailbox of the connection. The caller holds s.executing. Another life may have the
// number by now: that one stays. Messages in the mail for it are still written. The receiver's
// process drops them by the mailbox's id, which it has closed.
func (s *session) shut(b *box) {
	delete(s.boxes, b.owner)
	all := &s.pool.boxes
	all.Lock()
	defer all.Unlock()
	if all.at[b.number] == b {
		delete(all.at, b.number)
	}
}

// unlisten closes the mailboxes of workers that may not post any more. The caller holds
// s.executing. Mailboxes of workers in older epochs stay open: these receive while they have yet to
// join. It is called by drain: for an end of the connection, for each fence, and for each
// revocation.
func (s *session) unlisten() {
	if s.ended && s.meets {
		s.meets = false
		s.pool.boxes.Lock()
		delete(s.pool.boxes.senders, s.number)
		s.pool.boxes.Unlock()
	}
	// The process did not close its mailboxes: from device to device messages may go on for as long
	// as it takes itself for connected. See pool.part.
	if s.ended && s.hosts.Swap(false) {
		s.pool.parts.broken.Store(int64(realtime.Boot()))
	}
	for holder, b := range s.boxes {
		if s.ended || holder.life <= s.pool.revoked[holder.client].Load() {
			s.shut(b)
		}
	}
}

// credit notes how many buffers of its mailbox a worker has released. A frame that is barred brings
// its number, too: it is about buffers, and not about rights. The caller holds s.executing. Numbers
// of one connection only grow, since frames are executed in the order in which their sender
// counted.
func (s *session) credit(r *transport.Rights) {
	if len(s.boxes) == 0 {
		return
	}
	if b := s.boxes[owner{r.Client, r.Life}]; b != nil {
		b.released.Store(r.Released)
	}
}

// deliver executes a SEND and, when it succeeds, appends its answer. In the order of its checks:
// StatusAccess for a gather outside of the memory, or a mailbox as its sender that is not the
// client's; StatusNoBox; StatusMessageSize; StatusBoxFull; and StatusFull when a page that it
// gathers from cannot be backed. None of them leaves anything in the mailbox.
func (s *session) deliver(q *transport.Request, client rdma.ClientID) transport.Status {
	n, ok := s.gathers(q)
	if !ok || !control.MayUse(q.From, client) {
		return transport.StatusAccess
	}
	all := &s.pool.boxes
	all.RLock()
	b := all.at[int(min(q.Off, rdma.MaxBox+1))]
	all.RUnlock()
	switch {
	case b == nil:
		return transport.StatusNoBox
	case n > b.bytes:
		return transport.StatusMessageSize
	}
	// A receiver that is fenced off meanwhile loses the message with its mailbox. So the SEND says
	// that it was delivered to a buffer, and not that it will be read.
	if st := b.to.mail.add(b, q, client, n, s.pool.memory); st != transport.StatusOK {
		return st
	}
	// A run of messages to one mailbox is noted once. Others may be noted twice, which does no
	// harm.
	if last := len(s.mailed) - 1; last < 0 || s.mailed[last] != b.to {
		s.mailed = append(s.mailed, b.to)
	}
	// The counters take the length with what was gathered.
	q.N = n
	s.counters.did(q)
	s.out = append(s.out, make([]byte, transport.ResultBytes)...)
	return transport.StatusOK
}

// gathers returns how long the message of a SEND is; false: it would gather what is outside of the
// memory. It runs before a buffer is taken. Spans were parsed, and their number bounded, by
// ParseVerb. A span touches memory as a READ does, and is copied at once.
func (s *session) gathers(q *transport.Request) (n int, ok bool) {
	n = q.N
	size := s.pool.registered()
	for i := range len(q.Spans) / transport.SpanBytes {
		off, m := q.Span(i)
		if off > size || m > size-off {
			return 0, false
		}
		n += int(min(m, rdma.MaxMessage+1)) // more is too much for every mailbox
	}
	return n, true
}

// add adds a message of n bytes for a mailbox of the mail's connection, if a buffer is free. A
// buffer is taken and the message complete in one step under mu. A crash of the node loses both:
// its receiver's connection breaks, and with it the count. It is called under the sender's
// session.executing, and takes no other lock than mu. It returns StatusBoxFull when no buffer is
// free, or the connection's mail is full, since the receiver takes nothing: to the sender both are
// the same. StatusFull is for a page that cannot be backed.
//
// The frame is a header with the mailbox's id as its tag, the sender's mailbox and client, the
// length, and the data, padded to words. See package transport for the format.
func (m *mail) add(b *box, q *transport.Request, from rdma.ClientID, n int, memory *memory) (st transport.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.taken-b.released.Load() >= b.slots || len(m.out) > 0 && len(m.out)+n > mostMail {
		return transport.StatusBoxFull
	}
	// What fails below takes the frame off again. The buffer is not taken then.
	at := len(m.out)
	if len(q.Spans) > 0 && (memory.file != nil || memory.region != nil) {
		defer func() {
			if r := recover(); r != nil {
				m.out, st = m.out[:at], memory.fault(r)
			}
		}()
	}
	if need := at + transport.HeaderBytes + control.MessageBytes + transport.Pad(n); need > max(smallMail, cap(m.out)) {
		m.enlarge()
	}
	le := binary.LittleEndian
	m.out = grow(m.out, transport.HeaderBytes)
	transport.Header{Body: control.MessageBytes + transport.Pad(n), Kind: transport.KindMessage,
		Items: control.MailMessage, Tag: b.id}.Put(m.out[at:])
	m.out = le.AppendUint32(m.out, uint32(q.From))
	m.out = le.AppendUint32(m.out, uint32(from))
	m.out = le.AppendUint64(m.out, uint64(n))
	m.out = append(m.out, q.Data...)
	for i := range len(q.Spans) / transport.SpanBytes {
		off, n := q.Span(i)
		end := len(m.out)
		m.out = grow(m.out, int(n))
		memcopy.Load(m.out[end:], unsafe.Add(memory.base, off))
	}
	// Frames begin at words, and so does at.
	for len(m.out)%8 != at%8 {
		m.out = append(m.out, 0)
	}
	b.taken++
	m.waits.Store(true)
	return transport.StatusOK
}

// forwardAll forwards the mail of the connections that messages were executed for. It is called
// while session.executing is free. Only the goroutine that executes calls it. It blocks as
// outlet.forward does.
func (s *session) forwardAll() {
	for _, to := range s.mailed {
		to.forward()
	}
	s.mailed = s.mailed[:0]
}
