package sim

import (
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/events"
)

// state is of a Worker. From parked and runs it changes back and forth; finished and crashed are
// final.
type state uint8

const (
	parked   state = iota // waits to be resumed; so does a worker that has not begun
	runs                  // is the current coroutine
	finished              // its function has returned
	crashed               // is never resumed
)

// Worker is a coroutine of a simulation: a client, or a task that one started. A client and its
// tasks are one process: they crash together, and their verbs are counted together.
type Worker struct {
	// name is for traces, errors and faults; several workers may have the same. ep is the worker's
	// own endpoint, in which its identity is.
	s    *scheduler
	name string
	ep   *endpoint
	root *Worker  // the client it belongs to; itself for a client
	home *node    // that it runs on; nil: a compute node
	box  *mailbox // that it waits for
	// A task and a hosted worker are not top. kin are a client's tasks, which crash with it; a task
	// has none. All of eps are closed when the worker's function returns, and none when it crashes.
	top bool // Run waits for it
	kin []*Worker
	eps []*endpoint // opened by it or for it

	// next runs the coroutine until it yields, and stop unwinds it. Only the engine calls them,
	// outside of every coroutine.
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	state state

	// The alarm is armed for the limit of a wait, the end of a sleep or a stall, or for now, when a
	// message came. It is disarmed when the worker goes on.
	alarm events.Alarm[event] // wakes it

	// A worker waits for one thing at a time: waitN chains of waitFor, the answer of call, or a
	// message in box. callErr is what replied leaves for Call, which clears it.
	waitFor *rdma.Batch // what it waits for; all nil and zero in a sleep
	waitN   int
	call    *flight
	callErr error

	// machine is nil without Options.Hardware, and core never is.
	machine *machine // of Options.Hardware
	core    *core

	// cuts are the spans of partitions, and are kept for the whole run. stalledUntil is in virtual
	// time: before it no worker of the client is resumed. stalls is the sum of what stalls asked
	// for.
	clock        clock // a client's, its tasks' too; so are the faults
	cuts         []interval
	faults       []*Fault // at verbs; nil when they have happened
	stalledUntil int64
	stalls       time.Duration

	// crashAt is the number of the last verb that is sent: see CrashAt. whenDead are called in the
	// order in which they came, once.
	sent      uint64 // a client's verbs and calls so far, its tasks' too
	crashAt   uint64
	doomed    bool // crashAt counts
	whenDead  []func()
	lastCalls int // calls made while it is being unwound
	spins     int // calls made since it gave way last
}

// Name returns the name it was started with.
func (w *Worker) Name() string { return w.name }

// Client returns its identity.
func (w *Worker) Client() rdma.ClientID { return w.ep.id }

// ComputeNode returns the number of its client's compute node, as Usage counts them; 0 where there
// is no Options.Hardware.
func (w *Worker) ComputeNode() int {
	if m := w.root.machine; m != nil {
		return m.number
	}
	return 0
}

// Sent returns how many verbs and calls it and its tasks have sent: crash enumeration runs k from 0
// to this.
func (w *Worker) Sent() uint64 { return w.root.sent }

// Crashed reports whether it was stopped by CrashAt or CrashAfter.
func (w *Worker) Crashed() bool { return w.state == crashed }

// Finished reports whether its function has returned.
func (w *Worker) Finished() bool { return w.state == finished }

// WhenCrashed calls f at the moment of its crash, in the engine: f may start other workers, for
// instance one that recovers while the dead client's verbs are still in flight.
func (w *Worker) WhenCrashed(f func()) { w.root.whenDead = append(w.root.whenDead, f) }

// Go starts a top-level worker: a client with an identity of its own, which it gives back by
// returning. It draws the same numbers for the same seed and name, whichever other workers there
// are. It panics when no identity is left.
func (s *Sim) Go(name string, f func(ep rdma.Endpoint)) *Worker {
	return s.enter(name, nil, nil, f)
}

// GoOnCoreOf starts a client as Go does, on the core of another: one more operation that the same
// thread has in flight. What the one posts and polls keeps the other waiting. Each has its own
// identity, and they crash one by one.
func (s *Sim) GoOnCoreOf(other *Worker, name string, f func(ep rdma.Endpoint)) *Worker {
	return s.enter(name, nil, other, f)
}

// enter starts a top-level worker: Run waits for it. It panics when no identity is left.
func (s *Sim) enter(name string, home *node, beside *Worker, f func(ep rdma.Endpoint)) *Worker {
	w, err := s.start(name, home, nil, beside, f)
	if err != nil {
		panic(err)
	}
	w.top = true
	s.live++
	return w
}

// start prepares a coroutine; home is nil for one on a compute node, parent for a client, beside
// for one with a core of its own. The error is of open: no identity is left, or the simulation is
// closed. The coroutine begins when a Run comes to its first alarm. Outside Run its endpoint can be
// used before.
func (s *Sim) start(name string, home *node, parent, beside *Worker, f func(ep rdma.Endpoint)) (*Worker, error) {
	e, err := s.open(name)
	if err != nil {
		return nil, err
	}
	w := &Worker{s: &s.scheduler, name: name, ep: e, home: home}
	w.root, w.alarm.Event = w, event{kind: wakeUp, w: w}
	if parent != nil {
		w.root, w.home = parent.root, parent.root.home
		w.root.kin = append(w.root.kin, w)
	}
	e.owner = w
	w.eps = append(w.eps, e)
	s.begin(w, beside)
	w.next, w.stop = iter.Pull(func(yield func(struct{}) bool) {
		w.yield = yield
		defer w.returned()
		f(e)
	})
	s.workers = append(s.workers, w)
	s.arm(w, s.now()+e.net.UpTo(int64(s.opts.MaxLatency))) // workers do not start at the same moment
	return w, nil
}

// begin gives a worker that is being started what it has of its client, and a client its machine,
// clock and faults. Faults are armed behind the clock, and draw nothing.
func (s *Sim) begin(w, beside *Worker) {
	if w.root == w {
		s.injector.roots++
		w.setClock(w.ep.own)
		s.injector.armFaults(w)
	}
	s.cards.place(w, beside)
}

// unwound is what a coroutine is unwound with when it does not end by itself after Close. It is
// thrown by closing and caught by returned, and is no failure of the worker.
type unwound struct{}

// returned runs in the coroutine when its function returns, panics or calls runtime.Goexit (a
// failed test). A worker that returns has closed its endpoints, as a process that ends in order
// does. It runs as well when the function is unwound by Close. Then nothing is closed or counted:
// all ends with the simulation.
func (w *Worker) returned() {
	if p := recover(); p != nil {
		if _, ok := p.(unwound); !ok {
			w.s.fail(fmt.Errorf("%s: %w: %v\n%s", w.name, ErrPanic, p, debug.Stack()))
		}
	}
	if w.s.closed {
		return
	}
	w.state = finished
	// Their identities are given out again once nothing of them is in flight: what was sent still
	// lands.
	for _, e := range w.eps {
		e.close()
	}
	if w.top {
		w.s.live--
	}
}

// park gives way until w is woken. It returns false when the simulation is being closed. Of what it
// was parked for nothing is known then: callers look at the batch, the call or the mailbox first.
func (w *Worker) park() bool { return w.yield(struct{}{}) }

// mostSpins bounds what a worker may do in one instant. It is far above what protocols post between
// two waits.
const mostSpins = 1 << 20

// spin ends a worker that posts verbs or looks at the clock for ever without giving way: nothing
// else would. resume sets the count to 0. Time does not pass in such a loop, so neither Limit nor
// MaxEvents ends it.
func (w *Worker) spin(n int) {
	if w.spins += n; w.spins > mostSpins {
		panic(fmt.Sprintf("%d posts and looks at the clock without a wait or a sleep", w.spins))
	}
}

// maxUnwindCalls bounds what a coroutine may still call while it is unwound. A defer that retries
// until it succeeds would call for ever: every call returns ErrClosed.
const maxUnwindCalls = 10_000

// unwind ends a coroutine, in Close: its park returns false, and its calls fail. It returns when
// the coroutine has ended. One that crashed runs its defers only here.
func (w *Worker) unwind() {
	if w.state == finished {
		return
	}
	w.s.current = w
	w.stop() // returns when the coroutine has; one that never began does not begin
	w.s.current = nil
}

// CrashAt stops a client after its k-th verb or call, counting from 1 and its tasks' with its own:
// of a batch in which the k-th lies, what comes behind it is not sent. 0 stops it before the first.
// What was sent may still land. It may be called outside Run, by a worker, or by WhenCrashed. A
// number that was passed already stops the client at its next verb. The last call counts.
func (s *Sim) CrashAt(w *Worker, k uint64) { w.crashAfter(k) }

// crashAfter is CrashAt by the number of verbs that the client has sent since it began.
func (w *Worker) crashAfter(verb uint64) { w.root.doomed, w.root.crashAt = true, verb }

// CrashAfter stops a client at a time from now. It splits a batch only where a fault stalls the
// client within its Post, which takes no virtual time else. A client that has ended by then is left
// alone.
func (s *Sim) CrashAfter(w *Worker, d time.Duration) {
	s.at(s.now()+int64(d), event{kind: workerCrash, w: w})
}

// allow returns how many of n verbs the current worker lives to send, and counts them. It is called
// for each batch, call and change of the membership, before it is sent.
func (w *Worker) allow(n int) int {
	r := w.root
	if r.doomed && r.sent+uint64(n) >= r.crashAt {
		n = int(r.crashAt - min(r.sent, r.crashAt))
	}
	r.sent += uint64(n)
	return n
}

// dead reports whether its last verb was sent. It is asked before a verb, and behind it.
func (w *Worker) dead() bool { return w.root.doomed && w.root.sent >= w.root.crashAt }

// die crashes the current worker after its last verb was sent. It is resumed only to be unwound.
func (w *Worker) die() error {
	w.s.crash(w.root)
	w.park()
	return rdma.ErrClosed
}

// describe returns what a worker that is parked waits for, for ErrStuck. Of a batch it names 8 ops
// at most. A worker that waits for nothing sleeps, or waits for a change of the membership.
func (w *Worker) describe() string {
	switch {
	case w.box != nil:
		return fmt.Sprintf("%s waits for a message", w.name)
	case w.call != nil:
		return fmt.Sprintf("%s waits for its call of node %d", w.name, w.call.node)
	case w.waitFor != nil:
		text := fmt.Sprintf("%s waits for %d of %d chains, %d complete, in flight:", w.name, w.waitN,
			w.waitFor.Chains(), w.waitFor.Done())
		for i := range min(w.waitFor.Len(), 8) {
			op := w.waitFor.Op(i)
			text += fmt.Sprintf(" %s %s", op.Verb, op.Addr)
		}
		return text
	}
	return fmt.Sprintf("%s sleeps until %v", w.name, time.Duration(w.alarm.At()))
}

// Endpoint returns the worker's own endpoint. Outside Run its verbs execute at once, so that a
// client can be prepared in no time: its store opened, its caches filled. Inside Run it is for the
// coroutine of the worker, which has it as an argument.
func (w *Worker) Endpoint() rdma.Endpoint { return w.ep }
