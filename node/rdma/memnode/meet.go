package memnode

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// meet executes a meet frame. The caller holds s.executing: an offer is passed on before a fence
// that comes behind it. Answers and goodbyes of a mailbox's process carry no rights. A sender
// ignores those of an id that it does not know.
//
// An offer goes this way, each part over a connection for verbs:
//
//	sender's process    -> node               MeetOffer   mailbox, id, what its device offers
//	node                -> sender's process   answer      whether it was passed on
//	node                -> mailbox's process  MailOffer   the sender, its rights and its offer
//	mailbox's process   -> node               MeetAnswer  what its device answers
//	node                -> sender's process   MailAnswer  the same
//
// From then on messages go from device to device, past the node. MeetBye and MailBye tell the
// sender in the same way that the mailbox has ended the connection. At a fence the node sends
// MailPart to each process that has mailboxes, and waits for MeetParted: see part. The number of
// the sender's connection and its id lead an answer back. A mailbox's process could name others,
// and so answer a sender wrongly, but do no more by that. Each step may be lost, with the
// connection that it goes over or for want of room. Then there is no answer, for which the sender
// does not wait for ever.
func (s *session) meet(h transport.Header, p []byte) error {
	le := binary.LittleEndian
	switch what := h.Items; {
	case s.readOnly && what > control.MeetAsk: // it can have no mailbox that speaks
		return fmt.Errorf("meet frame for %d of a process that may only read: %w", what, transport.ErrProtocol)
	case what == control.MeetOffer && len(p) >= transport.RightsBytes+control.OfferBytes &&
		le.Uint32(p[transport.RightsBytes+12:]) <= control.MaxOffer &&
		len(p) == transport.RightsBytes+control.OfferBytes+transport.Pad(int(le.Uint32(p[transport.RightsBytes+12:]))),
		what == control.MeetAsk && len(p) == transport.RightsBytes+8:
		st := s.mayMeet(what, p)
		if st != transport.StatusOK {
			s.counters.failed(st, 1)
		}
		s.answer(h, st, 0, len(s.out)+transport.HeaderBytes)
	// The status and what was answered go on as they came.
	case what == control.MeetAnswer && len(p) >= control.ReplyBytes && le.Uint32(p[12:]) <= control.MaxOffer &&
		len(p) == control.ReplyBytes+transport.Pad(int(le.Uint32(p[12:]))):
		h = transport.Header{Kind: transport.KindMessage, Items: control.MailAnswer, Status: h.Status,
			Tag: le.Uint32(p[8:])}
		s.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), p[control.ReplyBytes:])
	case what == control.MeetBye && len(p) == control.ReplyBytes:
		h = transport.Header{Kind: transport.KindMessage, Items: control.MailBye, Status: h.Status,
			Tag: le.Uint32(p[8:])}
		s.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), nil)
	case what == control.MeetParted && len(p) == 8:
		// The numbers of one connection only grow: its process takes MailParts in order.
		s.parted.Store(le.Uint64(p))
	default:
		return fmt.Errorf("meet frame for %d with %d bytes: %w", what, len(p), transport.ErrProtocol)
	}
	return nil
}

// mayMeet reports whether a worker may send to a mailbox, and passes on what it offers. The offer
// carries the rights that were checked here. The mailbox's process keeps the life and the epoch
// with the connection, and ends it at the fence that concerns them. The check and the hand-over are
// under session.executing: a fence that was raised before refuses the offer, and one that is raised
// later drains this session first, so that its MailPart is behind the offer in the mail.
//
// A mailbox whose process takes nothing refuses with StatusBoxFull.
func (s *session) mayMeet(what int, p []byte) transport.Status {
	le := binary.LittleEndian
	r, q := transport.ParseRights(p), p[transport.RightsBytes:]
	if st := s.barred(&r); st != transport.StatusOK {
		return st
	}
	if s.readsOnly(&r) {
		return transport.StatusAccess
	}
	all := &s.pool.boxes
	all.RLock()
	// The number is cut to one that no mailbox has.
	b := all.at[int(min(le.Uint32(q), rdma.MaxBox+1))]
	all.RUnlock()
	if b == nil {
		return transport.StatusNoBox
	}
	if what == control.MeetAsk {
		return transport.StatusOK
	}
	from, id, n := le.Uint32(q[4:]), le.Uint32(q[8:]), le.Uint32(q[12:])
	if !control.MayUse(int(from), r.Client) || s.pool.region == nil {
		return transport.StatusAccess
	}
	// The way back is there before the offer leaves.
	if !s.meets {
		s.meets = true
		all.Lock()
		// It is there until the connection ends: see unlisten.
		all.senders[s.number] = s.outlet
		all.Unlock()
	}
	// See package transport for the format.
	var head [control.OfferMailBytes]byte
	m := le.AppendUint64(head[:0], s.number)
	m = le.AppendUint64(m, uint64(id)|uint64(r.Client)<<32)
	m = le.AppendUint64(m, r.Life)
	m = le.AppendUint64(m, r.Epoch)
	m = le.AppendUint64(m, uint64(from)|uint64(n)<<32)
	if !s.hand(b.to, transport.Header{Kind: transport.KindMessage, Items: control.MailOffer, Tag: b.id}, m,
		q[control.OfferBytes:]) {
		return transport.StatusBoxFull
	}
	return transport.StatusOK
}

// relay passes something on to a sender's process, if that is still connected. It is lost where
// that takes none of its mail.
func (s *session) relay(to uint64, h transport.Header, head, rest []byte) {
	all := &s.pool.boxes
	all.RLock()
	d := all.senders[to]
	all.RUnlock()
	if d != nil {
		s.hand(d, h, head, rest) // the sender does not wait for ever
	}
}

// hand puts a frame into the mail of a connection, if there is room. The frame is forwarded when
// the batch is over: see conn.flush.
func (s *session) hand(to *outlet, h transport.Header, head, rest []byte) bool {
	if !to.mail.post(h, head, rest) {
		return false
	}
	s.mailed = append(s.mailed, to)
	return true
}

// parts is what a node knows of processes that have mailboxes to which messages come from device to
// device. There is nothing to part in a pool without devices: each message comes by way of the
// node, which checks it.
type parts struct {
	// asking is held while a fence or a revocation draws its number and has it in the mail of each
	// process. A process takes its mail in order. So a number that it answers answers for all that
	// are smaller.
	asking sync.Mutex
	// Numbers are drawn from 1, so that 0 is that of a process that has answered none.
	last uint64 // number that was drawn; under asking
	// unlisten stores it; 0: there was none.
	broken atomic.Int64 // when the last connection of one ended that had not closed its mailboxes; on realtime.Boot
}

// askToPart has each of these processes end connections: see part. It returns the number of what it
// asked, and the connections that it asked. One whose mail is full is cut off instead. The mail has
// the fence as it is now, and of a revocation the client and its life, or client 0 for a fence
// alone: see control's meet.go. The session has been drained for the fence before, so that all
// offers that were made under older rights are in the mail ahead.
//
// A process that cannot be asked is cut off, and then counts as one of which the connection broke.
func (p *pool) askToPart(client rdma.ClientID, life uint64) (number uint64, asked []*conn) {
	le := binary.LittleEndian
	p.parts.asking.Lock()
	defer p.parts.asking.Unlock()
	p.parts.last++
	number = p.parts.last
	m := le.AppendUint64(nil, number)
	for _, v := range [...]uint64{p.fence.Load(), uint64(client), life} {
		m = le.AppendUint64(m, v)
	}
	for _, c := range p.conns() {
		switch h := (transport.Header{Kind: transport.KindMessage, Items: control.MailPart}); {
		case !c.session.hosts.Load():
		case c.outlet.mail.post(h, m, nil):
			asked = append(asked, c)
		default:
			c.end()
		}
	}
	return number, asked
}

// partPatience bounds the wait for a process that is to end connections, as long as for one that is
// to answer anything.
const partPatience = transport.DeadAfter

// part returns once no message arrives any more of senders that may not post: those of epochs
// before the fence, and the given life of a client, and earlier ones. A process that does not say
// so in time is cut off. One that is cut off looks at no message that came later than a lease
// behind the node's last word. It is called behind drain, and before the fence is noted and
// answered. It blocks for partPatience at most, for all processes together, and then for an
// ExpelWait if a process is cut off or was lost not long ago. It returns early when the node gives
// up the pool.
func (p *pool) part(client rdma.ClientID, life uint64) {
	if p.region == nil {
		return
	}
	number, asked := p.askToPart(client, life) // all of them, before one is waited for
	for _, c := range asked {
		c.outlet.forward()
	}
	// A process has answered, has closed its mailboxes, or has lost its connection: hosts is false
	// in the last two cases.
	until := realtime.Now() + partPatience
	for _, c := range asked {
		for pause := 50 * time.Microsecond; c.session.parted.Load() < number &&
			c.session.hosts.Load(); pause = min(2*pause, 5*time.Millisecond) {
			if realtime.Now() > until {
				c.end()
				break
			}
			time.Sleep(pause)
		}
	}
	// A process of which the connection broke without a word still takes messages from its device.
	// It looks at none that came later than a lease behind the last word of the node: see control's
	// Control.Hears. The wait makes up for its clock.
	over := time.Duration(p.parts.broken.Load()) + membership.ExpelWait(p.record.Lease)
	if wait := over - realtime.Boot(); p.parts.broken.Load() > 0 && wait > 0 {
		select {
		case <-time.After(wait):
		case <-p.gone:
		}
	}
}
