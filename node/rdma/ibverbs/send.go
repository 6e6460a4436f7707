package ibverbs

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	// sendDepth is how many SENDs may be in flight to one mailbox; more wait in the worker. A power
	// of two. It bounds what has to be sent again when one of them finds no buffer.
	sendDepth = 32
	// mostWays bounds the mailboxes that a worker is connected to at a time. Then others have to
	// give way, in turn. Each has a queue pair at both ends. With those of the nodes its index fits
	// 16 bits: see Endpoint.landed.
	mostWays = 4096
)

// A way goes to a mailbox or to a stream of a ring. Both are receive queues, so that what is sent
// can find no buffer; a way goes on over another queue pair then. What differs is how they connect:
// a ring is at the node, which answers at once (join). A mailbox is another process's, which
// answers by way of the node, whenever it does: the worker offers, goes on, and looks for the
// answer in its meeting.
//
// A way to a mailbox goes through these states:
//
//	nothing     no qp, no meeting: nothing was sent yet, or the last connection was given up
//	offered     offered and meeting: the mailbox has the offer, or will
//	connected   qp and meeting: SENDs are posted; the meeting hears of the end of the connection

// isWay reports whether p goes to a mailbox or a ring. Of the nodes' own peers to is the zero
// target.
func (p *peer) isWay() bool { return p.to != target{} }

// way returns the way to a mailbox, or to a stream of a ring. A way that gives way has nothing in
// flight, so that ending its connection loses nothing. The error wraps rdma.ErrFull when all ways
// are busy. When a way to a ring gives way its node is waited for: see endWay.
func (e *Endpoint) way(to target) (*peer, error) {
	if p := e.to[to]; p != nil {
		return p, nil
	}
	var p *peer
	if len(e.ways) < mostWays {
		// Its index is its own for ever: completions name it by that.
		p = &peer{index: len(e.peers) + len(e.ways), ring: make([]flight, sendDepth)}
		e.ways = append(e.ways, p)
	} else {
		for range e.ways {
			e.turn = (e.turn + 1) % len(e.ways)
			if p = e.ways[e.turn]; !p.busy {
				break
			}
		}
		if p.busy {
			return nil, fmt.Errorf("messages are on their way to %d mailboxes: %w", mostWays, rdma.ErrFull)
		}
		e.part(p)
		delete(e.to, p.to)
	}
	p.node, p.to, p.lost = to.addr.Node(), to, nil
	e.to[to] = p
	return p, nil
}

// send has a SEND wait, behind what its message gathers. What is wrong with the message ends the op
// here. A message that strays, by what it gathers, takes the way down, as a verb does.
func (e *Endpoint) send(b *rdma.Batch, i int, op *rdma.Op) {
	p, err := e.way(target{addr: op.Addr})
	if err == nil {
		e.check(p)
		err = p.lost
	}
	if err == nil {
		if err = e.box.maySend(op, e.bytes); errors.Is(err, rdma.ErrAccess) {
			p.lost = fmt.Errorf("connection to %s is down since %w", p.to, err)
		}
	}
	f := flight{batch: b, op: int32(i), n: op.Len(), last: true}
	if err == nil && len(op.Spans) > 0 && f.n > 0 {
		f.stage, err = e.gather(b, i, op)
	}
	if err != nil {
		op.Fail(err)
		b.Complete(i)
		return
	}
	// Behind gather: what it pushed counts as well.
	f.after = e.peers[p.node].pushed
	p.push(f)
	if !p.busy {
		p.busy = true
		e.busy = append(e.busy, p)
	}
}

// maySend returns why the worker may not send a message. m is nil when it has no mailbox. size is
// what each node has registered. A message is gathered from the node beside which the worker runs,
// and goes by way of that node.
func (m *mailbox) maySend(op *rdma.Op, size uint64) error {
	if m == nil {
		return fmt.Errorf("its sender has closed its mailbox: %w", rdma.ErrClosed)
	}
	n := uint64(len(op.Buf))
	for _, s := range op.Spans {
		if off := s.Addr.Offset(); s.Addr.Node() != m.o.Node || s.Len < 0 || off > size ||
			uint64(s.Len) > size-off {
			return fmt.Errorf("gather %d bytes at %s: %w", s.Len, s.Addr, rdma.ErrAccess)
		}
		n += uint64(s.Len)
	}
	if n > rdma.MaxMessage {
		return fmt.Errorf("%d bytes, and there may be %d: %w", n, rdma.MaxMessage, rdma.ErrMessageSize)
	}
	if len(op.Spans) > 0 && op.Addr.Node() != m.o.Node {
		return fmt.Errorf("gather from node %d by way of another: %w", m.o.Node, rdma.ErrNotSupported)
	}
	return nil
}

// gather has the pieces of a message READ, and returns where it is put together: this end's device
// does not reach the memory of the node's process. The SEND waits for all verbs that were posted to
// the node before, and so for these. The head is copied now, and each piece goes behind what is in
// front of it, in posting order. The stage is the SEND's, which gives it back; if a piece fails, so
// does the op, and nothing is sent.
func (e *Endpoint) gather(b *rdma.Batch, i int, op *rdma.Op) (stage, error) {
	st, err := e.mem.stage(op.Len())
	if err != nil {
		return stage{}, err
	}
	p := &e.peers[op.Addr.Node()]
	e.check(p)
	at := copy(st.p, op.Buf)
	for k, s := range op.Spans {
		p.push(flight{batch: b, op: int32(i), piece: int32(k + 1), off: at, n: s.Len, stage: st})
		at += s.Len
	}
	return st, nil
}

// past reports whether the first so many work requests that were pushed are over. The tries of a
// masked verb are pushed once; masked is not 0 until the last one is over. Numbers wrap.
func (p *peer) past(pushed uint32) bool {
	left := p.tail - p.head + uint32(len(p.waiting)-p.next)
	return int32(p.pushed-left-pushed) >= 0 && p.masked == 0
}

// connected connects the worker to a mailbox, step by step: it returns true once it is. The error
// is why what waits fails. The worker never waits here for the mailbox's process: it is called
// again with each look.
//
// The mailbox's answer is a card: its base is the longest message that it takes. An error takes
// down what was offered; the next pump begins anew with what comes then.
func (e *Endpoint) connected(p *peer) (bool, error) {
	switch {
	case p.qp != nil:
		return true, nil
	case p.head != p.tail:
		return false, nil // of an earlier connection: the node has to say that it served
	case p.to.ring:
		err := e.join(p)
		return err == nil, err
	case p.meeting == nil:
		return false, e.offer(p)
	}
	answer, over, err := p.meeting.Answer()
	if !over {
		return false, nil
	}
	var c card
	if err == nil {
		c, err = parseCard(answer)
	}
	if err == nil {
		err = p.offered.connect(c)
	}
	if err != nil {
		e.dropped = p.leave() || e.dropped
		return false, fmt.Errorf("connect to %s: %w", p.to, err)
	}
	e.did.Connects++
	p.qp, p.offered, p.most, p.begin = p.offered, nil, int(c.base), p.tail
	p.slow = slowing{}
	return true, nil
}

// offer makes this end and has the node pass its card on. It waits for no answer. A crash behind it
// leaves an end at the mailbox on which nothing comes.
func (e *Endpoint) offer(p *peer) error {
	if e.box == nil {
		return fmt.Errorf("its sender has closed its mailbox: %w", rdma.ErrClosed)
	}
	connection, err := e.fabric.Reach(p.node)
	if err != nil {
		return err
	}
	qp, err := e.cq.pair(len(p.ring), accessNone)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.to, err)
	}
	m, err := e.Meet(p.to.box(), e.box.o.Number, qp.card().bytes())
	if err != nil {
		return errors.Join(err, qp.close())
	}
	p.offered, p.meeting, p.connection, p.epoch = qp, m, connection, e.Epoch()
	return nil
}

// leave gives up the queue pair to a mailbox, whatever has become of it, and reports whether there
// was one: see Endpoint.dropped. Behind it the device reads no memory of what was in flight. The
// other end is not told: a mailbox ends its own when it is met again, or told to part.
func (p *peer) leave() (closed bool) {
	for _, qp := range []pair{p.qp, p.offered} {
		if qp == nil {
			continue
		}
		if err := qp.close(); err != nil {
			panic(fmt.Sprintf("ibverbs: a queue pair may still read memory that is about to be used again: %v", err))
		}
		closed = true
	}
	if p.meeting != nil {
		p.meeting.Forget()
	}
	p.qp, p.offered, p.meeting = nil, nil, nil
	p.times++ // completions that come yet belong to no message
	return closed
}

// part gives a way up for good, and tells the other end: a mailbox, without waiting. SENDs in
// flight may still arrive. An offer of nothing is the word that ends the other end; its answer is
// of no use.
func (e *Endpoint) part(p *peer) {
	met := p.meeting != nil
	e.drop(p, fmt.Errorf("mailbox of client %d: %w", e.Client(), rdma.ErrClosed))
	if p.to.ring {
		e.endWay(p)
	}
	if met && e.box != nil {
		if m, err := e.Meet(p.to.box(), e.box.o.Number, nil); err == nil {
			m.Forget()
		}
	}
}

// partPatience bounds the wait for a mailbox's process that is to end a connection.
const partPatience = time.Second

// parted returns once nothing that was posted to a mailbox can arrive any more. The error is why
// that is not known: a process that does not answer in time may take messages later. An offer of
// nothing is answered when the mailbox has ended the connection. The worker sleeps in between: no
// event of the device's tells of it.
func (e *Endpoint) parted(p *peer) error {
	if e.box == nil {
		return rdma.ErrClosed // it was told so
	}
	m, err := e.Meet(p.to.box(), e.box.o.Number, nil)
	if err != nil {
		return err
	}
	defer m.Forget()
	for until := realtime.Now() + partPatience; ; e.Worker.Sleep(50 * time.Microsecond) {
		switch _, over, err := m.Answer(); {
		case over:
			return err
		case realtime.Now() > until:
			return fmt.Errorf("%s does not end its connection within %v: %w", p.to, partPatience, rdma.ErrNodeDown)
		}
	}
}

// fillWay makes requests of what waits for one mailbox, while fewer than room are in flight. It
// returns how many it made.
//
// Its order is that in which ops were posted: one that has to wait holds up all behind it. One that
// fails here ends at the next look of failed, in its turn.
func (e *Endpoint) fillWay(p *peer, room int) int {
	first, near := len(e.bell.requests), &e.peers[p.node]
	for e.failed(p) && p.tail-p.head < uint32(len(p.ring)) && len(e.bell.requests)-first < room {
		f := &p.waiting[p.next]
		if !near.past(f.after) {
			break // verbs to the node that were posted before come first
		}
		op := f.batch.Op(int(f.op))
		// A fenced entry waits for earlier ones of all streams. Only its first block has to.
		if op.Fence && p.to.ring && f.off == 0 && e.entering(near, f.entry-1) {
			break
		}
		if f.n > p.most && !p.to.ring {
			op.Fail(fmt.Errorf("%d bytes, and the mailbox takes %d: %w", f.n, p.most, rdma.ErrMessageSize))
			continue
		}
		q, err := e.request(p, f, op)
		if err != nil {
			op.Fail(err)
			continue
		}
		// The READ is no block: the node does not count it.
		if p.to.ring && f.piece != behind {
			p.sent++
		}
		*p.at(p.tail) = *f
		p.tail++
		*f = flight{}
		p.next++
		e.bell.requests = append(e.bell.requests, q)
	}
	e.bell.ring(p, first)
	return len(e.bell.requests) - first
}

// failed ends those SENDs that wait first and have failed: what they gather could not be read, say.
// It leaves those of which a piece may land yet. It reports whether others wait.
//
// An op ends here in the order of the way, and not when it fails: its batch and its bytes are still
// named by what flies of it.
func (e *Endpoint) failed(p *peer) bool {
	for ; p.next < len(p.waiting); p.next++ {
		f := &p.waiting[p.next]
		if f.batch.Op(int(f.op)).Err == nil {
			return true
		}
		if !e.peers[p.node].past(f.after) || p.flies(f) {
			return false
		}
		e.over(f)
	}
	return false
}

// flies reports whether others of its op's work requests are in flight: they end before it. They
// are next to each other in the ring, so that the last one in flight tells.
func (p *peer) flies(f *flight) bool {
	if p.head == p.tail {
		return false
	}
	last := p.at(p.tail - 1)
	return last.batch == f.batch && last.op == f.op
}

// overfull ends the SEND with number seq, for which the mailbox, or the ring, had no buffer. The
// device has given up the queue pair with it. What is behind has not arrived, since a receiver
// takes nothing behind what it asks to be sent again: it goes over another queue pair, in order. So
// a message that is sent again was delivered by no earlier try.
//
// Of an entry of several blocks those in front have landed. Those behind it, and its READ, go back
// to waiting with the rest, find that their op has failed, and end there without being sent.
func (e *Endpoint) overfull(p *peer, seq uint32) {
	p.ripe = seq
	e.dropped = p.leave() || e.dropped
	e.fail(p.at(seq), fmt.Errorf("%s: %w", p.to, p.to.full()))
	p.resend(seq + 1)
	p.tail = seq
	e.settle(p, realtime.Boot())
}

// resend has what is in flight from number seq on wait again, in front of all else. The bytes stay
// where they were put for the first try: in the batch, or in the flight's stage.
func (p *peer) resend(seq uint32) {
	var again []flight
	for s := seq; s != p.tail; s++ {
		f := p.at(s)
		again = append(again, *f)
		*f = flight{}
	}
	p.waiting = append(again, p.waiting[p.next:]...)
	p.next, p.tail = 0, seq
}

// lastly takes what a mailbox said that has ended the connection: how many messages it had got. The
// others have not arrived, and will not, unless they are sent again.
//
// The count is over this connection, and so begins at begin. One that contradicts what was
// acknowledged is not believed. again says that the mailbox is there yet, and has only ended
// connections to have its buffers back: what did not arrive is sent once more, over the next one.
func (e *Endpoint) lastly(p *peer, messages uint32, again bool) {
	if p.qp != nil && messages-(p.ripe-p.begin) <= p.tail-p.ripe {
		p.ripe = p.begin + messages
	}
	if again {
		e.dropped = p.leave() || e.dropped
		p.resend(p.ripe)
		e.settle(p, realtime.Boot())
		return
	}
	// It tells drop which of those in flight have not arrived.
	p.known = true
	e.drop(p, fmt.Errorf("%s was closed: %w", p.to, rdma.ErrNoBox))
	p.known = false
}

// rest forgets ways on which nothing flies or waits. Ways that rest are in no list that a worker
// goes through: thousands of them cost nothing.
func (w *paths) rest() {
	w.busy = slices.DeleteFunc(w.busy, func(p *peer) bool {
		p.busy = p.head != p.tail || p.next != len(p.waiting)
		if !p.busy {
			p.slow = slowing{}
		}
		return !p.busy
	})
}

// endWay has the node end the queue pair to a ring, if it is connected yet: the end of the
// connection takes it down else. It waits for the node's answer, for as long as
// transport.DeadAfter, and goes on without one.
func (e *Endpoint) endWay(p *peer) {
	if connection, err := e.fabric.Reach(p.node); err == nil && connection == p.connection {
		_ = e.DetachRing(rdma.RingAddr(p.to.addr), p.to.stream)
	}
}
