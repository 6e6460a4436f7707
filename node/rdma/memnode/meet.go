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
func (s *session) meet(h transport.Header, p []byte) error {
	le := binary.LittleEndian
	switch what := h.Items; {
	case s.readOnly && what > control.MeetAsk: // it can have no mailbox that speaks
		return fmt.Errorf("meet frame for %d of a process that may only read: %w", what, transport.ErrProtocol)
	case what == control.MeetOffer && len(p) >= transport.RightsBytes+control.OfferBytes &&
		len(p) == transport.RightsBytes+control.OfferBytes+
			transport.Pad(int(min(le.Uint32(p[transport.RightsBytes+12:]), control.MaxOffer))),
		what == control.MeetAsk && len(p) == transport.RightsBytes+8:
		st := s.mayMeet(what, p)
		if st != transport.StatusOK {
			s.counters.failed(st, 1)
		}
		s.answer(h, st, 0, len(s.out)+transport.HeaderBytes)
	case what == control.MeetAnswer && len(p) >= control.ReplyBytes &&
		len(p) <= control.ReplyBytes+transport.Pad(control.MaxOffer):
		h = transport.Header{Kind: transport.KindMessage, Items: control.MailAnswer, Status: h.Status,
			Tag: le.Uint32(p[8:])}
		s.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), p[control.ReplyBytes:])
	case what == control.MeetBye && len(p) == control.ReplyBytes:
		h = transport.Header{Kind: transport.KindMessage, Items: control.MailBye, Status: h.Status,
			Tag: le.Uint32(p[8:])}
		s.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), nil)
	case what == control.MeetParted && len(p) == 8:
		s.parted.Store(le.Uint64(p))
	default:
		return fmt.Errorf("meet frame for %d with %d bytes: %w", what, len(p), transport.ErrProtocol)
	}
	return nil
}

// mayMeet reports whether a worker may send to a mailbox, and passes on what it offers.
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
	if !s.meets {
		s.meets = true
		all.Lock()
		// It is there until the connection ends: see unlisten.
		all.senders[s.number] = s.outlet
		all.Unlock()
	}
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

// relay passes something on to a sender's process, if that is still connected.
func (s *session) relay(to uint64, h transport.Header, head, rest []byte) {
	all := &s.pool.boxes
	all.RLock()
	d := all.senders[to]
	all.RUnlock()
	if d != nil {
		s.hand(d, h, head, rest) // the sender does not wait for ever
	}
}

// hand puts a frame into the mail of a connection, if there is room.
func (s *session) hand(to *outlet, h transport.Header, head, rest []byte) bool {
	if !to.mail.post(h, head, rest) {
		return false
	}
	s.mailed = append(s.mailed, to)
	return true
}

// parts is what a node knows of processes that have mailboxes to which messages come from device to
// device.
type parts struct {
	// asking is held while a fence or a revocation draws its number and has it in the mail of each
	// process. A process takes its mail in order. So a number that it answers answers for all that
	// are smaller.
	asking sync.Mutex
	last   uint64       // number that was drawn; under asking
	broken atomic.Int64 // when the last connection of one ended that had not closed its mailboxes; on realtime.Boot
}

// askToPart has each of these processes end connections: see part. It returns the number of what it
// asked, and the connections that it asked. One whose mail is full is cut off instead.
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
// behind the node's last word.
func (p *pool) part(client rdma.ClientID, life uint64) {
	if p.region == nil {
		return
	}
	number, asked := p.askToPart(client, life) // all of them, before one is waited for
	for _, c := range asked {
		c.outlet.forward()
	}
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
