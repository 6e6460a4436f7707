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

// box is a mailbox, as far as a node has to do with it.
type box struct {
	to     *outlet
	owner  owner
	number int
	id     uint32 // by which its process knows it
	slots  uint32
	bytes  int
	// taken and released wrap. Only their difference counts, which is at most slots. taken begins
	// with the buffers that hold messages of earlier connections.
	taken    uint32        // buffers, since it was opened; under to.mail.mu
	released atomic.Uint32 // of these
}

// boxes are the mailboxes of a pool at this node, by their numbers.
type boxes struct {
	sync.RWMutex
	at      map[int]*box
	senders map[uint64]*outlet // by number: those that have made offers; see meet.go
}

// listen executes a listen frame. The caller holds s.executing.
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
// over: the node ends that before it lets the next one in.
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
	s.boxes[caller] = b
	s.hosts.Store(s.pool.region != nil)
	return transport.StatusOK
}

// shut closes a mailbox of the connection. The caller holds s.executing. Another life may have the
// number by now: that one stays.
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
// join.
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
// its number, too: it is about buffers, and not about rights.
func (s *session) credit(r *transport.Rights) {
	if len(s.boxes) == 0 {
		return
	}
	if b := s.boxes[owner{r.Client, r.Life}]; b != nil {
		b.released.Store(r.Released)
	}
}

// deliver executes a SEND and, when it succeeds, appends its answer.
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
	if last := len(s.mailed) - 1; last < 0 || s.mailed[last] != b.to {
		s.mailed = append(s.mailed, b.to)
	}
	q.N = n
	s.counters.did(q)
	s.out = append(s.out, make([]byte, transport.ResultBytes)...)
	return transport.StatusOK
}

// gathers returns how long the message of a SEND is; false: it would gather what is outside of the
// memory.
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
// its receiver's connection breaks, and with it the count.
func (m *mail) add(b *box, q *transport.Request, from rdma.ClientID, n int, memory *memory) (st transport.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.taken-b.released.Load() >= b.slots || len(m.out) > 0 && len(m.out)+n > mostMail {
		return transport.StatusBoxFull
	}
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
	for len(m.out)%8 != at%8 {
		m.out = append(m.out, 0)
	}
	b.taken++
	m.waits.Store(true)
	return transport.StatusOK
}

// forwardAll forwards the mail of the connections that messages were executed for. It is called
// while session.executing is free.
func (s *session) forwardAll() {
	for _, to := range s.mailed {
		to.forward()
	}
	s.mailed = s.mailed[:0]
}
