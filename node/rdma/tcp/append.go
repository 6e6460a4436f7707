package tcp

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
)

// Rings at the node, which has all of them: the queue of buffers, and where the next block lands.
// Its worker's frames and the senders' APPENDs are executed in the order of their connections, as
// verbs are.

// nodeRing is a ring. It ends with its worker's connection.
type nodeRing struct {
	conn    *conn
	owner   owner
	buffers []rdma.Span // that are being posted; kept to be used again

	mu    sync.Mutex // held while a block lands: so none is in flight to one that holds it
	queue *rdma.RingQueue
	ended bool

	device DeviceRing // nil: entries land by way of connections
}

// nodeRings are the rings of a pool at this node, by their numbers.
type nodeRings struct {
	sync.RWMutex
	at map[uint64]*nodeRing
}

// mostRings bounds the rings of a node: each takes memory for its queue, up to 128 KiB.
const mostRings = 64

// What a ring frame asks for, in the place of its number of items.
const (
	ringOpen  = iota
	ringPost  // to add buffers
	ringCount // how far the ring is
	ringClose
)

// ringBytes are those of a ring frame's body behind the rights, before the buffers, and countBytes
// those of the answer to a count.
const (
	ringBytes  = 8
	countBytes = 8 * (2 + 2*rdma.MaxStreams)
)

// ring executes a ring frame. The caller holds c.executing.
func (c *conn) ring(h header, p []byte) error {
	if len(p) < rightsBytes+ringBytes || h.items > ringClose {
		return fmt.Errorf("ring frame for %d with %d bytes: %w", h.items, len(p), ErrProtocol)
	}
	r := parseRights(p)
	c.credit(&r)
	p = p[rightsBytes:]
	number, n := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
	if p = p[ringBytes:]; h.items == ringPost && uint64(len(p)) != uint64(n)*spanBytes ||
		h.items != ringPost && len(p) > 0 {
		return fmt.Errorf("ring frame for %d with %d bytes behind: %w", h.items, len(p), ErrProtocol)
	}
	c.out = append(c.out, make([]byte, headerBytes)...)
	from := len(c.out)
	st := c.serveRing(h.items, &r, number, n, p)
	if st != statusOK {
		c.counters.failed(st, 1)
	}
	c.answer(h, st, 0, from)
	return nil
}

func (c *conn) serveRing(what int, r *rights, number, n uint32, spans []byte) status {
	if what == ringOpen {
		return c.openRing(r, number, n)
	}
	own := c.pool.ringAt(uint64(number))
	if own == nil || own.conn != c || own.owner != (owner{r.client, r.life}) {
		return statusNoRing
	}
	switch what {
	case ringPost:
		return own.post(spans)
	case ringCount:
		count, le := own.count(), binary.LittleEndian
		c.out = le.AppendUint64(le.AppendUint64(c.out, count.Begun), count.Settled)
		for _, v := range count.Open {
			c.out = le.AppendUint64(c.out, v)
		}
	case ringClose:
		c.pool.endRings(func(r *nodeRing) bool { return r == own })
	}
	return statusOK
}

// openRing opens a ring. Its worker may have missed an epoch: it only receives in one.
func (c *conn) openRing(r *rights, number, buffers uint32) status {
	p := c.pool
	o, err := rdma.CheckRing(rdma.RingOptions{Node: p.record.Index, Number: int(number), Buffers: int(buffers)},
		p.record.Nodes)
	switch st := c.barred(r); {
	case st != statusOK && st != statusStale:
		return st
	case c.readsOnly(r) || err != nil:
		return statusAccess
	}
	all, caller := &p.rings, owner{r.client, r.life}
	all.Lock()
	defer all.Unlock()
	switch old := all.at[uint64(number)]; {
	case old != nil && (old.owner.client != caller.client || old.owner.life >= caller.life):
		return statusExists
	case old != nil:
		old.end()
	case len(all.at) >= mostRings:
		return statusFull
	}
	own := &nodeRing{conn: c, owner: caller}
	if p.region == nil {
		own.queue = rdma.NewRingQueue(o)
	} else if own.device, err = p.deviceRing(o); err != nil {
		return statusOf(err)
	}
	all.at[uint64(number)] = own
	return statusOK
}

func (p *pool) deviceRing(o rdma.RingOptions) (DeviceRing, error) {
	d, ok := p.region.(RingRegistration)
	if !ok {
		return nil, fmt.Errorf("the node's device has no rings: %w", rdma.ErrNotSupported)
	}
	return d.OpenRing(o, p.record.mtu())
}

func (r *nodeRing) count() rdma.RingCount {
	if r.device != nil {
		return r.device.Count()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.Count()
}

// ringAt returns the ring of a number; nil: there is none.
func (p *pool) ringAt(number uint64) *nodeRing {
	p.rings.RLock()
	defer p.rings.RUnlock()
	return p.rings.at[number]
}

// endRings ends rings. Behind it nothing lands in them any more.
func (p *pool) endRings(over func(*nodeRing) bool) {
	p.rings.Lock()
	defer p.rings.Unlock()
	for number, r := range p.rings.at {
		if over(r) {
			r.end()
			delete(p.rings.at, number)
		}
	}
}

// unring ends the rings of the connection's workers that may not post any more. The caller holds
// c.executing.
func (c *conn) unring() {
	c.pool.endRings(func(r *nodeRing) bool {
		return r.conn == c && (c.ended || r.owner.life <= c.pool.revoked[r.owner.client].Load())
	})
}

func (r *nodeRing) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.device != nil {
		r.device.Close()
	}
}

// post adds buffers.
func (r *nodeRing) post(spans []byte) status {
	buffers := r.buffers[:0]
	for ; len(spans) > 0; spans = spans[spanBytes:] {
		a, n := binary.LittleEndian.Uint64(spans), binary.LittleEndian.Uint64(spans[8:])
		buffers = append(buffers, rdma.Span{Addr: rdma.Addr(a), Len: int(n)})
	}
	r.buffers = buffers
	p := r.conn.pool
	if r.device != nil {
		return statusOf(r.device.Post(buffers))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return statusOf(r.queue.Post(buffers, p.registered(), p.record.mtu()))
}

// land copies a block to the next place.
func (r *nodeRing) land(block []byte) (st status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		return statusNoRing
	case r.device != nil:
		return statusNotSupported
	}
	at, err := r.queue.Place(len(block))
	if err != nil {
		return statusRingDry
	}
	defer r.queue.Landed(at)
	m := r.conn.pool.memory
	if m.file != nil || m.region != nil {
		defer func() {
			if x := recover(); x != nil {
				st = m.fault(x)
			}
		}()
	}
	r.conn.pool.model(rdma.Append, at.Offset, len(block))
	m.mark(len(block))
	memcopy.Store(unsafe.Add(m.base, at.Offset), block)
	return statusOK
}

// entry is one of several blocks of which some have landed.
type entry struct {
	ring   *nodeRing
	client rdma.ClientID
	rest   []byte // of its data, in conn.in
	at     int    // where its answer is in conn.out
}

// append executes an APPEND and, when it succeeds, appends its answer. Of an entry of several
// blocks only the first one lands now. The others land among the blocks of entries that come behind
// it, as packets of several senders do, but before another entry of its client, and before what was
// received together with it is answered.
func (c *conn) append(q *request, client rdma.ClientID) status {
	c.landAll(client)
	r := c.pool.ringAt(q.off)
	switch {
	case len(q.data) < 1 || len(q.data) > rdma.MaxMessage:
		return statusMessageSize
	case r == nil:
		return statusNoRing
	}
	e := entry{ring: r, client: client, rest: q.data, at: len(c.out)}
	if st := c.landNext(&e); st != statusOK {
		return st
	}
	c.out = append(c.out, make([]byte, resultBytes)...)
	for i := range c.entries {
		if rand.Uint32()&1 == 0 {
			c.landLater(&c.entries[i])
		}
	}
	if c.endEntries(); len(e.rest) > 0 {
		c.entries = append(c.entries, e)
	}
	return statusOK
}

// landNext lands the next block of an entry.
func (c *conn) landNext(e *entry) status {
	n := min(len(e.rest), c.pool.record.mtu())
	if st := e.ring.land(e.rest[:n]); st != statusOK {
		return st
	}
	memcopy.Settle(&c.own) // a later verb stays behind this one
	c.counters.wrote += uint64(n)
	if e.rest = e.rest[n:]; len(e.rest) == 0 {
		c.counters.sends++
	}
	return statusOK
}

// landLater is landNext for an entry of which the answer says already that it succeeds.
func (c *conn) landLater(e *entry) {
	if st := c.landNext(e); st != statusOK {
		c.counters.failed(st, 1)
		c.out[e.at], e.rest = byte(st), nil
	}
}

// landAll lands what is left of a client's entry.
func (c *conn) landAll(client rdma.ClientID) {
	for i := range c.entries {
		for e := &c.entries[i]; e.client == client && len(e.rest) > 0; {
			c.landLater(e)
		}
	}
	c.endEntries()
}

// landRest lands what is left of all entries, one block of each in turn, and gives way to other
// connections at times.
func (c *conn) landRest() {
	for len(c.entries) > 0 {
		for i := range c.entries {
			c.landLater(&c.entries[i])
		}
		if c.endEntries(); rand.Uint32()&1 == 0 {
			runtime.Gosched()
		}
	}
}

// endEntries forgets entries of which nothing is left.
func (c *conn) endEntries() {
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool { return len(e.rest) == 0 })
}
