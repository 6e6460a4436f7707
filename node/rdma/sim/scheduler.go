package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// scheduler runs workers, one at a time. A worker runs from one event of the engine to its next
// park, so that code in between is atomic. Engine and coroutine are never both running: iter.Pull
// hands control over and back.
type scheduler struct {
	*engine
	// workers are all that were ever started, in order; they are ranged over where an order has to
	// repeat itself. One that ended stays.
	workers []*Worker
	// Run goes on while live is above 0. Tasks and hosted workers do not count.
	live     int     // top-level workers that neither finished nor crashed
	current  *Worker // the coroutine that runs; nil in the engine and outside Run
	draining bool    // no worker goes on: what is in flight lands
	closed   bool
}

// arm wakes w at a time unless something else does before. A worker has one alarm: arming it again
// replaces the time.
func (s *scheduler) arm(w *Worker, at int64) { s.queue.Arm(&w.alarm, at) }

// resume lets w run until it yields. In draining it only becomes ready for the next Run. It runs in
// the engine, and returns when w parks, ends, or is crashed by its own call. A worker that is not
// parked is not woken twice. A client that a fault stalls is woken when the stall is over, whatever
// wakes it earlier.
func (s *scheduler) resume(w *Worker) {
	if w.state != parked {
		return
	}
	if s.draining {
		s.arm(w, s.now())
		return
	}
	if until := w.root.stalledUntil; until > s.now() {
		s.arm(w, until)
		return
	}
	w.alarm.Disarm()
	w.spins = 0
	w.state = runs
	s.current = w
	w.next()
	s.current = nil
	// Otherwise it has finished, or its own call has crashed it.
	if w.state == runs {
		w.state = parked
	}
}

// closing reports whether the simulation is being closed. It ends a coroutine that makes call after
// call while it is unwound.
func (s *scheduler) closing() bool {
	if !s.closed {
		return false
	}
	if w := s.current; w != nil {
		if w.lastCalls++; w.lastCalls > maxUnwindCalls {
			panic(unwound{})
		}
	}
	return true
}

// crash stops a client and its tasks. Their coroutines are not resumed: unwinding them would run
// their defers, which a crash does not. What the client has sent stays in flight, and lands. Its
// identity stays in use, as of a client that died.
//
// A client that has returned does not crash any more; tasks that it has left go on. Of a running
// one the coroutine goes on until it parks: see die.
func (s *scheduler) crash(root *Worker) {
	if root.state == finished || root.state == crashed {
		return
	}
	if root.top {
		s.live--
	}
	root.state = crashed
	root.alarm.Disarm()
	// Before whenDead: what recovers the client finds all of it stopped.
	for _, w := range root.kin {
		if w.state != finished {
			w.state = crashed
			w.alarm.Disarm()
		}
	}
	s.trace(Event{Kind: Crash, Worker: root.name, Client: root.ep.id})
	last := s.current
	s.current = nil // what follows is not the dead worker's doing
	for _, f := range root.whenDead {
		f()
	}
	s.current = last
}

// stuck returns why a Run does not come to an end, with the workers that wait, and for what. It
// names 20 of them, so that the text can be read. It does not set failed.
func (s *scheduler) stuck(why string) error {
	var waiting []error
	for _, w := range s.workers {
		if w.state == parked && len(waiting) < 20 {
			waiting = append(waiting, errors.New(w.describe()))
		}
	}
	return fmt.Errorf("seed %d, at %v: %w (%s):\n%w", s.opts.Seed, time.Duration(s.now()), ErrStuck, why,
		errors.Join(waiting...))
}

// control lets a worker reach what lies outside of the memory nodes: change happens at one moment,
// a message's way after it was asked for, and the answer takes another. To CrashAt it counts as a
// verb. A worker that crashes before the change has changed nothing. One that crashes behind it
// has, and its caller never hears: as a registry that was reached and could not answer.
func (s *scheduler) control(change func()) error {
	if s.closing() {
		return rdma.ErrClosed
	}
	w := s.current
	if w == nil {
		change()
		return nil
	}
	if w.dead() {
		return w.die()
	}
	// It is counted before the pause, and the crash looked at behind it: CrashAt of this number
	// lets the change happen, and no later line of the worker.
	w.allow(1)
	// A crash of the worker in the pause (CrashAfter) ends it here: change does not happen.
	s.pause()
	if s.closing() {
		return rdma.ErrClosed
	}
	change()
	if w.dead() {
		return w.die()
	}
	s.pause()
	return nil
}

// pause lets the current worker, if any, wait for one way of a message. The way is drawn from the
// worker's network, and only its alarm ends it: no batch, message or call is waited for meanwhile.
func (s *scheduler) pause() {
	if w := s.current; w != nil && !s.closed {
		s.arm(w, s.now()+w.ep.latency())
		w.park()
	}
}
