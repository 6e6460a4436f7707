package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
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
	Connection  uint64 // of the mailbox's process to that node: see Fabric.Hears

	back uint64 // of the sender's process to that node
	id   uint32 // of the Meeting there
}

// What a meet frame is, in the place of its number of items.
const (
	meetOffer  = iota // to a mailbox; answered by whether it was passed on
	meetAsk           // whether the worker may send to a mailbox
	meetAnswer        // of a mailbox to an offer; not answered, nor is what follows
	// of a mailbox that has ended a connection; its status: it was closed, or else the sender may
	// come again
	meetBye
	meetParted // a mailbox's process has ended the connections concerned
)

// What a message frame is, likewise.
const (
	mailMessage = iota
	mailOffer
	mailAnswer
	mailBye
	mailPart
)

// Bytes of the bodies, in front of what is offered or answered, and behind the rights.
const (
	offerBytes     = 16
	offerMailBytes = 40
	replyBytes     = 16
	replyMailBytes = 8
	partBytes      = 32
)

// meet executes a meet frame. The caller holds c.executing: an offer is passed on before a fence
// that comes behind it.
func (c *conn) meet(h header, p []byte) error {
	le := binary.LittleEndian
	switch what := h.items; {
	case what == meetOffer && len(p) >= rightsBytes+offerBytes &&
		len(p) == rightsBytes+offerBytes+pad(int(min(le.Uint32(p[rightsBytes+12:]), maxOffer))),
		what == meetAsk && len(p) == rightsBytes+8:
		st := c.mayMeet(what, p)
		if st != statusOK {
			c.counters.failed(st, 1)
		}
		c.answer(h, st, 0, len(c.out)+headerBytes)
	case what == meetAnswer && len(p) >= replyBytes && len(p) <= replyBytes+pad(maxOffer):
		h = header{kind: kindMessage, items: mailAnswer, status: h.status, tag: le.Uint32(p[8:])}
		c.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), p[replyBytes:])
	case what == meetBye && len(p) == replyBytes:
		h = header{kind: kindMessage, items: mailBye, status: h.status, tag: le.Uint32(p[8:])}
		c.relay(le.Uint64(p), h, le.AppendUint64(nil, uint64(le.Uint32(p[12:]))), nil)
	case what == meetParted && len(p) == 8:
		c.parted.Store(le.Uint64(p))
	default:
		return fmt.Errorf("meet frame for %d with %d bytes: %w", what, len(p), ErrProtocol)
	}
	return nil
}

// mayMeet reports whether a worker may send to a mailbox, and passes on what it offers.
func (c *conn) mayMeet(what int, p []byte) status {
	le := binary.LittleEndian
	r, q := parseRights(p), p[rightsBytes:]
	if st := c.barred(&r); st != statusOK {
		return st
	}
	if c.readsOnly(&r) {
		return statusAccess
	}
	all := &c.pool.boxes
	all.RLock()
	b := all.at[int(min(le.Uint32(q), rdma.MaxBox+1))]
	all.RUnlock()
	if b == nil {
		return statusNoBox
	}
	if what == meetAsk {
		return statusOK
	}
	from, id, n := le.Uint32(q[4:]), le.Uint32(q[8:]), le.Uint32(q[12:])
	if !mayUse(int(from), r.client) || c.pool.region == nil {
		return statusAccess
	}
	if !c.meets {
		c.meets = true
		all.Lock()
		all.senders[c.number] = c
		all.Unlock()
	}
	var head [offerMailBytes]byte
	m := le.AppendUint64(head[:0], c.number)
	m = le.AppendUint64(m, uint64(id)|uint64(r.client)<<32)
	m = le.AppendUint64(m, r.life)
	m = le.AppendUint64(m, r.epoch)
	m = le.AppendUint64(m, uint64(from)|uint64(n)<<32)
	if !c.hand(b.conn, header{kind: kindMessage, items: mailOffer, tag: b.id}, m, q[offerBytes:]) {
		return statusBoxFull
	}
	return statusOK
}

// relay passes something on to a sender's process, if that is still connected.
func (c *conn) relay(to uint64, h header, head, rest []byte) {
	all := &c.pool.boxes
	all.RLock()
	d := all.senders[to]
	all.RUnlock()
	if d != nil {
		c.hand(d, h, head, rest) // the sender does not wait for ever
	}
}

// hand puts a frame into the mail of a connection, if there is room.
func (c *conn) hand(to *conn, h header, head, rest []byte) bool {
	if !to.mail.post(h, head, rest) {
		return false
	}
	c.mailed = append(c.mailed, to)
	return true
}

// post adds a frame to the mail, if there is room.
func (m *mail) post(h header, head, rest []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := len(m.out)
	h.body = len(head) + len(rest)
	if at > 0 && at+h.body > mostMail {
		return false
	}
	if at+headerBytes+h.body > max(smallMail, cap(m.out)) {
		m.enlarge()
	}
	m.out = grow(m.out, headerBytes)
	h.put(m.out[at:])
	m.out = append(append(m.out, head...), rest...)
	m.waits.Store(true)
	return true
}

// parts is what a node knows of processes that have mailboxes to which messages come from device to
// device.
type parts struct {
	last   atomic.Uint64 // number of a fence
	broken atomic.Int64  // when the last connection of one ended that had not closed its mailboxes; on realtime.Boot
}

// partPatience bounds the wait for a process that is to end connections, as long as for one that is
// to answer anything.
const partPatience = deadAfter

// part returns once no message arrives any more of senders that may not post: those of epochs
// before the fence, and the given life of a client, and earlier ones. A process that does not say
// so in time is cut off. One that is cut off looks at no message that came later than a lease
// behind the node's last word.
func (p *pool) part(client rdma.ClientID, life uint64) {
	if p.region == nil {
		return
	}
	le := binary.LittleEndian
	number := p.parts.last.Add(1)
	var body [partBytes]byte
	m := le.AppendUint64(body[:0], number)
	for _, v := range [...]uint64{p.fence.Load(), uint64(client), life} {
		m = le.AppendUint64(m, v)
	}
	var asked []*conn
	for _, c := range p.conns() {
		if !c.hosts.Load() {
			continue
		}
		if !c.mail.post(header{kind: kindMessage, items: mailPart}, m, nil) {
			c.end()
			continue
		}
		c.forward()
		asked = append(asked, c)
	}
	until := realtime.Now() + partPatience
	for _, c := range asked {
		for pause := 50 * time.Microsecond; c.parted.Load() < number &&
			c.hosts.Load(); pause = min(2*pause, 5*time.Millisecond) {
			if realtime.Now() > until {
				c.end()
				break
			}
			time.Sleep(pause)
		}
	}
	over := time.Duration(p.parts.broken.Load()) + membership.ExpelWait(p.record.Lease)
	if wait := over - realtime.Boot(); p.parts.broken.Load() > 0 && wait > 0 {
		select {
		case <-time.After(wait):
		case <-p.gone:
		}
	}
}

// mail takes what a node says unasked.
func (f *Fabric) mail(node int, h header, p []byte) error {
	le := binary.LittleEndian
	switch what := h.items; {
	case what == mailMessage:
		return f.boxes.take(node, h, p)
	case what == mailOffer && len(p) >= offerMailBytes &&
		int(min(le.Uint32(p[36:]), maxOffer)) <= len(p)-offerMailBytes:
		return f.offered(node, h, p)
	case what == mailAnswer && len(p) >= replyMailBytes && int(min(le.Uint32(p), maxOffer)) <= len(p)-replyMailBytes:
		if m := f.meetings.find(h.tag); m != nil {
			m.answered(h.status, p[replyMailBytes:][:min(le.Uint32(p), maxOffer)])
		}
	case what == mailBye && len(p) == replyMailBytes:
		if m := f.meetings.find(h.tag); m != nil {
			m.bye(le.Uint32(p), h.status != statusOK)
		}
	case what == mailPart && len(p) == partBytes:
		fence, client, life := le.Uint64(p[8:]), rdma.ClientID(le.Uint64(p[16:])), le.Uint64(p[24:])
		f.boxes.part(node, rdma.Client{ID: client, Life: life}, func(s *Sender) bool {
			return s.Epoch < fence || s.Client == client && s.Life <= life
		})
		f.tell(node, meetParted, statusOK, p[:8])
	default:
		return fmt.Errorf("mail for %d with %d bytes: %w", what, len(p), ErrProtocol)
	}
	return nil
}

// part has all mailboxes end connections; that of a client that was revoked, all that it has.
func (all *mailboxes) part(node int, revoked rdma.Client, gone func(*Sender) bool) {
	all.RLock()
	defer all.RUnlock()
	for _, m := range all.by {
		if c := m.e.client; m.host != nil && c.ID == revoked.ID && c.Life <= revoked.Life {
			m.host.Part(node, func(*Sender) bool { return true })
		} else if m.host != nil {
			m.host.Part(node, gone)
		}
	}
}

// offered lets a mailbox meet a sender, and tells that what comes of it.
func (f *Fabric) offered(node int, h header, p []byte) error {
	le := binary.LittleEndian
	from, client, n := le.Uint32(p[32:]), rdma.ClientID(le.Uint32(p[12:])), le.Uint32(p[36:])
	if !mayUse(int(from), client) {
		return fmt.Errorf("an offer of mailbox %d of client %d: %w", from, client, ErrProtocol)
	}
	times, err := f.links[node].verbs.reach()
	if err != nil {
		return err
	}
	s := Sender{
		From: rdma.BoxAt(node, int(from)), Client: client, Life: le.Uint64(p[16:]), Epoch: le.Uint64(p[24:]),
		Connection: times, back: le.Uint64(p), id: le.Uint32(p[8:]),
	}
	f.boxes.RLock()
	m := f.boxes.by[h.tag]
	f.boxes.RUnlock()
	var answer []byte
	if err = rdma.ErrNoBox; m != nil && m.host != nil {
		answer, err = m.host.Meet(s, p[offerMailBytes:][:n])
	}
	if len(answer) > maxOffer {
		answer, err = nil, errFailed
	}
	f.tell(node, meetAnswer, statusOf(err), s.reply(uint32(len(answer)), answer))
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
func (f *Fabric) tell(node, what int, st status, body []byte) {
	l := f.links[node].verbs
	s, err := l.begin()
	if err != nil {
		return
	}
	at := len(l.out)
	l.out = append(append(l.out, make([]byte, headerBytes)...), body...)
	header{body: len(body), kind: kindMeet, status: st, items: what}.put(l.out[at:])
	if s.done() {
		l.flush()
	}
}

// Bye tells a sender that its connection to a mailbox was ended behind so many messages: the
// mailbox was closed, or the sender may connect again.
func (f *Fabric) Bye(s *Sender, messages uint32, again bool) {
	st := statusOK
	if again {
		st = statusHeld
	}
	f.tell(s.From.Node(), meetBye, st, s.reply(messages, nil))
}

// Hears returns by which of its connections, counted from 1, the process is known to a node, and
// until when, on realtime.Boot, it may look at messages that come by way of it: a node that fenced off
// their sender, and got no word from this process, waits so long. The error is Reach's.
func (f *Fabric) Hears(node int) (connection uint64, until time.Duration, err error) {
	until = time.Duration(f.links[node].verbs.hears.Load())
	connection, err = f.Reach(node)
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
	f  *Fabric
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
func (e *Endpoint) Meet(to rdma.BoxAddr, from int, offer []byte) (*Meeting, error) {
	node := to.Node()
	if err := e.fabric.down(node); err != nil {
		return nil, err
	}
	all := &e.fabric.meetings
	m := &Meeting{f: e.fabric}
	all.Lock()
	all.last++
	m.id = all.last
	all.by[m.id] = m
	all.Unlock()
	err := e.fabric.links[node].verbs.send(kindMeet, meetOffer, m, func(out []byte) []byte {
		le := binary.LittleEndian
		out = e.claim(out, node)
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

func (m *Meeting) land(h header, body []byte) error {
	if h.kind != kindMeet || len(body) > 0 {
		return fmt.Errorf("frame of kind %d with %d bytes answers an offer: %w", h.kind, len(body), ErrProtocol)
	}
	if h.status != statusOK {
		m.answered(h.status, nil)
	}
	return nil
}

func (m *Meeting) lose(err error) { m.end(nil, err) }

func (m *Meeting) answered(st status, answer []byte) {
	if st != statusOK {
		m.end(nil, st.err())
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
func (e *Endpoint) MaySend(to rdma.BoxAddr) error {
	node := to.Node()
	if err := e.fabric.down(node); err != nil {
		return err
	}
	c := reuse(&e.calls)
	c.ep, c.err, c.over = e, nil, false
	err := e.fabric.links[node].verbs.send(kindMeet, meetAsk, c, func(out []byte) []byte {
		return binary.LittleEndian.AppendUint64(e.claim(out, node), uint64(to.Number()))
	})
	if err != nil {
		return err
	}
	if err = e.answered(c, node, deadAfter); errors.Is(err, rdma.ErrTimeout) {
		err = fmt.Errorf("node %d: %w: %w", node, rdma.ErrNodeDown, err)
	}
	return err
}

// Host opens the worker's mailbox, to which messages come from device to device: see Listen. Close
// ends what is there of it at the nodes.
func (e *Endpoint) Host(o rdma.BoxOptions, h Host) (interface{ Close() error }, error) {
	for _, l := range e.fabric.links[:len(e.lost)] {
		l.verbs.attend()
	}
	m, err := e.listen(o, h)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", e.client.ID, e.fabric.name, err)
	}
	return m, nil
}

// attend has what comes unasked read at once, from now on.
func (l *link) attend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attended {
		return
	}
	l.attended = true
	if s := l.stream.Load(); s != nil {
		s.aside.Add(1)
		s.call()
	}
}
