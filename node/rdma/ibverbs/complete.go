package ibverbs

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Wait waits for n chains of b: it polls for a moment, and then sleeps until the device tells of a
// completion.
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
	sliceMin  = time.Millisecond
	sliceMax  = 16 * time.Millisecond
	heldSlice = 200 * time.Microsecond // when what it waits for is there, and the node is to say that it serves
)

// await is the part of Wait that may take long.
func (e *Endpoint) await(b *rdma.Batch, n int, within time.Duration) error {
	e.fabric.stats.add(&e.did)
	if err := e.Usable(); e.closed {
		return fmt.Errorf("wait for %d chains: %w", n, err) // of a batch that was never posted: the others are over
	}
	until := rdma.Forever
	if within < rdma.Forever-realtime.Now() {
		until = realtime.Now() + within
	}
	for slice := sliceMin; ; slice = min(2*slice, sliceMax) {
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

// progress takes the completions that there are, and posts what waited for room.
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
		if n < len(e.found) {
			break
		}
		spin = 0
	}
	now := realtime.Boot() // behind the completions: see settle
	e.held = false
	more := false
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		e.settle(p, now)
		e.held = e.held || p.ripe != p.head
		more = more || p.next < len(p.waiting)
	}
	if more {
		e.pump()
	}
	if len(e.busy) > 0 {
		e.rest()
	}
}

// active returns the i-th of the ways to nodes, and of those to mailboxes that are busy behind
// them.
func (w *paths) active(i int) *peer {
	if i < len(w.peers) {
		return &w.peers[i]
	}
	return w.busy[i-len(w.peers)]
}

// lookAll looks after what has not been completed. It reports whether a mailbox is about to be
// connected.
func (e *Endpoint) lookAll(now time.Duration) (meets bool) {
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		e.look(p, now)
		meets = meets || p.qp == nil && p.meeting != nil
	}
	return meets
}

// landed takes one completion. An error ends the queue pair, as the device does: what is behind it
// was flushed.
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
	if p.isWay() && c.status == statusNotReady {
		e.overfull(p, seq)
		return
	}
	p.ripe = seq // those in front of it have no completions of their own: they succeeded
	why := c.err()
	if refused := e.mayPost(p); refused != nil {
		why = refused // the node has taken the connection down
	} else if c.strayed() {
		p.lost = fmt.Errorf("connection to node %d is down since %w", p.node, why)
		e.settle(p, realtime.Boot())
		if p.head == p.ripe && p.head != p.tail {
			e.fail(p.at(p.head), why) // this verb; those behind it only came too late
			p.head++
			p.ripe++
			why = p.lost
		}
	}
	e.drop(p, why)
}

// peer returns the way of that index.
func (w *paths) peer(index int) *peer {
	if index < len(w.peers) {
		return &w.peers[index]
	}
	return w.ways[index-len(w.peers)]
}

// mayPost asks the node why verbs, or messages by way of it, are not answered; nil: they may be
// yet.
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
// ripe, until the node says again that it serves, or the connection breaks.
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

// take takes the result of one work request that succeeded.
func (e *Endpoint) take(p *peer, f *flight, seq uint32) {
	op := f.batch.Op(int(f.op))
	switch {
	case op.Verb == rdma.Read && f.stage.p != nil:
		copy(op.Buf[f.off:f.off+f.n], f.stage.p)
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
// worker changed the word.
const mostGuesses = 1 << 16

// guessed reports whether a masked compare and swap has to be tried again: the word differs from
// the guess, but only in bits that are not compared. The word is known now, and the next try
// succeeds unless the word is changed again meanwhile. Between two tries other workers' verbs may
// come. A try that fails changed nothing, so that the whole is one atomic: the try that succeeds,
// or the one that found other compared bits.
func (p *peer) guessed(f *flight, op *rdma.Op) bool {
	if op.Result == f.guess || (op.Result^op.Expect)&op.CompareMask != 0 {
		return false
	}
	if f.wrong++; f.wrong > mostGuesses {
		op.Fail(fmt.Errorf("the word was changed %d times meanwhile: %w", f.wrong, rdma.ErrTimeout))
		return false
	}
	f.guess = op.Result
	f.batch.Stalled(1)
	// In front of what waits: it was posted before.
	p.next--
	if p.next < 0 {
		p.waiting = append([]flight{{}}, p.waiting...)
		p.next = 0
	}
	p.waiting[p.next] = *f
	*f = flight{}
	return true
}
