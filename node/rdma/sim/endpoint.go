package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// poll is the least time that a wait or a sleep takes, so that a loop of them comes to an end.
const poll = 20 * time.Nanosecond

// endpoint is a worker's. A call blocks the coroutine that makes it, which need not be the one that
// opened the endpoint.
type endpoint struct {
	rdma.Base
	s     *Sim
	id    rdma.ClientID
	name  string
	own   uint64  // what its draws are derived from, with the seed
	owner *Worker // the worker it dies with; nil when it was opened outside Run

	rand  *rand.Rand
	net   random.Generator // draws of the network, apart from the worker's own
	conns []conn

	stores memory.Writer // by its core to its node's memory: NTStore

	waiter  *Worker
	batches uint64
	// inflight counts verbs and calls that have not completed, a dead worker's too: until it is 0
	// the identity is not given to another worker.
	inflight int
	bells    []int // nodes of which the current Post has to ring the doorbell
	polls    int   // chains that completed since the worker polled last
	fly      int64 // what faults add to the verb that is posted now, on its way and back
	late     int64
	closed   bool
	// revoked is looked at when something lands, and so drops what is in flight.
	revoked bool
	box     *mailbox
	joined  uint64 // epoch
	life    uint64
}

func (e *endpoint) Client() rdma.ClientID { return e.id }
func (e *endpoint) Life() uint64          { return e.life }
func (e *endpoint) Rand() *rand.Rand      { return e.rand }

// usable returns why e cannot be used for what, if so. A worker finds here at once that it is
// fenced off. Real ones hear it from the node.
func (e *endpoint) usable(what string) error {
	if e.s.closing() || e.closed {
		return fmt.Errorf("%s as client %d: %w", what, e.id, rdma.ErrClosed)
	}
	if e.revoked {
		return fmt.Errorf("%s as client %d: %w", what, e.id, rdma.ErrRevoked)
	}
	if e.joined < e.s.net.fenced {
		return fmt.Errorf("%s as client %d of epoch %d: %w", what, e.id, e.joined, rdma.ErrStale)
	}
	return nil
}

// A worker that is to crash in the midst of the batch has sent it up to there, and never returns.
func (e *endpoint) Post(b *rdma.Batch) error {
	if err := e.usable("post"); err != nil {
		return err
	}
	w := e.s.current
	if w == nil {
		e.Posted(b)
		e.executeAll(b)
		return nil
	}
	if w.dead() { // CrashAt 0, or a number that was already passed
		return w.die()
	}
	w.spin(1 + b.Len())
	n := w.allow(b.Len())
	e.Posted(b)
	b.Track()
	e.batches++
	e.launch(w, b, n)
	if w.dead() {
		return w.die()
	}
	return nil
}

// executeAll runs a batch at once: outside Run no time passes.
func (e *endpoint) executeAll(b *rdma.Batch) {
	whole := memory.Tear{Ways: 1}
	for i := range b.Len() {
		op := b.Op(i)
		if err := e.refuse(op); err != nil {
			op.Fail(err)
			continue
		}
		n := &e.s.nodes[op.Addr.Node()]
		if n.dead {
			op.Fail(rdma.ErrNodeDown)
			continue
		}
		var err error
		switch op.Verb {
		case rdma.Send:
			err = e.s.boxes.deliver(e, op)
		case rdma.Append:
			err = e.s.rings.appendNow(op)
		default:
			e.s.net.execute(e, n, op, &whole, 0)
			n.touch(op)
		}
		if err != nil {
			op.Fail(err)
		}
	}
	b.CompleteAll()
}

func (e *endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if n == rdma.All {
		n = b.Chains()
	}
	if b.Done() >= n {
		e.waited(b)
		return nil
	}
	if e.s.closing() || e.closed {
		return fmt.Errorf("wait as client %d: %w", e.id, rdma.ErrClosed)
	}
	w := e.s.current
	if w == nil { // it was posted in a Run and can land in the next one only
		return fmt.Errorf("wait for %d of %d chains outside Run: %w", n, b.Chains(), rdma.ErrTimeout)
	}
	w.waitFor, w.waitN, e.waiter = b, n, w
	e.s.arms(w, within)
	alive := w.park()
	w.waitFor, e.waiter = nil, nil
	switch {
	case b.Done() >= n:
		e.waited(b)
		return nil
	case !alive:
		return fmt.Errorf("wait as client %d: %w", e.id, rdma.ErrClosed)
	}
	return fmt.Errorf("wait for %d of %d chains within %v: %w", n, b.Chains(), within, rdma.ErrTimeout)
}

// waited counts a wait that found what it waited for, and charges the worker for polling.
func (e *endpoint) waited(b *rdma.Batch) {
	e.Waited(b)
	if w := e.s.current; w != nil && e.s.hw != nil && !e.s.closed {
		e.polled(w)
	}
}

// Sleep pauses the worker. Outside Run it only moves the clock.
func (e *endpoint) Sleep(d time.Duration) {
	s := e.s
	d = max(d, poll)
	if s.closing() || s.current == nil {
		s.queue.Advance(int64(d))
		return
	}
	s.arms(s.current, d)
	s.current.park()
}

func (e *endpoint) Go(name string, f func(rdma.Endpoint)) error {
	if err := e.usable("start a task"); err != nil {
		return err
	}
	parent := e.owner
	if parent == nil {
		parent = e.s.current
	}
	_, err := e.s.start(name, nil, parent, nil, f)
	return err
}

func (e *endpoint) Close() error {
	if !e.s.closing() {
		e.close()
	}
	return nil
}

// close gives the identity back, unless it was fenced off: then what it owned waits for recovery,
// and Forget. It is used again only when nothing of this holder is in flight.
func (e *endpoint) close() {
	if e.closed {
		return
	}
	e.closed = true
	if e.box != nil {
		_ = e.box.Close()
	}
	if !e.revoked {
		e.s.clients[e.id] = nil
		e.s.freed = append(e.s.freed, e)
	}
	if e.s.role.Owner == e.id { // no successor waits for what it has in flight
		e.s.role, e.revoked = rdma.Role{}, true
	}
}

func (e *endpoint) crashed() bool { return e.owner != nil && e.owner.state == crashed }
