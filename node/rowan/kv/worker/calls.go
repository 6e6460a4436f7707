package worker

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// calls is the replication of RPC-KV. Each worker has one log for what other servers send it, in
// segments that its server lends it. It gives leave for no more bytes than the log has room for.
//
// A call of unknown outcome is repeated under its number, and the backup remembers which numbers it
// has appended. Otherwise a late request could bring back an entry after its segment was freed.
//
// Numbers and leave belong to a term: in each term both ends start again. Requests of an earlier
// term are dropped: a server that is gone may have sent them before it was fenced off. One case is
// different. A server that was restarted accepts what others repeat of the term that its
// predecessor knew. The predecessor may have appended such an entry already; then the log holds it
// twice, with equal contents.
type calls struct {
	w *Worker
	// By node: what this worker sends to others.
	backups []backup
	// The request that is built. Start copies it.
	body []byte
	// The worker's own log for entries of others, and its question for segments.
	log   *rowan.Remote
	asked state.Asking
	// The term in which the log is lent and sources have leave; nil: there is none yet.
	term *state.Term
	// Sources may have leave from a server that ran here before, which this one does not know of.
	earlier bool
	// The term that begins once nothing of the one before is in flight to the log; nil: none does.
	turning *state.Term
	// By node: what others send to this worker.
	sources []source
	// Appends to the log that are in flight.
	taken []taking
}

// backup is the state of a worker's appends to one backup, in the current term.
type backup struct {
	// Number of the next append.
	next uint64
	// The lowest number that is not acknowledged.
	lowest uint64
	// Acknowledged numbers above lowest: a bit each, modulo callWindow.
	acked [callWindow / 64]uint64
	// Bytes of leave, in all, and how many of them are used. spent <= granted.
	granted uint64
	spent   uint64
	// The last answer was that the backup has no more segments.
	full bool
	// The question for leave that is in flight; nil: none is.
	ask *rpc.Call
	// When the backup may be asked again.
	again time.Duration
}

// source is what a worker knows of the appends of the same worker at another server, in the current
// term.
type source struct {
	// Bytes of leave, in all, and how many of them are used.
	granted, spent uint64
	// The lowest number that is not acknowledged, as far as the source says.
	lowest uint64
	// Numbers from lowest on that were appended: a bit each, modulo callWindow.
	seen [callWindow / 64]uint64
}

// taking is an append to the worker's log that is in flight, and the request that is answered once
// it is durable.
type taking struct {
	r      *rpc.Request
	node   int
	number uint64
	place  rowan.Place
	batch  *rdma.Batch
}

const (
	// callWindow bounds the numbers in flight above the lowest one that is not acknowledged. It is
	// far more than a worker has calls in flight.
	callWindow = 1 << 12
	// callPatience bounds the wait for an answer. An answer is lost only if the connection breaks
	// or a mailbox stays full.
	callPatience = 20 * time.Millisecond
)

// newCalls returns the replication of a worker. Where an earlier server ran, its log goes on in the
// earlier server's last term: other servers may wait for what they send in it.
func newCalls(w *Worker) *calls {
	c := &calls{
		w: w, backups: make([]backup, w.s.Opt.Nodes), sources: make([]source, w.s.Opt.Nodes),
		log: w.s.NewRemote(w.s.Node, w.number),
	}
	// The earlier server's logs were lent to these workers in that term; package failover has lent
	// them again.
	if t := w.s.ResumedTerm; t != nil {
		c.term, c.earlier = t, true
		c.log.Begin(t.Term)
	}
	c.anew()
	return c
}

// anew resets numbers and leave of this worker's appends. The questions in flight are given up.
func (c *calls) anew() {
	for i := range c.backups {
		// A late answer to it is discarded by the peer.
		if ask := c.backups[i].ask; ask != nil {
			ask.Release()
		}
		c.backups[i] = backup{next: 1, lowest: 1}
	}
}

// turn begins a committed term. The worker's own log follows as soon as it can: see turnLog.
func (c *calls) turn(t *state.Term) {
	c.anew()
	c.turning = t
}

// turnLog moves the worker's own log to the next term, once no append of earlier terms is in flight
// to it. From then on requests of earlier terms are dropped, so nothing of them comes into the log
// any more. Package failover relies on that (state.Known.TurnedTo).
func (c *calls) turnLog() {
	if c.turning == nil || len(c.taken) > 0 {
		return
	}
	c.term, c.turning, c.earlier = c.turning, nil, false
	for i := range c.sources {
		c.sources[i] = source{lowest: 1}
	}
	c.log.Begin(c.term.WritesTo(c.w.s.Node))
	c.w.s.Known.Turns(c.w.number, c.term.Term)
}

// giveUp drops the call. A late answer to it is discarded by its peer.
func (c *calls) giveUp(_ *op, a *appending) {
	if a.call != nil {
		a.call.Release()
		a.call = nil
	}
}

// leave returns how many bytes of leave a record of n bytes takes.
func leave(n int) uint64 { return uint64(kv.EntrySize(n)) }

// reserve takes leave at a backup. Writes other than DELs leave half of the credit to DELs. If
// there is not enough leave the backup is asked for more.
func (c *calls) reserve(a *appending, n int, del bool) error {
	b := &c.backups[a.node]
	need := leave(n)
	if !del {
		need += c.w.s.Opt.LeaveBytes() / 2 // which is for DELs
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

// unreserve returns leave that reserve took.
func (c *calls) unreserve(a *appending, n int) { c.backups[a.node].spent -= leave(n) }

// askLeave asks a backup for leave, if no question is in flight and it is time.
func (c *calls) askLeave(node int) (err error) {
	b := &c.backups[node]
	if b.ask != nil || c.w.ep.Now() < b.again {
		return nil
	}
	b.ask, err = c.start(node, 0, c.w.term.Term, 0, nil)
	return err
}

// start starts a call. It returns nil if the peer has too many in flight; the caller tries again.
func (c *calls) start(node int, number, term uint64, kind uint8, record []byte) (*rpc.Call, error) {
	le := binary.LittleEndian
	c.body = le.AppendUint64(c.body[:0], number)
	c.body = le.AppendUint64(c.body, c.backups[node].lowest)
	c.body = le.AppendUint64(c.body, uint64(uint32(term))|uint64(c.w.s.Node)<<32|uint64(kind)<<48)
	c.body = append(c.body, record...)
	call, err := c.w.peer.Start(rdma.BoxAt(node, c.w.s.Opt.Boxes+1+c.w.number), kv.ProcReplicate, callPatience, c.body)
	if errors.Is(err, rpc.ErrWindow) {
		return nil, nil
	}
	return call, err
}

// add gives the append its number, which it keeps whenever the call is repeated.
func (c *calls) add(_ *rdma.Batch, o *op, a *appending, _ time.Duration) (err error) {
	b := &c.backups[a.node]
	// Numbers follow the order of the versions.
	a.number = b.next
	b.next++
	return c.call(o, a)
}

// call sends the record of an append.
func (c *calls) call(o *op, a *appending) (err error) {
	kind, record := c.w.encode(o)
	// If it is nil goOn starts it later.
	a.call, err = c.start(a.node, a.number, o.term, kind, record)
	return err
}

// goOn repeats a call that has failed, and takes the answer of one that is over. The numbers below
// the first one without an answer are forgotten: the backup is told by the next request.
func (c *calls) goOn(o *op, a *appending, now time.Duration) (acked bool, err error) {
	switch {
	case a.call == nil:
		if now >= a.again {
			a.again = now + state.RetryPause
			err = c.call(o, a)
		}
		c.w.again(a.again)
		return false, err
	case !a.call.Over():
		return false, nil
	}
	acked = c.takeAnswer(a.node, a.call)
	a.call, a.again = nil, now+state.RetryPause
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

// takeAnswer takes an answer, which is the latest state of the leave. It reports whether the call
// succeeded. The leave never falls within a term, so answers may come in any order.
func (c *calls) takeAnswer(node int, call *rpc.Call) bool {
	defer call.Release()
	if call.Err != nil || len(call.Body) != 8 {
		return false
	}
	b := &c.backups[node]
	// It is a total, so an answer that was overtaken changes nothing.
	b.granted, b.full = max(b.granted, binary.LittleEndian.Uint64(call.Body)), call.Status == kv.StatusFull
	return true
}

// take handles a request of another server's worker. It appends the record, unless that is done
// already, and answers now or when the append is durable (step). A request that cannot be served
// now is dropped; its sender repeats it.
func (c *calls) take(r *rpc.Request) error {
	p, le := r.Body, binary.LittleEndian
	if len(p) < kv.ReplicateBytes || int(le.Uint16(p[20:])) >= len(c.sources) {
		return r.Answer(kv.StatusBad, nil)
	}
	t, term := taking{r: r, node: int(le.Uint16(p[20:])), number: le.Uint64(p)}, le.Uint32(p[16:])
	switch {
	case t.number == 0 && (c.term == nil || term > uint32(c.term.Term)):
		return r.Answer(kv.StatusOK, make([]byte, 8)) // there is no leave yet
	case c.term == nil || term > uint32(c.term.Term) || term < uint32(c.term.Term) && !c.earlier || c.turning != nil ||
		c.w.term == nil || c.w.term.Member(t.node) == nil:
		r.Drop()
		return nil
	}
	// From here on the request is of a member, and of the log's term or of the one that an earlier
	// server knew.
	// What this server knows of a source is in memory alone. A server that begins anew starts from
	// nothing, in a term in which sources do, too, or see earlier.
	s := &c.sources[t.node]
	// The source has taken all answers below lowest, and repeats none of these requests.
	for lowest := le.Uint64(p[8:]); s.lowest < lowest; s.lowest++ {
		s.seen[s.lowest%callWindow/64] &^= 1 << (s.lowest % 64)
	}
	same := func(u taking) bool { return u.node == t.node && u.number == t.number }
	switch {
	case t.number == 0:
		return c.acknowledge(t)
	case t.number < s.lowest || slices.ContainsFunc(c.taken, same):
		r.Drop() // it was acknowledged, or will be
		return nil
	case s.seen[t.number%callWindow/64]>>(t.number%64)&1 != 0:
		return c.acknowledge(t)
	}
	kind, record := p[22], p[kv.ReplicateBytes:]
	// It counts as an append that makes room: there was leave for it.
	place, err := c.log.Place(len(record), true)
	// The leave was given by an earlier server, in segments that may be elsewhere: the source
	// repeats the call until this one has a segment for it.
	if err != nil && c.earlier {
		c.log.Want()
		r.Drop()
		return nil
	}
	if err != nil {
		return err // there was leave for it, so this cannot be
	}
	s.seen[t.number%callWindow/64] |= 1 << (t.number % 64)
	// The source has spent it, too, whatever becomes of the answer.
	s.spent += leave(len(record))
	b := c.w.ep.Batch()
	b.Chain()
	entry := b.Alloc(rowan.Size(len(record)))
	c.log.Seal(place, kind, term, record, entry)
	b.Write(place.At, entry)
	b.Read(place.At, 8)
	t.place, t.batch = place, b
	// step answers when the batch is complete.
	c.taken = append(c.taken, t)
	return c.w.ep.Post(b.As("append"))
}

// acknowledge answers a request. If it has an entry, the entry is durable. The answer says how much
// leave the source has now.
func (c *calls) acknowledge(t taking) error {
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], c.grant(t.node))
	// The source learns of a full backup though its append is done.
	status := kv.StatusOK
	if c.log.Full() {
		status = kv.StatusFull
	}
	return t.r.Answer(status, p[:])
}

// grant raises a source's leave as far as the log has room. It gives up to half of the credit,
// which DELs use, whenever there is room. It gives more than that only from the room which is left
// when every other source can have its half, and without the room that is kept for DELs.
func (c *calls) grant(node int) uint64 {
	o := &c.w.s.Opt
	credit := int64(o.LeaveBytes())
	room, kept := int64(c.log.Room(rowan.Size(kv.RecordBytes+o.PairBytes))), int64(o.UrgentSegments()*o.LentRoom())
	for i := range c.sources {
		if i == c.w.s.Node || c.term.Member(i) == nil {
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
	// It is told to the source with each answer, so an answer that is lost does no harm.
	s.granted += uint64(more)
	if left+more < credit {
		c.log.Want()
	}
	return s.granted
}

// step answers the requests of which the append has completed, takes answers to questions for
// leave, and asks for segments.
func (c *calls) step(now time.Duration) (err error) {
	for i := 0; i < len(c.taken) && err == nil; {
		t := &c.taken[i]
		if !t.batch.Finished() {
			i++
			continue
		}
		// If a new view ended the local WRITE, it is repeated at its place. Other errors end the
		// worker.
		if err := t.batch.Err(); err != nil {
			if again, e := c.w.ended(err); !again || e != nil {
				return errors.Join(err, e) // the node is gone, or the worker was fenced off
			}
			if t.batch, err = c.w.repost(t.batch); err != nil {
				return err
			}
			continue
		}
		// The entry is durable, as the READ behind the WRITE says.
		t.batch.Release()
		c.log.Landed(t.place)
		err = c.acknowledge(*t)
		c.taken = slices.Delete(c.taken, i, i+1)
	}
	for node := range c.backups {
		if b := &c.backups[node]; b.ask != nil && b.ask.Over() {
			c.takeAnswer(node, b.ask)
			b.ask, b.again = nil, now+state.RetryPause
		}
	}
	if err == nil {
		c.turnLog()
		err = c.asked.Step(c.w.ep, c.log, c.w.again)
	}
	return err
}
