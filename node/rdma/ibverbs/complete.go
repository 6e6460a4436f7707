package ibverbs

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// A work request goes through these states, and the numbers of its peer's ring say in which it is:
//
//  - It waits, in waiting, for room in the ring, for a connection, or for what comes before it.
//  - It flies, from ripe up to tail: the device has it.
//  - It is ripe, from head up to ripe: the device has done it. Its result is not taken yet.
//  - It is over: its result is taken, or it has failed.
//
// What makes it ripe is a completion (landed). What makes a ripe one over is the node's word that
// it served at that time (settle). A completion alone proves nothing: the device of a node that was
// expelled still executes verbs, on memory that the pool has no use for.
//
// All of it is done by the worker's goroutine, when it posts, waits, sleeps or awaits a message.
// Between these calls completions stay in the queue, which has room for them.

// Wait waits for n chains of b: it polls for a moment, and then sleeps until the device tells of a
// completion. It returns nil when so many chains are over, failed ones among them; the ops say
// which. The error wraps rdma.ErrTimeout, and leaves what is in flight in flight; or
// rdma.ErrClosed.
func (e *Endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if n == rdma.All || n > b.Chains() {
		n = b.Chains()
	}
	if b.Done() < n {
		e.progress(e.fabric.o.Spin)
	}
	if b.Done() < n {
		if err := e.await(b, n, within); err != nil {
			return err
		}
	}
	e.Waited(b)
	return nil
}

// Slices of a wait: at the end of each the worker looks whether those that it waits for may still
// answer. Completions end them.
const (
	// The first is shorter than askSoon, so that a silent node is asked in time. The longest wakes
	// a waiting worker some sixty times a second.
	sliceMin = time.Millisecond
	sliceMax = 16 * time.Millisecond
	// The node's word comes by TCP, and a goroutine of the link takes it: no event of the device's
	// ends the sleep then. So it is with the answer of a mailbox that is to be connected.
	heldSlice = 200 * time.Microsecond // when what it waits for is there, and the node is to say that it serves
)

// await is the part of Wait that may take long.
func (e *Endpoint) await(b *rdma.Batch, n int, within time.Duration) error {
	e.fabric.stats.add(&e.did)
	// A fabric that is closing does not end the wait: what is in flight ends as ever.
	if err := e.Usable(); e.closed {
		return fmt.Errorf("wait for %d chains: %w", n, err) // of a batch that was never posted: the others are over
	}
	until := rdma.Forever
	if within < rdma.Forever-realtime.Now() {
		until = realtime.Now() + within
	}
	for slice := sliceMin; ; slice = min(2*slice, sliceMax) {
		// Arm, look, sleep, in that order: a completion between the look and the sleep makes an
		// event, and one before the look is found by it.
		if err := e.cq.arm(); err != nil {
			return fmt.Errorf("wait for completions: %w", err)
		}
		e.progress(0) // a completion that came before the queue was armed wakes no waiter
		if b.Done() >= n {
			return nil
		}
		now := realtime.Now()
		if now >= until {
			return fmt.Errorf("wait for %d of %d chains: %w", n, b.Chains(), rdma.ErrTimeout)
		}
		// It may fail what it finds to be lost, and with that end the wait.
		meets := e.lookAll(now)
		if b.Done() >= n {
			return nil
		}
		if e.held || meets {
			slice = heldSlice
		}
		e.did.Waits++
		if err := e.cq.await(min(until, realtime.Now()+slice)); err != nil {
			return fmt.Errorf("wait for completions: %w", err)
		}
		if e.progress(e.fabric.o.Spin); b.Done() >= n {
			return nil
		}
	}
}

// progress takes the completions that there are, and posts what waited for room. It waits for the
// first completion as long as spin says, and for none that comes behind.
func (e *Endpoint) progress(spin time.Duration) {
	if e.closed {
		return
	}
	for {
		e.did.Polls++
		n := e.cq.poll(e.found[:], max(0, spin))
		e.did.Completions += uint64(n)
		for _, c := range e.found[:n] {
			e.landed(c)
		}
		// Less than asked for: the queue was empty.
		if n < len(e.found) {
			break
		}
		spin = 0
	}
	now := realtime.Boot() // behind the completions: see settle
	// held is found anew each time: what it is about may have become over, or was dropped.
	e.held = false
	more := false
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		e.settle(p, now)
		e.held = e.held || p.ripe != p.head
		more = more || p.next < len(p.waiting)
	}
	// What became over has made room, and what waits for it may go now.
	if more {
		e.pump()
	}
	if len(e.busy) > 0 {
		e.rest()
	}
}

// active returns the i-th of the ways to nodes, and of those to mailboxes that are busy behind
// them. Ways that are not busy have nothing to look at, and a worker may have thousands. The list
// of the busy ones does not change while a caller goes through it: rest alone shortens it.
func (w *paths) active(i int) *peer {
	if i < len(w.peers) {
		return &w.peers[i]
	}
	return w.busy[i-len(w.peers)]
}

// lookAll looks after what has not been completed. It reports whether a mailbox is about to be
// connected. It may wait for nodes: see look.
func (e *Endpoint) lookAll(now time.Duration) (meets bool) {
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		e.look(p, now)
		meets = meets || p.qp == nil && p.meeting != nil
	}
	return meets
}

// landed takes one completion. An error ends the queue pair, as the device does: what is behind it
// was flushed. The id of a request has the index of its way in the upper 16 bits, the number of the
// queue pair's time (peer.times) in the next 16, and its number in the ring in the lower 32: see
// request. 256 nodes and mostWays ways fit the first. Requests without a signal have no completion
// of their own unless they fail.
func (e *Endpoint) landed(c completion) {
	p := e.peer(int(c.id >> 48))
	seq := uint32(c.id)
	if uint16(c.id>>32) != p.times || p.qp == nil {
		return // of a queue pair that was dropped, and what it carried with it
	}
	if c.status == statusSuccess {
		// Those in front of it are over as well.
		p.ripe = seq + 1
		return
	}
	// The only failure that says for sure that the request, and all behind it, did not happen.
	if p.isWay() && c.status == statusNotReady {
		e.overfull(p, seq)
		return
	}
	p.ripe = seq // those in front of it have no completions of their own: they succeeded
	// A completion says that the device gave up, and not why the other end did not answer. The node
	// is asked, and the worker waits for its answer: a fence has an error of its own.
	why := c.err()
	if refused := e.mayPost(p); refused != nil {
		why = refused // the node has taken the connection down
	} else if c.strayed() {
		// Nothing is posted there any more by this endpoint: what the worker takes to be there is
		// wrong.
		p.lost = fmt.Errorf("connection to node %d is down since %w", p.node, why)
		e.settle(p, realtime.Boot())
		// Those in front of it have been taken. If the node is not known to serve they cannot be,
		// and drop fails them all in the same way.
		if p.head == p.ripe && p.head != p.tail {
			e.fail(p.at(p.head), why) // this verb; those behind it only came too late
			p.head++
			p.ripe++
			why = p.lost
		}
	}
	e.drop(p, why)
}

// peer returns the way of that index. Ways are not taken out of the list, so that an index is of
// the same way for ever; where that leads may change: see way.
func (w *paths) peer(index int) *peer {
	if index < len(w.peers) {
		return &w.peers[index]
	}
	return w.ways[index-len(w.peers)]
}

// mayPost asks the node why verbs, or messages by way of it, are not answered; nil: they may be
// yet. It waits for the answer, for as long as transport.DeadAfter; without one the error wraps
// rdma.ErrNodeDown. A worker that has joined a later epoch need not ask.
func (e *Endpoint) mayPost(p *peer) error {
	if p.epoch != e.Epoch() {
		return fmt.Errorf("verbs of epoch %d: %w", p.epoch, rdma.ErrStale)
	}
	switch {
	case p.to.ring:
		return e.mayAppend(p)
	case p.isWay():
		return e.MaySend(p.to.box())
	}
	return e.MayPost(p.node)
}

// settle takes what is over, if the node is known to have served when it was. Now is the time on
// realtime.Boot, read behind the completion. The time is read behind the completion: a node that
// serves then was not expelled before, when the verb was executed. What is not taken yet stays
// ripe, until the node says again that it serves, or the connection breaks. Results are taken in
// the order in which the requests were posted.
func (e *Endpoint) settle(p *peer, now time.Duration) {
	if p.ripe == p.head {
		return
	}
	if until, _ := e.fabric.Served(p.node); now >= until {
		return
	}
	for p.head != p.ripe {
		f := p.at(p.head)
		seq := p.head
		p.head++
		e.take(p, f, seq)
	}
}

// take takes the result of one work request that succeeded. A READ that was not staged has its
// bytes in place. The word before an atomic is in the byte order of this machine, as libibverbs has
// it, and in the place of the request in words: it is taken before another request has that place.
func (e *Endpoint) take(p *peer, f *flight, seq uint32) {
	op := f.batch.Op(int(f.op))
	switch {
	case op.Verb == rdma.Read && f.stage.p != nil:
		copy(op.Buf[f.off:f.off+f.n], f.stage.p)
	// The result of each guess, too: guessed goes by it.
	case op.Verb.Atomic():
		op.Result = binary.NativeEndian.Uint64(p.words[seq%uint32(len(p.ring))*8:])
	}
	if op.Verb == rdma.MaskedCompareSwap {
		if p.guessed(f, op) {
			e.did.Guesses++
			return
		}
		p.masked--
	}
	e.over(f)
}

// mostGuesses bounds how often a masked compare and swap is tried. It is tried again when another
// worker changed the word. An op that meets the bound ends in rdma.ErrTimeout, and has not taken
// effect.
const mostGuesses = 1 << 16

// guessed reports whether a masked compare and swap has to be tried again: the word differs from
// the guess, but only in bits that are not compared. The word is known now, and the next try
// succeeds unless the word is changed again meanwhile. Between two tries other workers' verbs may
// come. A try that fails changed nothing, so that the whole is one atomic: the try that succeeds,
// or the one that found other compared bits.
//
// Tries of several such ops may change places with each other, and with verbs that were posted
// later: so may plain atomics, since a fence alone orders them. No fence is passed while masked is
// not 0.
func (p *peer) guessed(f *flight, op *rdma.Op) bool {
	if op.Result == f.guess || (op.Result^op.Expect)&op.CompareMask != 0 {
		return false
	}
	if f.wrong++; f.wrong > mostGuesses {
		op.Fail(fmt.Errorf("the word was changed %d times meanwhile: %w", f.wrong, rdma.ErrTimeout))
		return false
	}
	f.guess = op.Result
	// The next try is another round trip: the batch's latency says so.
	f.batch.Stalled(1)
	// In front of what waits: it was posted before.
	// The place of the flight that was taken from there last is free again, if there is one.
	p.next--
	if p.next < 0 {
		p.waiting = append([]flight{{}}, p.waiting...)
		p.next = 0
	}
	p.waiting[p.next] = *f
	*f = flight{}
	return true
}
