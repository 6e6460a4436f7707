package kv

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// ProcReplicate is what a worker with RPC asks the worker of the same number at a backup: to append
// an entry to its log. The request is, little-endian:
//
//	number u64 of those of the worker to that backup, from 1; 0: nothing is to be appended
//	lowest u64: all below it are acknowledged
//	term u32 of the write, or of the question | node u16 of the worker | kind u8 | 0
//	record
//
// The answer says, in a word, how many bytes the worker has leave to append, in all. Its status is
// StatusFull when there are no more segments.
const ProcReplicate uint16 = 100

// replicateBytes are those ahead of the record.
const replicateBytes = 24

// calls is the replication of RPC-KV. Each worker has a log of its own for what others send it, in
// segments that its server lends it. It has leave given out for no more than there is room.
//
// A call of unknown outcome is made again, with its number, by which the backup knows what it has
// appended. Else a request that is late would bring an entry back whose segment was freed.
//
// Numbers and leave are of a term: in each one both ends begin anew. What comes of an earlier term
// is dropped: of servers that are gone from when another one is adopted, which they may have sent
// before they were fenced off. A server that is started anew takes what others repeat of the terms
// that the earlier one knew, which it may have appended: then an entry is there twice, the first
// one ahead.
type calls struct {
	w       *worker
	backups []backup // by node
	body    []byte

	log     *rowan.Remote
	asked   asking
	term    *term    // in which it is lent, and sources have leave; nil: there is none
	earlier bool     // sources may have leave of an earlier server
	turning *term    // that begins once nothing of the one before is under way; nil: none does
	sources []source // by node
	taken   []taking
}

// backup is what a worker knows of its appends to one.
type backup struct {
	next    uint64 // number of the append
	lowest  uint64 // that is not acknowledged
	acked   [callWindow / 64]uint64
	granted uint64    // bytes
	spent   uint64    // of them
	full    bool      // the last answer was that there are no more segments
	ask     *rpc.Call // for leave; nil: none is in flight
	again   time.Duration
}

// source is what a worker knows of another server's appends.
type source struct {
	granted, spent uint64
	lowest         uint64 // that is not acknowledged, as far as it says
	seen           [callWindow / 64]uint64
}

// taking is an append in flight to the worker's log.
type taking struct {
	r      *rpc.Request
	node   int
	number uint64
	place  rowan.Place
	batch  *rdma.Batch
}

const (
	// callWindow bounds how many appends may be in flight behind the oldest: many times as many as a
	// worker has calls.
	callWindow = 1 << 12
	// callPatience is for how long an answer is waited for: it is lost only with the connection, or
	// when a mailbox is full for long.
	callPatience = 20 * time.Millisecond
)

func newCalls(w *worker) *calls {
	c := &calls{
		w: w, backups: make([]backup, w.s.o.Nodes), sources: make([]source, w.s.o.Nodes),
		log: w.s.newRemote(w.s.node, w.number),
	}
	if t := w.s.resumedTerm; t != nil {
		c.term, c.earlier = t, true
		c.log.Begin(t.Term)
	}
	c.anew()
	return c
}

// anew begins with numbers and leave of a term.
func (c *calls) anew() {
	for i := range c.backups {
		if ask := c.backups[i].ask; ask != nil {
			ask.Release()
		}
		c.backups[i] = backup{next: 1, lowest: 1}
	}
}

func (c *calls) turn(t *term) {
	c.anew()
	c.turning = t
}

// turnLog goes on with the worker's own log in the next term, as soon as nothing of earlier ones is
// in flight to it.
func (c *calls) turnLog() {
	if c.turning == nil || len(c.taken) > 0 {
		return
	}
	c.term, c.turning, c.earlier = c.turning, nil, false
	for i := range c.sources {
		c.sources[i] = source{lowest: 1}
	}
	c.log.Begin(c.term.writesTo(c.w.s.node))
	c.w.s.turns(c.w.number, c.term.Term)
}

func (c *calls) giveUp(_ *op, a *appending) {
	if a.call != nil {
		a.call.Release()
		a.call = nil
	}
}

// leave is how many bytes a record of n bytes takes.
func leave(n int) uint64 { return uint64(entrySize(n)) }

func (c *calls) reserve(a *appending, n int, del bool) error {
	b := &c.backups[a.node]
	need := leave(n)
	if !del {
		need += c.w.s.o.credit() / 2 // which is for DELs
	}
	if b.granted >= b.spent+need && b.next < b.lowest+callWindow {
		b.spent += leave(n)
		return nil
	}
	if err := c.askLeave(a.node); err != nil {
		return err
	}
	if b.full {
		return rdma.ErrFull
	}
	return errAway
}

func (c *calls) unreserve(a *appending, n int) { c.backups[a.node].spent -= leave(n) }

// askLeave asks a backup for leave, unless it is asked already.
func (c *calls) askLeave(node int) (err error) {
	b := &c.backups[node]
	if b.ask != nil || c.w.ep.Now() < b.again {
		return nil
	}
	b.ask, err = c.start(node, 0, c.w.term.Term, 0, nil)
	return err
}

// start starts a call; nil: there are too many.
func (c *calls) start(node int, number, term uint64, kind uint8, record []byte) (*rpc.Call, error) {
	le := binary.LittleEndian
	c.body = le.AppendUint64(c.body[:0], number)
	c.body = le.AppendUint64(c.body, c.backups[node].lowest)
	c.body = le.AppendUint64(c.body, uint64(uint32(term))|uint64(c.w.s.node)<<32|uint64(kind)<<48)
	c.body = append(c.body, record...)
	call, err := c.w.peer.Start(rdma.BoxAt(node, c.w.s.o.Boxes+1+c.w.number), ProcReplicate, callPatience, c.body)
	if errors.Is(err, rpc.ErrWindow) {
		return nil, nil
	}
	return call, err
}

func (c *calls) add(_ *rdma.Batch, o *op, a *appending, _ time.Duration) (err error) {
	b := &c.backups[a.node]
	a.number = b.next
	b.next++
	return c.call(o, a)
}

func (c *calls) call(o *op, a *appending) (err error) {
	kind, record := c.w.encode(o)
	a.call, err = c.start(a.node, a.number, o.term, kind, record)
	return err
}

func (c *calls) goOn(o *op, a *appending, now time.Duration) (acked bool, err error) {
	switch {
	case a.call == nil:
		if now >= a.again {
			a.again = now + pause
			err = c.call(o, a)
		}
		c.w.again(a.again)
		return false, err
	case !a.call.Over():
		return false, nil
	}
	acked = c.heed(a.node, a.call)
	a.call, a.again = nil, now+pause
	if !acked {
		c.w.again(a.again)
		return false, nil
	}
	b := &c.backups[a.node]
	b.acked[a.number%callWindow/64] |= 1 << (a.number % 64)
	for n := &b.lowest; b.acked[*n%callWindow/64]>>(*n%64)&1 != 0; *n++ {
		b.acked[*n%callWindow/64] &^= 1 << (*n % 64)
	}
	return true, nil
}

// heed takes an answer, and reports whether there is one.
func (c *calls) heed(node int, call *rpc.Call) bool {
	defer call.Release()
	if call.Err != nil || len(call.Body) != 8 {
		return false
	}
	b := &c.backups[node]
	b.granted, b.full = max(b.granted, binary.LittleEndian.Uint64(call.Body)), call.Status == StatusFull
	return true
}

// take takes another worker's request.
func (c *calls) take(r *rpc.Request) error {
	p, le := r.Body, binary.LittleEndian
	if len(p) < replicateBytes || int(le.Uint16(p[20:])) >= len(c.sources) {
		return r.Answer(StatusBad, nil)
	}
	t, term := taking{r: r, node: int(le.Uint16(p[20:])), number: le.Uint64(p)}, le.Uint32(p[16:])
	switch {
	case t.number == 0 && (c.term == nil || term > uint32(c.term.Term)):
		return r.Answer(StatusOK, make([]byte, 8)) // there is no leave yet
	case c.term == nil || term > uint32(c.term.Term) || term < uint32(c.term.Term) && !c.earlier || c.turning != nil ||
		c.w.term == nil || c.w.term.Member(t.node) == nil:
		r.Drop()
		return nil
	}
	s := &c.sources[t.node]
	for lowest := le.Uint64(p[8:]); s.lowest < lowest; s.lowest++ {
		s.seen[s.lowest%callWindow/64] &^= 1 << (s.lowest % 64)
	}
	same := func(u taking) bool { return u.node == t.node && u.number == t.number }
	switch {
	case t.number == 0:
		return c.acknowledge(t)
	case t.number < s.lowest || slices.ContainsFunc(c.taken, same):
		r.Drop() // it is acknowledged, or will be
		return nil
	case s.seen[t.number%callWindow/64]>>(t.number%64)&1 != 0:
		return c.acknowledge(t)
	}
	kind, record := p[22], p[replicateBytes:]
	place, err := c.log.Place(len(record), true)
	if err != nil && c.earlier {
		c.log.Want()
		r.Drop()
		return nil
	}
	if err != nil {
		return err // there was leave for it
	}
	s.seen[t.number%callWindow/64] |= 1 << (t.number % 64)
	s.spent += leave(len(record))
	b := c.w.ep.Batch()
	b.Chain()
	entry := b.Alloc(rowan.Size(len(record)))
	c.log.Seal(place, kind, term, record, entry)
	b.Write(place.At, entry)
	b.Read(place.At, 8)
	t.place, t.batch = place, b
	c.taken = append(c.taken, t)
	return c.w.ep.Post(b.As("append"))
}

// acknowledge answers a request whose entry is in the log, if it has one, and says how much leave
// its worker has.
func (c *calls) acknowledge(t taking) error {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], c.grant(t.node))
	status := StatusOK
	if c.log.Full() {
		status = StatusFull
	}
	return t.r.Answer(status, p[:])
}

// grant gives a source as much leave as there is room for: up to half of the credit, which is for
// DELs, and what is above that as long as others can have their half, and there is room that is for
// DELs alone.
func (c *calls) grant(node int) uint64 {
	o := &c.w.s.o
	credit := int64(o.credit())
	room, kept := int64(c.log.Room(rowan.Size(recordBytes+o.PairBytes))), int64(o.urgent()*o.lentRoom())
	for i := range c.sources {
		if i == c.w.s.node || c.term.Member(i) == nil {
			continue
		}
		left := int64(c.sources[i].granted - c.sources[i].spent)
		room -= left
		if i != node {
			kept += max(0, credit/2-left)
		}
	}
	s := &c.sources[node]
	left := int64(s.granted - s.spent)
	more := max(0, min(credit/2-left, room))
	more = max(more, min(credit-left, room-kept))
	s.granted += uint64(more)
	if left+more < credit {
		c.log.Want()
	}
	return s.granted
}

// step answers what is in the log, and asks for leave, and for segments.
func (c *calls) step(now time.Duration) (err error) {
	for i := 0; i < len(c.taken) && err == nil; {
		t := &c.taken[i]
		if !t.batch.Finished() {
			i++
			continue
		}
		if err := t.batch.Err(); err != nil {
			if again, e := c.w.ended(err); !again || e != nil {
				return errors.Join(err, e) // the node is gone, or the worker was fenced off
			}
			if t.batch, err = c.w.repost(t.batch); err != nil {
				return err
			}
			continue
		}
		t.batch.Release()
		c.log.Landed(t.place)
		err = c.acknowledge(*t)
		c.taken = slices.Delete(c.taken, i, i+1)
	}
	for node := range c.backups {
		if b := &c.backups[node]; b.ask != nil && b.ask.Over() {
			c.heed(node, b.ask)
			b.ask, b.again = nil, now+pause
		}
	}
	if err == nil {
		c.turnLog()
		err = c.asked.step(c.w.ep, c.log, c.w.again)
	}
	return err
}
