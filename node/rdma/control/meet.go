package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Messages that go from device to device. A node relays what two workers have to tell each other to
// connect: what the sender's device offers to the mailbox's process, and what that answers. It sees
// no message. When it is told to fence senders off, it has the mailboxes' processes end the
// connections concerned, and waits until they did.

// Host is a mailbox to which messages come from device to device. A goroutine of the fabric calls
// it, for one node in the order in which the node spoke.
type Host interface {
	// Meet connects a sender by what its device offers, and returns what that has to know. The
	// connection that the sender had by way of the same node is ended before; without an offer that
	// is all.
	Meet(s Sender, offer []byte) (answer []byte, err error)
	// Part ends the connections from senders by way of a node that may not post any more. When it
	// returns no message arrives from these.
	Part(node int, gone func(*Sender) bool)
}

// Sender is a worker that sends to a mailbox, as the node says by way of which.
type Sender struct {
	From        rdma.BoxAddr
	Client      rdma.ClientID
	Life, Epoch uint64
	Connection  uint64 // of the mailbox's process to that node: see Control.Hears

	back uint64 // of the sender's process to that node
	id   uint32 // of the Meeting there
}

// What a meet frame is, in the place of its number of items.
const (
	MeetOffer  = iota // to a mailbox; answered by whether it was passed on
	MeetAsk           // whether the worker may send to a mailbox
	MeetAnswer        // of a mailbox to an offer; not answered, nor is what follows
	// of a mailbox that has ended a connection; its status: it was closed, or else the sender may
	// come again
	MeetBye
	MeetParted // a mailbox's process has ended the connections concerned
)

// What a message frame is, likewise.
const (
	MailMessage = iota
	MailOffer
	MailAnswer
	MailBye
	MailPart
)

// Bytes of the bodies, in front of what is offered or answered, and behind the rights.
const (
	OfferBytes     = 16
	OfferMailBytes = 40
	ReplyBytes     = 16
	replyMailBytes = 8
	PartBytes      = 32
)

// mail takes what a node says unasked. It is called by the link's reader, in the order in which the
// node spoke. So an offer that the node passed on before a fence has been met when the fence's part
// is taken.
func (p *Pool) mail(node int, h transport.Header, body []byte) error {
	le := binary.LittleEndian
	switch what := h.Items; {
	case what == MailMessage:
		return p.boxes.take(node, h, body)
	case what == MailOffer && len(body) >= OfferMailBytes &&
		le.Uint32(body[36:]) <= MaxOffer && int(le.Uint32(body[36:])) <= len(body)-OfferMailBytes:
		return p.offered(node, h, body)
	case what == MailAnswer && len(body) >= replyMailBytes &&
		le.Uint32(body) <= MaxOffer && int(le.Uint32(body)) <= len(body)-replyMailBytes:
		if m := p.meetings.find(h.Tag); m != nil {
			m.answered(h.Status, body[replyMailBytes:][:le.Uint32(body)])
		}
	case what == MailBye && len(body) == replyMailBytes:
		if m := p.meetings.find(h.Tag); m != nil {
			m.bye(le.Uint32(body), h.Status != transport.StatusOK)
		}
	case what == MailPart && len(body) == PartBytes:
		fence, client, life := le.Uint64(body[8:]), rdma.ClientID(le.Uint64(body[16:])), le.Uint64(body[24:])
		p.boxes.part(node, rdma.Client{ID: client, Life: life}, func(s *Sender) bool {
			return s.Epoch < fence || s.Client == client && s.Life <= life
		})
		// The node answers the fence when it has heard this.
		p.tell(node, MeetParted, transport.StatusOK, body[:8])
	default:
		return fmt.Errorf("mail for %d with %d bytes: %w", what, len(body), transport.ErrProtocol)
	}
	return nil
}

// part has all mailboxes end connections; that of a client that was revoked, all that it has. A
// mailbox of the client that was revoked gets nothing any more from any sender: its own life is
// over.
func (all *mailboxes) part(node int, revoked rdma.Client, gone func(*Sender) bool) {
	all.RLock()
	defer all.RUnlock()
	for _, m := range all.by {
		if c := m.w.Identity; m.host != nil && c.ID == revoked.ID && c.Life <= revoked.Life {
			m.host.Part(node, func(*Sender) bool { return true })
		} else if m.host != nil {
			m.host.Part(node, gone)
		}
	}
}

// offered lets a mailbox meet a sender, and tells that what comes of it.
func (p *Pool) offered(node int, h transport.Header, body []byte) error {
	le := binary.LittleEndian
	from, client, n := le.Uint32(body[32:]), rdma.ClientID(le.Uint32(body[12:])), le.Uint32(body[36:])
	if !MayUse(int(from), client) {
		return fmt.Errorf("an offer of mailbox %d of client %d: %w", from, client, transport.ErrProtocol)
	}
	// Messages of this sender depend on this connection: when it breaks, the node cannot have this
	// process part any more.
	times, err := p.links[node].verbs.Reach()
	if err != nil {
		return err
	}
	s := Sender{
		From: rdma.BoxAt(node, int(from)), Client: client, Life: le.Uint64(body[16:]), Epoch: le.Uint64(body[24:]),
		Connection: times, back: le.Uint64(body), id: le.Uint32(body[8:]),
	}
	p.boxes.RLock()
	m := p.boxes.by[h.Tag]
	p.boxes.RUnlock()
	var answer []byte
	if err = rdma.ErrNoBox; m != nil && m.host != nil {
		answer, err = m.host.Meet(s, body[OfferMailBytes:][:n])
	}
	if len(answer) > MaxOffer {
		answer, err = nil, transport.ErrFailed
	}
	p.tell(node, MeetAnswer, transport.StatusOf(err), s.reply(uint32(len(answer)), answer))
	return nil
}

// reply is a frame's body that goes back to the sender.
func (s *Sender) reply(n uint32, rest []byte) []byte {
	le := binary.LittleEndian
	p := le.AppendUint64(nil, s.back)
	p = le.AppendUint64(p, uint64(s.id)|uint64(n)<<32)
	p = append(p, rest...)
	return append(p, make([]byte, -len(p)&7)...)
}

// tell sends a node a meet frame that it does not answer. Without a connection there is no node to
// tell.
func (p *Pool) tell(node, what int, st transport.Status, body []byte) {
	l := p.links[node].verbs
	s, err := l.Begin()
	if err != nil {
		return
	}
	out := s.Out()
	at := len(*out)
	*out = append(append(*out, make([]byte, transport.HeaderBytes)...), body...)
	s.Tell(transport.KindMeet, st, what, at)
	if s.Done() {
		l.Flush()
	}
}

// Bye tells a sender that its connection to a mailbox was ended behind so many messages: the
// mailbox was closed, or the sender may connect again.
func (p *Pool) Bye(s *Sender, messages uint32, again bool) {
	st := transport.StatusOK
	if again {
		st = transport.StatusHeld
	}
	p.tell(s.From.Node(), MeetBye, st, s.reply(messages, nil))
}

// Hears returns by which of its connections, counted from 1, the process is known to a node, and
// until when, on realtime.Boot, it may look at messages that come by way of it: a node that fenced
// off their sender, and got no word from this process, waits so long. The error is Reach's.
func (ctl *Control) Hears(node int) (connection uint64, until time.Duration, err error) {
	until = ctl.links[node].verbs.HeardUntil()
	connection, err = ctl.Reach(node)
	return connection, until, err
}

// meetings are those of a fabric's workers that last, by their ids.
type meetings struct {
	sync.Mutex
	by   map[uint32]*Meeting
	last uint32
}

func (all *meetings) find(id uint32) *Meeting {
	all.Lock()
	defer all.Unlock()
	return all.by[id]
}

// Meeting is a worker's connection to a mailbox, as far as nodes relay it. It lasts until Forget.
type Meeting struct {
	f  *Pool
	id uint32

	mu       sync.Mutex
	over     bool
	answer   []byte
	err      error
	left     bool
	again    bool
	messages uint32
}

// Meet asks for a connection to a mailbox, and returns at once. It ends the one that the worker had
// to it by way of the same node; without an offer that is all. From is the number of the worker's
// own mailbox.
func (w *Worker) Meet(to rdma.BoxAddr, from int, offer []byte) (*Meeting, error) {
	node := to.Node()
	if err := w.pool.Down(node); err != nil {
		return nil, err
	}
	all := &w.pool.meetings
	m := &Meeting{f: w.pool}
	all.Lock()
	all.last++
	m.id = all.last
	all.by[m.id] = m
	all.Unlock()
	err := w.pool.links[node].verbs.Send(transport.KindMeet, MeetOffer, m, func(out []byte) []byte {
		le := binary.LittleEndian
		out = w.Claim(out, node)
		out = le.AppendUint64(out, uint64(to.Number())|uint64(from)<<32)
		out = le.AppendUint64(out, uint64(m.id)|uint64(len(offer))<<32)
		return append(append(out, offer...), make([]byte, -len(offer)&7)...)
	})
	if err != nil {
		m.Forget()
		return nil, err
	}
	return m, nil
}

// Land implements transport.Flight.
func (m *Meeting) Land(h transport.Header, body []byte) error {
	if h.Kind != transport.KindMeet || len(body) > 0 {
		return fmt.Errorf("frame of kind %d with %d bytes answers an offer: %w", h.Kind, len(body),
			transport.ErrProtocol)
	}
	if h.Status != transport.StatusOK {
		m.answered(h.Status, nil)
	}
	return nil
}

// Lose implements transport.Flight.
func (m *Meeting) Lose(err error) { m.end(nil, err) }

func (m *Meeting) answered(st transport.Status, answer []byte) {
	if st != transport.StatusOK {
		m.end(nil, st.Err())
		return
	}
	m.end(append([]byte(nil), answer...), nil)
}

func (m *Meeting) end(answer []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		m.over, m.answer, m.err = true, answer, err
	}
}

func (m *Meeting) bye(messages uint32, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left, m.messages, m.again = true, messages, again
}

// Answer returns what the mailbox's device answered; over: it did, or the error says why it will
// not.
func (m *Meeting) Answer() (answer []byte, over bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answer, m.over, m.err
}

// Left reports whether the mailbox has ended the connection, and how many messages it had got over
// that. It was closed, or the worker may connect again.
func (m *Meeting) Left() (messages uint32, left, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.messages, m.left, m.again
}

// Forget ends the meeting. It does not end the connection.
func (m *Meeting) Forget() {
	m.f.meetings.Lock()
	defer m.f.meetings.Unlock()
	delete(m.f.meetings.by, m.id)
}

// MaySend asks a node whether the worker may send to a mailbox by way of it: nil, or why not. It
// wraps rdma.ErrNodeDown when there is no answer in time.
func (w *Worker) MaySend(to rdma.BoxAddr) error {
	node := to.Node()
	if err := w.pool.Down(node); err != nil {
		return err
	}
	c := w.newCall()
	err := w.pool.links[node].verbs.Send(transport.KindMeet, MeetAsk, c, func(out []byte) []byte {
		return binary.LittleEndian.AppendUint64(w.Claim(out, node), uint64(to.Number()))
	})
	if err != nil {
		return err
	}
	if err = w.answered(c, node, transport.DeadAfter); errors.Is(err, rdma.ErrTimeout) {
		err = fmt.Errorf("node %d: %w: %w", node, rdma.ErrNodeDown, err)
	}
	return err
}

// Host opens the worker's mailbox, to which messages come from device to device: see Listen. Close
// ends what is there of it at the nodes.
func (w *Worker) Host(o rdma.BoxOptions, h Host) (interface{ Close() error }, error) {
	for _, l := range w.pool.links[:len(w.Lost)] {
		l.verbs.Attend()
	}
	m, err := w.listen(o, h)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", w.Identity.ID, w.pool.name, err)
	}
	return m, nil
}
