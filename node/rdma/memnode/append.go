package memnode

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Rings at the node, which has all of them: the queue of buffers, and where the next block lands.
// Its worker's frames and the senders' APPENDs are executed in the order of their connections, as
// verbs are.

// nodeRing is a ring. openRing makes it. It ends with its worker's connection, by RingClose, by a
// revocation of its worker, or by an openRing of a later life of that. It holds no memory of
// buffers: these lie in the node's memory, and are the worker's.
type nodeRing struct {
	// session is that of the connection. It and owner are what frames about the ring must come
	// from.
	session *session
	owner   owner
	// Only post touches it, while session.executing is held.
	buffers []rdma.Span // that are being posted; kept to be used again

	mu sync.Mutex // held while a block lands: so none is in flight to one that holds it
	// queue has the buffers in the order in which they were posted, and where the next block goes.
	// It is nil with a device, which has its own.
	queue *rdma.RingQueue
	// ended is set under mu, and land looks at it under mu: when end returns, nothing lands any
	// more.
	ended bool

	device DeviceRing // nil: entries land by way of connections
}

// nodeRings are the rings of a pool at this node, by their numbers. APPENDs of all connections look
// a ring up by its number, and then lock that ring alone.
type nodeRings struct {
	// It is locked before a ring's mu.
	sync.RWMutex
	// A ring that has ended is in it no more, but for one in the place of which a device could not
	// open the next. Entries that have begun may still refer to a ring that has ended, and find
	// that it has.
	at map[uint64]*nodeRing
}

// mostRings bounds the rings of a node: each takes memory for its queue, up to 128 KiB.
const mostRings = 64

// ring executes a ring frame. The caller holds s.executing. A frame about a ring is executed in the
// order of its connection, among the worker's verbs. Its body begins with rights, the ring's number
// and n: see package transport for the format. The error is a breach. Everything else is answered
// with a status, and for a count also with the count. It needs no epoch: see serveRing.
func (s *session) ring(h transport.Header, p []byte) error {
	if len(p) < transport.RightsBytes+control.RingBytes || h.Items > control.RingClose {
		return fmt.Errorf("ring frame for %d with %d bytes: %w", h.Items, len(p), transport.ErrProtocol)
	}
	r := transport.ParseRights(p)
	s.credit(&r)
	p = p[transport.RightsBytes:]
	number, n := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
	if p = p[control.RingBytes:]; h.Items == control.RingPost && uint64(len(p)) != uint64(n)*transport.SpanBytes ||
		h.Items != control.RingPost && len(p) > 0 {
		return fmt.Errorf("ring frame for %d with %d bytes behind: %w", h.Items, len(p), transport.ErrProtocol)
	}
	s.out = append(s.out, make([]byte, transport.HeaderBytes)...)
	from := len(s.out)
	st := s.serveRing(h.Items, &r, number, n, p)
	if st != transport.StatusOK {
		s.counters.failed(st, 1)
	}
	s.answer(h, st, 0, from)
	return nil
}

// serveRing executes what a ring frame asks for, and appends the body of the answer, if that has
// any. Frames about a ring that is open are not held against fences and revocations: a revocation
// ends the ring by unring before it is answered, and a ring outlives an epoch.
func (s *session) serveRing(what int, r *transport.Rights, number, n uint32, spans []byte) transport.Status {
	if what == control.RingOpen {
		return s.openRing(r, number, n)
	}
	own := s.pool.ringAt(uint64(number))
	// A ring goes with the connection that it was opened over. Over the next one its worker finds
	// none, and so learns that it has ended.
	if own == nil || own.session != s || own.owner != (owner{r.Client, r.Life}) {
		return transport.StatusNoRing
	}
	switch what {
	case control.RingPost:
		return own.post(spans)
	case control.RingCount:
		// The answer is control.CountBytes long: buffers begun, buffers settled, and the numbers of
		// the open ones.
		count, le := own.count(), binary.LittleEndian
		s.out = le.AppendUint64(le.AppendUint64(s.out, count.Begun), count.Settled)
		for _, v := range count.Open {
			s.out = le.AppendUint64(s.out, v)
		}
	case control.RingClose:
		s.pool.endRings(func(r *nodeRing) bool { return r == own })
	}
	return transport.StatusOK
}

// openRing opens a ring. Its worker may have missed an epoch: it only receives in one. It fails
// with StatusExists while the number is that of another client, or of this or a later life of the
// same client, and with StatusFull behind mostRings. The number of buffers is bounded by CheckRing.
// The ring has none before the first post: until then each entry finds it dry.
//
// The whole of it is under the table's lock. So of two workers that open one number at a time one
// gets it, and an earlier life's ring has ended before the new one can be found.
func (s *session) openRing(r *transport.Rights, number, buffers uint32) transport.Status {
	p := s.pool
	o, err := rdma.CheckRing(rdma.RingOptions{Node: p.record.Index, Number: int(number), Buffers: int(buffers)},
		p.record.Nodes)
	switch st := s.barred(r); {
	case st != transport.StatusOK && st != transport.StatusStale:
		return st
	case s.readsOnly(r) || err != nil:
		return transport.StatusAccess
	}
	all, caller := &p.rings, owner{r.Client, r.Life}
	all.Lock()
	defer all.Unlock()
	switch old := all.at[uint64(number)]; {
	case old != nil && (old.owner.client != caller.client || old.owner.life >= caller.life):
		return transport.StatusExists
	// An earlier life of the identity had it. That life is over, though its connection may not have
	// ended yet.
	case old != nil:
		old.end()
	case len(all.at) >= mostRings:
		return transport.StatusFull
	}
	own := &nodeRing{session: s, owner: caller}
	if p.region == nil {
		own.queue = rdma.NewRingQueue(o)
	} else if own.device, err = p.deviceRing(o); err != nil {
		return transport.StatusOf(err)
	}
	all.at[uint64(number)] = own
	return transport.StatusOK
}

// deviceRing has the node's device open a ring. The error wraps rdma.ErrNotSupported where the
// device has no rings, or is the device's.
func (p *pool) deviceRing(o rdma.RingOptions) (DeviceRing, error) {
	d, ok := p.region.(RingRegistration)
	if !ok {
		return nil, fmt.Errorf("the node's device has no rings: %w", rdma.ErrNotSupported)
	}
	return d.OpenRing(o, p.record.BlockBytes())
}

// count returns how far the ring is. Buffers count as settled once no block is in flight to them,
// which land keeps: the copy of a block and its Landed are one step under mu.
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

// endRings ends rings. Behind it nothing lands in them any more. Each ring is ended under the
// table's lock, so that no other one takes its number before.
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
// s.executing. A fence of an epoch ends no ring: its worker receives while it has yet to join.
func (s *session) unring() {
	s.pool.endRings(func(r *nodeRing) bool {
		return r.session == s && (s.ended || r.owner.life <= s.pool.revoked[r.owner.client].Load())
	})
}

// end waits for the block that is landing, if any. When it returns, nothing lands any more. The
// goroutine that calls it may be another connection's, and need not hold session.executing.
func (r *nodeRing) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.device != nil {
		r.device.Close()
	}
}

// post adds buffers. Addresses are those of the pool, and RingQueue.Post checks them against what
// is registered here. It adds all of them or none. A post that is not answered, since the
// connection broke, may have added them: the ring ends with the connection then, so that the worker
// need not know.
func (r *nodeRing) post(spans []byte) transport.Status {
	buffers := r.buffers[:0]
	for ; len(spans) > 0; spans = spans[transport.SpanBytes:] {
		a, n := binary.LittleEndian.Uint64(spans), binary.LittleEndian.Uint64(spans[8:])
		buffers = append(buffers, rdma.Span{Addr: rdma.Addr(a), Len: int(n)})
	}
	r.buffers = buffers
	p := r.session.pool
	if r.device != nil {
		return transport.StatusOf(r.device.Post(buffers))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return transport.StatusOf(r.queue.Post(buffers, p.registered(), p.record.BlockBytes()))
}

// land copies a block to the next place. It returns StatusNoRing when the ring has ended,
// StatusRingDry when no buffer is left, and StatusNotSupported with a device, for which APPENDs
// come by way of that. StatusFull says that the file system could not back a page: the block's
// place is used up, and what is in it is undefined.
//
// The place is taken and filled under mu. A block for a slow page holds up other blocks of the
// ring.
func (r *nodeRing) land(block []byte) (st transport.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		return transport.StatusNoRing
	case r.device != nil:
		return transport.StatusNotSupported
	}
	at, err := r.queue.Place(len(block))
	if err != nil {
		return transport.StatusRingDry
	}
	// It counts as landed when the copy is over, also after a fault: a buffer that counts as
	// settled has none in flight. It is deferred before the recovery below, and so runs behind
	// that, and before mu is unlocked.
	defer r.queue.Landed(at)
	m := r.session.pool.memory
	if m.file != nil || m.region != nil {
		defer func() {
			if x := recover(); x != nil {
				st = m.fault(x)
			}
		}()
	}
	r.session.pool.model(rdma.Append, at.Offset, len(block))
	m.mark(len(block))
	memcopy.Store(unsafe.Add(m.base, at.Offset), block)
	return transport.StatusOK
}

// entry is one of several blocks of which some have landed. It lies in session.entries from append
// to the end of its batch at the latest, since rest points into the batch's input.
type entry struct {
	ring   *nodeRing
	client rdma.ClientID
	rest   []byte // of its data, in conn.in
	at     int    // where its answer is in session.out
}

// append executes an APPEND and, when it succeeds, appends its answer. Of an entry of several
// blocks only the first one lands now. The others land among the blocks of entries that come behind
// it, as packets of several senders do, but before another entry of its client, and before what was
// received together with it is answered. An entry that ends in an error may have left blocks: its
// sender takes it for one of unknown outcome. The order of the blocks of entries is drawn at
// random. A reader of the ring must not rely on blocks of one entry lying side by side, and so
// finds out in tests that it does. Each entry that has begun lands its next block with a
// probability of a half when another client's entry comes behind it.
func (s *session) append(q *transport.Request, client rdma.ClientID) transport.Status {
	// A client's entries are in the order in which they were posted, as on one queue pair.
	s.landAll(client)
	r := s.pool.ringAt(q.Off)
	switch {
	case len(q.Data) < 1 || len(q.Data) > rdma.MaxMessage:
		return transport.StatusMessageSize
	case r == nil:
		return transport.StatusNoRing
	}
	// at is where the answer will be. It is an index, since session.out may move when it grows, and
	// when a large buffer takes its place.
	e := entry{ring: r, client: client, rest: q.Data, at: len(s.out)}
	if st := s.landNext(&e); st != transport.StatusOK {
		return st
	}
	s.out = append(s.out, make([]byte, transport.ResultBytes)...)
	for i := range s.entries {
		if rand.Uint32()&1 == 0 {
			s.landLater(&s.entries[i])
		}
	}
	if s.endEntries(); len(e.rest) > 0 {
		s.entries = append(s.entries, e)
	}
	return transport.StatusOK
}

// landNext lands the next block of an entry. An error leaves rest as it was: the caller gives the
// entry up. Only the last block counts the entry as a SEND, so that an entry that failed in its
// midst is not counted as one that landed.
func (s *session) landNext(e *entry) transport.Status {
	n := min(len(e.rest), s.pool.record.BlockBytes())
	if st := e.ring.land(e.rest[:n]); st != transport.StatusOK {
		return st
	}
	memcopy.Settle(&s.own) // a later verb stays behind this one
	s.counters.wrote += uint64(n)
	if e.rest = e.rest[n:]; len(e.rest) == 0 {
		s.counters.sends++
	}
	return transport.StatusOK
}

// landLater is landNext for an entry of which the answer says already that it succeeds. The error
// takes the place of the success in the answer, which has not been sent. The answer has the same
// length for both, and was not sent: session.out is flushed behind the batch only. The byte at
// entry.at is the answer's status.
func (s *session) landLater(e *entry) {
	if st := s.landNext(e); st != transport.StatusOK {
		s.counters.failed(st, 1)
		s.out[e.at], e.rest = byte(st), nil
	}
}

// landAll lands what is left of a client's entry. It is called before the client's next entry, so
// that of each client one entry at most has blocks left.
func (s *session) landAll(client rdma.ClientID) {
	for i := range s.entries {
		for e := &s.entries[i]; e.client == client && len(e.rest) > 0; {
			s.landLater(e)
		}
	}
	s.endEntries()
}

// landRest lands what is left of all entries, one block of each in turn, and gives way to other
// connections at times. It runs at the end of each batch, also of one that ended in an error. The
// caller holds session.executing: a fence that waits for that finds no entry half landed which
// would go on behind it. It ends, since each turn lands a block of each entry, or gives the entry
// up.
func (s *session) landRest() {
	for len(s.entries) > 0 {
		for i := range s.entries {
			s.landLater(&s.entries[i])
		}
		if s.endEntries(); rand.Uint32()&1 == 0 {
			runtime.Gosched()
		}
	}
}

// endEntries forgets entries of which nothing is left.
func (s *session) endEntries() {
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool { return len(e.rest) == 0 })
}
