package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Messages at the node. A SEND is executed when its message is among the mail of the receiver's
// connection: there a buffer of the mailbox is taken for it, until the receiver says that it has
// given one back. The goroutine that executed it forwards the mail before it answers, as far as
// that does not wait for the receiver.

// box is a mailbox, as far as a node has to do with it.
type box struct {
	conn     *conn
	owner    owner
	number   int
	id       uint32 // by which its process knows it
	slots    uint32
	bytes    int
	taken    uint32        // buffers, since it was opened; under conn.mail.mu
	released atomic.Uint32 // of these
}

// boxes are the mailboxes of a pool at this node, by their numbers.
type boxes struct {
	sync.RWMutex
	at      map[int]*box
	senders map[uint64]*conn // by number: those that have made offers; see meet.go
}

// What a listen frame asks for, in the place of its number of items.
const (
	listenTell  = iota // nothing: it says how many buffers were released
	listenOpen         // a mailbox
	listenClose        // the end of it
)

// openBytes is the body of a listen frame that opens a mailbox, behind the rights.
const openBytes = 24

// mostMail bounds in bytes the mail of a connection that is not being written yet; as much may be
// being written.
const mostMail = 1 << 20

// smallMail is how much of it a connection keeps memory for. There is largeMail for more, until it
// is written.
const smallMail = 64 << 10

type largeMail [mostMail + headerBytes + messageBytes + 8]byte

var largeMails sync.Pool // of *largeMail

// mail is what has to be forwarded over a connection.
type mail struct {
	mu    sync.Mutex
	out   []byte
	taken []byte // that is being written, under conn.writing
	spare []byte
	waits atomic.Bool // out is not empty
}

// listen executes a listen frame. The caller holds c.executing.
func (c *conn) listen(h header, p []byte) error {
	want := rightsBytes
	if h.items == listenOpen {
		want += openBytes
	}
	if len(p) != want || h.items > listenClose {
		return fmt.Errorf("listen frame for %d with %d bytes: %w", h.items, len(p), ErrProtocol)
	}
	r := parseRights(p)
	st := statusOK
	switch h.items {
	case listenTell:
		c.credit(&r)
		return nil
	case listenOpen:
		st = c.open(&r, p[rightsBytes:])
	case listenClose:
		if b := c.boxes[owner{r.client, r.life}]; b != nil {
			c.shut(b)
		}
		c.hosts.Store(c.hosts.Load() && len(c.boxes) > 0)
	}
	if st != statusOK {
		c.counters.failed(st, 1)
	}
	c.answer(h, st, 0, len(c.out)+headerBytes)
	return nil
}

// open opens a mailbox. Its worker may have missed an epoch: it only posts in one.
func (c *conn) open(r *rights, p []byte) status {
	le := binary.LittleEndian
	number, id, slots, bytes, taken := le.Uint32(p), le.Uint32(p[4:]), le.Uint32(p[8:]),
		le.Uint32(p[12:]), le.Uint32(p[16:])
	switch st := c.barred(r); {
	case st != statusOK && st != statusStale:
		return st
	case c.readsOnly(r) || !mayUse(int(number), r.client) || slots < 1 || slots > rdma.MaxSlots || taken > slots ||
		bytes < 1 || bytes > rdma.MaxMessage:
		return statusAccess
	}
	all := &c.pool.boxes
	all.Lock()
	defer all.Unlock()
	caller := owner{r.client, r.life}
	if old := all.at[int(number)]; old != nil && (old.owner.client != caller.client || old.owner.life >= caller.life) ||
		c.boxes[caller] != nil {
		return statusExists
	}
	b := &box{conn: c, owner: caller, number: int(number), id: id, slots: slots, bytes: int(bytes), taken: taken}
	all.at[b.number] = b
	if c.boxes == nil {
		c.boxes = map[owner]*box{}
	}
	c.boxes[caller] = b
	c.hosts.Store(c.pool.region != nil)
	return statusOK
}

// mayUse reports whether a worker may have the mailbox of that number: those of others' identities
// are theirs.
func mayUse(number int, c rdma.ClientID) bool {
	return number >= 1 && (number < rdma.OwnBoxes || number == rdma.OwnBoxes+int(c))
}

// shut closes a mailbox of the connection. The caller holds c.executing.
func (c *conn) shut(b *box) {
	delete(c.boxes, b.owner)
	all := &c.pool.boxes
	all.Lock()
	defer all.Unlock()
	if all.at[b.number] == b {
		delete(all.at, b.number)
	}
}

// unlisten closes the mailboxes of workers that may not post any more. The caller holds
// c.executing.
func (c *conn) unlisten() {
	if c.ended && c.meets {
		c.meets = false
		c.pool.boxes.Lock()
		delete(c.pool.boxes.senders, c.number)
		c.pool.boxes.Unlock()
	}
	if c.ended && c.hosts.Swap(false) {
		c.pool.parts.broken.Store(int64(realtime.Boot()))
	}
	for holder, b := range c.boxes {
		if c.ended || holder.life <= c.pool.revoked[holder.client].Load() {
			c.shut(b)
		}
	}
}

// credit notes how many buffers of its mailbox a worker has released.
func (c *conn) credit(r *rights) {
	if len(c.boxes) == 0 {
		return
	}
	if b := c.boxes[owner{r.client, r.life}]; b != nil {
		b.released.Store(r.released)
	}
}

// deliver executes a SEND and, when it succeeds, appends its answer.
func (c *conn) deliver(q *request, client rdma.ClientID) status {
	n, ok := c.gathers(q)
	if !ok || !mayUse(q.from, client) {
		return statusAccess
	}
	all := &c.pool.boxes
	all.RLock()
	b := all.at[int(min(q.off, rdma.MaxBox+1))]
	all.RUnlock()
	switch {
	case b == nil:
		return statusNoBox
	case n > b.bytes:
		return statusMessageSize
	}
	if st := b.conn.mail.add(b, q, client, n); st != statusOK {
		return st
	}
	if last := len(c.mailed) - 1; last < 0 || c.mailed[last] != b.conn {
		c.mailed = append(c.mailed, b.conn)
	}
	q.n = n
	c.counters.did(q)
	c.out = append(c.out, make([]byte, resultBytes)...)
	return statusOK
}

// gathers returns how long the message of a SEND is; false: it would gather what is outside of the
// memory.
func (c *conn) gathers(q *request) (n int, ok bool) {
	n = q.n
	size := c.pool.registered()
	for i := range len(q.spans) / spanBytes {
		off, m := q.span(i)
		if off > size || m > size-off {
			return 0, false
		}
		n += int(min(m, rdma.MaxMessage+1)) // more is too much for every mailbox
	}
	return n, true
}

// add adds a message of n bytes for a mailbox of the mail's connection, if a buffer is free.
func (m *mail) add(b *box, q *request, from rdma.ClientID, n int) (st status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.taken-b.released.Load() >= b.slots || len(m.out) > 0 && len(m.out)+n > mostMail {
		return statusBoxFull
	}
	at := len(m.out)
	memory := b.conn.pool.memory
	if len(q.spans) > 0 && (memory.file != nil || memory.region != nil) {
		defer func() {
			if r := recover(); r != nil {
				m.out, st = m.out[:at], memory.fault(r)
			}
		}()
	}
	if need := at + headerBytes + messageBytes + pad(n); need > max(smallMail, cap(m.out)) {
		m.enlarge()
	}
	le := binary.LittleEndian
	m.out = grow(m.out, headerBytes)
	header{body: messageBytes + pad(n), kind: kindMessage, items: mailMessage, tag: b.id}.put(m.out[at:])
	m.out = le.AppendUint32(m.out, uint32(q.from))
	m.out = le.AppendUint32(m.out, uint32(from))
	m.out = le.AppendUint64(m.out, uint64(n))
	m.out = append(m.out, q.data...)
	for i := range len(q.spans) / spanBytes {
		off, n := q.span(i)
		end := len(m.out)
		m.out = grow(m.out, int(n))
		memcopy.Load(m.out[end:], unsafe.Add(memory.base, off))
	}
	for len(m.out)%8 != at%8 {
		m.out = append(m.out, 0)
	}
	b.taken++
	m.waits.Store(true)
	return statusOK
}

// messageBytes are those of a message frame's body before the data.
const messageBytes = 16

// enlarge gives the mail memory for all that there may be. The caller holds mu.
func (m *mail) enlarge() {
	l, ok := largeMails.Get().(*largeMail)
	if !ok {
		l = new(largeMail)
	}
	small := m.out
	m.out = append(l[:0], small...)
	if m.spare == nil {
		m.spare = small[:0]
	}
}

// take returns all that there is to write.
func (m *mail) take() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.out, m.spare = m.out, m.spare[:0], nil
	m.waits.Store(false)
	return m.taken
}

// wrote gives the memory of what was taken back.
func (m *mail) wrote() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.taken; cap(p) == len(largeMail{}) {
		largeMails.Put((*largeMail)(p[:cap(p)]))
	} else {
		m.spare = p[:0]
	}
	m.taken = nil
}

// forwardAll forwards the mail of the connections that messages were executed for.
func (c *conn) forwardAll() {
	for _, to := range c.mailed {
		to.forward()
	}
	c.mailed = c.mailed[:0]
}

// mostTurns bounds how often a goroutine that forwards mail looks for more that came meanwhile.
const mostTurns = 8

// forward writes the connection's mail, unless another goroutine is writing, which comes here then.
// It waits neither for the peer nor for senders of more: a goroutine of its own does. The caller's
// is one of the node's group.
func (c *conn) forward() {
	for turn := 0; c.mail.waits.Load(); turn++ {
		if turn == mostTurns {
			c.node.group.Go(c.forward)
			return
		}
		if !c.writing.TryLock() {
			return
		}
		rest, err := c.carry(nil, false)
		if err != nil || len(rest) == 0 {
			c.forwarded(err)
			continue
		}
		c.node.group.Go(func() {
			_, err := c.carry(rest, true)
			c.forwarded(err)
			c.forward()
		})
		return
	}
}

// forwarded ends a turn at writing.
func (c *conn) forwarded(err error) {
	c.writing.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.isSlow()
	}
	if err != nil {
		c.raw.Close()
	}
}

// trier is a connection that can write without waiting for the peer: as much of p as that takes.
type trier interface {
	try(p []byte) (int, error)
}

// carry writes p, the rest of what was taken of the mail, or else the mail: to its end, or what
// does not have to wait for the peer; then it returns what is left. The caller holds writing.
func (c *conn) carry(p []byte, wait bool) (rest []byte, err error) {
	if len(p) == 0 {
		if !c.mail.waits.Load() {
			return nil, nil
		}
		p = c.mail.take()
		if err := c.vouch(); err != nil {
			return nil, err
		}
	}
	n := 0
	if wait {
		n, err = len(p), c.put(p)
	} else if b, ok := c.nc.(trier); ok {
		n, err = b.try(p)
	}
	if rest = p[n:]; err != nil || len(rest) > 0 {
		return rest, err
	}
	c.mail.wrote()
	return nil, nil
}
