package control

import (
	"encoding/binary"
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
//
//	sender                     node                        mailbox's process
//	MeetOffer ---------------> may it? MailOffer ---------> Host.Meet
//	<---- status: passed on
//	Meeting.Answer <---------- MailAnswer <---------------- MeetAnswer
//	messages ---------------------------------------------> from device to device
//	                           fence: MailPart -----------> Host.Part
//	                           answers the fence <--------- MeetParted
//	Meeting.Left <------------ MailBye <------------------- MeetBye
//
// Meet frames go to a node, and are answered only where they come from a sender. Mail comes from a
// node, among its answers, and is not answered. A node keeps nothing of a meeting: it finds the
// sender again by the number of the connection that the offer came over, and the sender finds the
// Meeting by its id. An offer that the mailbox's process has no room for in its mail is refused. An
// answer is lost where its sender's connection has no room, or broke: a sender bounds its wait, and
// sees by Control.Reach that its connection is another one.

// Host is a mailbox to which messages come from device to device. A goroutine of the fabric calls
// it, for one node in the order in which the node spoke. That goroutine reads the answers of all
// workers: a Host waits for none of them.
type Host interface {
	// Meet connects a sender by what its device offers, and returns what that has to know. The
	// connection that the sender had by way of the same node is ended before; without an offer that
	// is all. The offer is the link's, and not kept. The answer has MaxOffer bytes at most. An
	// error refuses the sender, by its status alone.
	Meet(s Sender, offer []byte) (answer []byte, err error)
	// Part ends the connections from senders by way of a node that may not post any more. When it
	// returns no message arrives from these.
	Part(node int, gone func(*Sender) bool)
}

// Sender is a worker that sends to a mailbox, as the node says by way of which. Client, Life and
// Epoch are what it claimed in the offer, and the node had not fenced off.
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
	// The first are messages themselves, where they go by way of the nodes. Then comes what meet
	// frames of the same names brought to the node, and MailPart, which is a fence or a revocation.
	MailMessage = iota
	MailOffer
	MailAnswer
	MailBye
	MailPart
)

// Bytes of the bodies, in front of what is offered or answered, and behind the rights.
const (
	// OfferBytes: mailbox u32 | the sender's mailbox u32 | id of the Meeting u32 | bytes u32.
	//
	// OfferMailBytes: number of the sender's connection u64 | id u32 | client u32 | life u64 |
	// epoch u64 | the sender's mailbox u32 | bytes u32.
	//
	// ReplyBytes: number of the sender's connection u64 | id u32 | bytes, or with a MeetBye
	// messages, u32. replyMailBytes: the last of these u32 | 0 u32.
	//
	// PartBytes: number of the fence u64 | epoch fenced last u64 | client revoked u64 | its life
	// u64.
	OfferBytes     = 16
	OfferMailBytes = 40
	ReplyBytes     = 16
	replyMailBytes = 8
	PartBytes      = 32
)

// mail takes what a node says unasked. It is called by the link's reader, in the order in which the
// node spoke. So an offer that the node passed on before a fence has been met when the fence's part
// is taken. body is the link's. An error breaks the connection: the node does not keep to the
// protocol.
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

// offered lets a mailbox meet a sender, and tells that what comes of it: an answer, or
// rdma.ErrNoBox where the mailbox was closed meanwhile or takes no messages from devices. A device
// that answers too much counts as one that failed. mailboxes is not locked while the mailbox meets.
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

// reply is a frame's body that goes back to the sender: see ReplyBytes. rest is padded to whole
// words.
func (s *Sender) reply(n uint32, rest []byte) []byte {
	le := binary.LittleEndian
	p := le.AppendUint64(nil, s.back)
	p = le.AppendUint64(p, uint64(s.id)|uint64(n)<<32)
	p = append(p, rest...)
	return append(p, make([]byte, -len(p)&7)...)
}

// tell sends a node a meet frame that it does not answer. Without a connection there is no node to
// tell. It does not wait for the node. The caller must not hold the lock of mailboxes: a link's is
// taken first.
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
// mailbox was closed, or the sender may connect again. The number lets it tell messages that came
// from those that never will. The status says which: OK for closed, StatusHeld for again.
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

// meetings are those of a fabric's workers that last, by their ids. Nothing else is locked while
// they are.
type meetings struct {
	sync.Mutex
	by   map[uint32]*Meeting
	last uint32
}

// find returns the Meeting of an id; nil: it was forgotten, and what came for it is dropped.
func (all *meetings) find(id uint32) *Meeting {
	all.Lock()
	defer all.Unlock()
	return all.by[id]
}

// Meeting is a worker's connection to a mailbox, as far as nodes relay it. It lasts until Forget.
// Its worker asks it; the link's reader fills it in.
type Meeting struct {
	f  *Pool
	id uint32

	// mu protects what follows, and is held for moments only. over is set once, by the first of:
	// the mailbox's answer, a refusal of the mailbox or of the node, the loss of the connection
	// before the node has said that it passed the offer on. answer and err are valid then. left,
	// again and messages are of the mailbox's goodbye.
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
// own mailbox. An error says that nothing was sent. Otherwise the caller asks Answer, for as long
// as it wants to wait, and calls Forget.
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

// Land implements transport.Flight. It takes the node's word on whether the offer was passed on.
// That it was ends nothing: the answer is the mailbox's.
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

// Lose implements transport.Flight. The offer may have been passed on all the same: what the
// mailbox made for it ends when the worker meets it again, at a fence, or with the mailbox.
func (m *Meeting) Lose(err error) { m.end(nil, err) }

// answered takes what the mailbox said. answer is the link's, and copied.
func (m *Meeting) answered(st transport.Status, answer []byte) {
	if st != transport.StatusOK {
		m.end(nil, st.Err())
		return
	}
	m.end(append([]byte(nil), answer...), nil)
}

// end keeps the first end of the meeting, and drops others.
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
// wraps rdma.ErrNodeDown when there is no answer in time, rdma.ErrNoBox when the node knows no such
// mailbox. A worker asks when messages are not acknowledged.
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
	return w.answeredSoon(c, node, transport.DeadAfter)
}

// Host opens the worker's mailbox, to which messages come from device to device: see Listen. Close
// ends what is there of it at the nodes. Attend comes first, for good: what nodes say is read from
// now on though no worker waits, since a fence waits for this process to part.
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
