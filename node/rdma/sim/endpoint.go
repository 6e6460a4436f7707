package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// poll is the least time that a wait or a sleep takes, so that a loop of them comes to an end. On
// machines Hardware.Poll is charged beside it.
const poll = 20 * time.Nanosecond

// endpoint is a worker's. A call blocks the coroutine that makes it, which need not be the one that
// opened the endpoint.
//
// Outside Run it belongs to the goroutine that has the Sim. Then a batch executes within its Post,
// and leaves no event.
type endpoint struct {
	rdma.Base
	s  *Sim
	id rdma.ClientID
	// name is that of its worker, or what it was opened as. own is derived from the name, not from
	// the identity, which depends on the order in which workers begin.
	name  string
	own   uint64  // what its draws are derived from, with the seed
	owner *Worker // the worker it dies with; nil when it was opened outside Run

	// rand is for the worker: what it draws there does not move what the network draws, and the
	// other way round. conns is by node.
	rand  *rand.Rand
	net   random.Generator // draws of the network, apart from the worker's own
	conns []conn

	stores memory.Writer // by its core to its node's memory: NTStore

	// waiter is the worker in Wait: complete resumes it. batches numbers batches for traces.
	waiter  *Worker
	batches uint64
	// The last Post or Call: when it began, and how often nodes had come back until then.
	began     int64
	comebacks uint64
	// inflight counts verbs and calls that have not completed, a dead worker's too: until it is 0
	// the identity is not given to another worker.
	inflight int
	// It is empty between two Posts.
	bells []int // nodes of which the current Post has to ring the doorbell
	polls int   // chains that completed since the worker polled last
	fly   int64 // what faults add to the verb that is posted now, on its way and back
	late  int64
	// closed says that the worker gave its identity back: another worker may have that already.
	closed bool
	// revoked is looked at when something lands, and so drops what is in flight.
	revoked bool
	// box is nil when the worker does not listen. joined only grows; below network.fenced nothing
	// that it posts lands.
	box    *mailbox
	joined uint64 // epoch
	life   uint64
}

// Client, Life and Rand are as open has set them, and do not change.
func (e *endpoint) Client() rdma.ClientID { return e.id }
func (e *endpoint) Life() uint64          { return e.life }
func (e *endpoint) Rand() *rand.Rand      { return e.rand }

// usable returns why e cannot be used for what, if so. A worker finds here at once that it is
// fenced off. Real ones hear it from the node. It costs no time. It is asked when something is
// posted, and network.barred again when that lands.
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
//
// It takes no virtual time, unless a fault stalls the worker within it. On machines it takes time
// of the worker's core, which later calls wait for.
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
	// An empty batch counts, too: a loop of those would not end either.
	w.spin(1 + b.Len())
	// All of the batch is counted as posted, also what a crash keeps from being sent: that never
	// completes.
	n := w.allow(b.Len())
	e.Posted(b)
	// Before the first verb is sent: completions count down what Track counts up.
	b.Track()
	e.batches++
	e.begin()
	e.launch(w, b, n)
	// What was sent is on its way. The crash comes here, before the worker's next line.
	if w.dead() {
		return w.die()
	}
	return nil
}

// begin notes the moment of which all is that is posted now, whatever stalls the worker in between:
// what is lost with a connection or a node is lost as a whole.
func (e *endpoint) begin() { e.began, e.comebacks = e.s.now(), e.s.comebacks }

// executeAll runs a batch at once: outside Run no time passes. Whether the client may still post
// was looked at in Post, and nothing happens in between. What it writes to persistent memory is
// durable at once.
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

// A limit counts on the worker's clock. At the limit the batch stays in flight, and may be waited
// for again. A wait for what is complete takes no time, and does not give way.
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
	// complete looks at all three; they are cleared when the worker goes on, for whatever reason.
	w.waitFor, w.waitN, e.waiter = b, n, w
	e.s.arms(w, within)
	// A limit, the completion and Close wake it: which of them it was is looked up below.
	alive := w.park()
	w.waitFor, e.waiter = nil, nil
	switch {
	// First: what completed in the moment of the limit, or of Close, is not lost.
	case b.Done() >= n:
		e.waited(b)
		return nil
	case !alive:
		return fmt.Errorf("wait as client %d: %w", e.id, rdma.ErrClosed)
	}
	return fmt.Errorf("wait for %d of %d chains within %v: %w", n, b.Chains(), within, rdma.ErrTimeout)
}

// waited counts a wait that found what it waited for, and charges the worker for polling.
// Completions that came meanwhile, of other batches, are polled with it.
func (e *endpoint) waited(b *rdma.Batch) {
	e.Waited(b)
	if w := e.s.current; w != nil && e.s.hw != nil && !e.s.closed {
		e.polled(w)
	}
}

// Sleep pauses the worker. Outside Run it only moves the clock. It takes poll at the least, also
// outside Run, so that a loop that waits for a time ends. What is due meanwhile outside Run happens
// late, in the next Run.
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

// Go starts a task of the client that has the endpoint, with an identity of its own. Run does not
// wait for it, and Close unwinds it. It begins within MaxLatency. The error wraps ErrFull when no
// identity is left.
func (e *endpoint) Go(name string, f func(rdma.Endpoint)) error {
	if err := e.usable("start a task"); err != nil {
		return err
	}
	// An endpoint that was opened outside Run is taken to be of the worker that uses it now.
	// Without one, the task is a client of its own.
	parent := e.owner
	if parent == nil {
		parent = e.s.current
	}
	_, err := e.s.start(name, nil, parent, nil, f)
	return err
}

// Close ends the use of the endpoint. It waits for nothing: what is in flight lands, unless it is
// the master's.
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
	// So a new master may begin at once: what the last one has in flight is dropped like that of a
	// client that was fenced off.
	if e.s.role.Owner == e.id { // no successor waits for what it has in flight
		e.s.role, e.revoked = rdma.Role{}, true
	}
}

// crashed reports whether the endpoint's worker has crashed, with which the endpoint dies. One that
// was opened outside Run does not.
func (e *endpoint) crashed() bool { return e.owner != nil && e.owner.state == crashed }
