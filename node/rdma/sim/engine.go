package sim

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma/sim/events"
)

// kind says what an event does.
type kind uint8

const (
	landing    kind = iota // a verb, or a piece of it, takes effect
	completion             // a verb's answer is at its requester
	arrival                // a call is at its node
	service                // a call's handler runs
	reply                  // a call's answer is at its caller
	nodeDeath
	workerCrash
	doorbell // verbs of one post to one node, and what follows them in their list, are at the NIC
	incoming // a verb is at its node
	strike   // a fault of a client happens
	placing  // a block of an APPEND takes its place in a ring
	settling // a piece of one takes effect
	seeing   // the READ behind one does
	outage   // a fault takes nodes away
	comeback // and brings them back
	wakeUp   // a worker goes on
)

// event is what happens at one moment. Which fields count is up to the kind: the queue holds events
// by value, so kinds share fields to keep them short.
//
// f is the message of all kinds that are about one; of doorbell it is the first of a list, linked
// by next. w is the worker of workerCrash, strike and wakeUp. node is the node of nodeDeath, and
// the index in Options.Faults of strike, outage and comeback. piece is the piece of landing, the
// number of the block of placing, and twice that plus the block's piece of settling.
type event struct {
	kind  kind
	piece uint16
	node  int32
	f     *flight
	w     *Worker
}

// engine is what all parts of a simulation share: time, what is to happen, what goes on record.
type engine struct {
	// opts have their defaults filled in.
	opts  Options
	hw    *timing // of Options.Hardware; nil: the network is drawn at random
	queue events.Queue[event]
	// failed is set once and stays: see Run.
	failed error // ends the Run
}

// now returns the virtual time in ns.
func (g *engine) now() int64 { return g.queue.Now() }

// at schedules e. Of what is scheduled for one time the first to be scheduled happens first. A time
// that is over is now.
func (g *engine) at(t int64, e event) { g.queue.At(t, e) }

// fail ends the Run with err; the first one counts.
func (g *engine) fail(err error) {
	if g.failed == nil {
		g.failed = fmt.Errorf("seed %d, at %v: %w", g.opts.Seed, time.Duration(g.now()), err)
	}
}

// trace stamps an event and gives it to Options.Trace, in the order in which things happen. A
// caller for which filling in e is work asks for Options.Trace first.
func (g *engine) trace(e Event) {
	if g.opts.Trace != nil {
		e.At = time.Duration(g.now())
		g.opts.Trace(e)
	}
}

// handle lets an event happen. Each event is handled as a whole before the next, and by one part.
// What that part causes elsewhere, it schedules, or calls there.
func (s *Sim) handle(e *event) {
	switch e.kind {
	case wakeUp:
		s.resume(e.w)
	case landing:
		s.net.land(e.f, int(e.piece))
	case completion:
		s.net.complete(e.f)
	case arrival:
		s.net.arrive(e.f)
	case service:
		s.net.serve(e.f)
	case reply:
		s.net.replied(e.f)
	case nodeDeath:
		s.kill(int(e.node))
	case workerCrash:
		s.crash(e.w.root)
	case doorbell:
		s.cards.ring(e.f)
	case incoming:
		// A verb that waits for nothing at its node lands in the event in which it comes.
		if s.cards.incoming(e.f) {
			s.net.land(e.f, 0)
		}
	case placing:
		s.rings.placeBlock(e.f, int(e.piece))
	case settling:
		s.rings.settle(e.f, int(e.piece))
	case seeing:
		s.rings.see(e.f)
	case strike:
		s.injector.hit(e.w, &s.opts.Faults[e.node])
	case outage:
		s.injector.takeAway(int(e.node))
	case comeback:
		s.bringBack(int(e.node))
	}
}
