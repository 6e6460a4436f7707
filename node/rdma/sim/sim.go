// Package sim is a fabric in virtual time. Workers are coroutines, one heap of events is ordered by
// time and sequence, and every draw comes from one seed, so that a run can be tried by the thousand
// and repeated to the byte:
//
//	s := sim.New(sim.Hostile(seed))
//	defer s.Close()
//	format(s)                                     // outside Run verbs execute at once
//	w := s.Go("client 1", func(ep rdma.Endpoint) { ... })
//	s.CrashAt(w, 7)                               // after its 7th verb
//	err := s.Run()
//
// The network is drawn at random, to find what is wrong with a protocol, or with Options.Hardware a
// model of machines, to find how fast it is: profiles are the clusters of papers (LookupProfile).
// Options.Faults are what goes wrong.
//
// With Options.PMem nodes have persistent memory, power can be cut at each step of a node
// (CutPowerAt), and what was not durable survives as Survivors say:
//
//	// step runs from 1 to Steps(0) of a run without a cut
//	s.CutPowerAt(0, step, sim.AnySurvive(seed))
//	err := s.Run()
//	err = s.Restart(0)
//
// A verb's words are in a node's memory once they have landed, and durable once a READ of the same
// connection has executed behind them, or one of any connection has returned them (Rowan 2.2). With
// DDIO they are then in the processor's caches, which survive in eADR mode alone. What handlers of
// calls write is durable at once.
//
// Wait, Sleep, Call and Revoke are the only places where a worker gives way to others; the code
// between them is atomic, which hides races between workers that share Go memory: run the same code
// on a real fabric, too. (A client that a StallFault stops in a Post stands still as a whole.)
//
// A Sim and everything opened from it belong to one goroutine; workers run inside its Run.
package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
)

// Options describe a simulated pool. The zero value is one node of 1 MiB on a gentle network.
type Options struct {
	Seed    uint64
	Nodes   int    // memory nodes; 1 by default
	Memory  uint64 // bytes a node; 1 MiB by default, backed only where it is touched
	Clients int    // identities at the same time; 1024 by default
	Handler rdma.Handler

	// MinLatency and MaxLatency bound a message's way, one direction; 500 ns and 2 µs by default.
	MinLatency, MaxLatency time.Duration
	// Tear lets READs and WRITEs of more than a word land in pieces, any words in any order.
	Tear bool
	// Reorder lets later ops pass READs and atomics, as far as rdma.Queue allows.
	Reorder bool
	// FlyProb is the share of verbs that are late by up to FlyMax (1 ms by default), and whatever
	// must keep behind them with them.
	FlyProb float64
	FlyMax  time.Duration
	// MTU is how long blocks of rings are, a multiple of rdma.Stride; Hardware's or 4096 by
	// default. CountRings lets rings count what is in flight, which RNICs with queues of several
	// packets do not. RingStreams lets entries land in streams by their lengths, as on ibverbs, in
	// rings that count.
	MTU         int
	CountRings  bool
	RingStreams bool
	// DMAProb is the share of APPENDs of which the blocks reach memory late once they have their
	// places, by up to DMAMax (1 ms by default).
	DMAProb float64
	DMAMax  time.Duration
	// NodeTimeout is how long a requester waits for a dead node's answer; 100 µs by default.
	NodeTimeout time.Duration
	// ServiceTime is a node CPU's time for one two-sided call; calls of a node are served one at a
	// time.
	ServiceTime time.Duration

	// Hardware replaces the random network by a model of machines: MinLatency, MaxLatency and
	// ServiceTime are not used then. Everything else stays as it is, legal reordering (Reorder) and
	// tearing (Tear) among them.
	Hardware *Hardware
	// Device are the parts of memory nodes that lie in their NICs' memory.
	Device []Range
	// PMem makes all other memory of nodes persistent, and says of which modules; nil: it is main
	// memory, and nodes forget it when they die. Power can be cut with and without: see CutPower.
	PMem *pmem.DeviceConfig
	// Faults are what goes wrong.
	Faults Faults
	// RetryTimeout is how long a requester retries a verb before it gives a connection up; 1 ms by
	// default.
	RetryTimeout time.Duration
	// Drift is by how much a client's clock may be fast or slow, in parts in a million, and
	// ClockOffset how far ahead it may be from the beginning. Both are drawn for each client; the
	// clocks of a pool agree by default.
	Drift       float64
	ClockOffset time.Duration

	// AllowMixing switches off the rule that a word which was ever changed by an atomic is no
	// longer changed by WRITEs. The rule is kept from a word's first atomic on; what was written
	// before is initialisation.
	AllowMixing bool

	// Limit bounds a Run in virtual time (1 h by default) and MaxEvents in events (100 million by
	// default): workers that wait for each other in loops would never end.
	Limit     time.Duration
	MaxEvents uint64

	// Trace is told everything that happens, in order.
	Trace func(Event)
}

// Hostile returns options under which everything that package rdma allows a fabric to do happens.
func Hostile(seed uint64) Options {
	return Options{Seed: seed, Tear: true, Reorder: true, FlyProb: 0.01, FlyMax: 200 * time.Microsecond}
}

// defaults fills in what is 0 or less. With Hardware one way of a message is its Propagation: so
// long take what does not pass NICs, such as a change of the view, and the landing of a torn verb's
// pieces.
func (o *Options) defaults() {
	o.Nodes, o.Clients = or(o.Nodes, 1), or(o.Clients, 1024)
	o.Memory, o.MaxEvents = or(o.Memory, 1<<20), or(o.MaxEvents, 100e6)
	if o.Hardware != nil {
		o.MinLatency = max(o.Hardware.Propagation, 1)
		o.MaxLatency = o.MinLatency
	}
	if o.MinLatency <= 0 && o.MaxLatency <= 0 {
		o.MinLatency = 500 * time.Nanosecond
	}
	o.MaxLatency = max(or(o.MaxLatency, max(2*time.Microsecond, o.MinLatency)), o.MinLatency)
	o.FlyMax, o.NodeTimeout = or(o.FlyMax, time.Millisecond), or(o.NodeTimeout, 100*time.Microsecond)
	o.DMAMax = or(o.DMAMax, time.Millisecond)
	if o.Hardware != nil {
		o.MTU = or(o.MTU, o.Hardware.MTU)
	}
	o.MTU = or(o.MTU, defaultMTU)
	o.CountRings = o.CountRings || o.RingStreams
	o.RetryTimeout, o.Limit = or(o.RetryTimeout, time.Millisecond), or(o.Limit, time.Hour)
}

// or returns n if that is above 0.
func or[N int | uint64 | time.Duration](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}

// How Run and the verbs of a simulated pool fail beyond the errors of package rdma.
var (
	// ErrStuck ends a Run in which live workers wait for something that will not happen, or do not
	// come to an end.
	ErrStuck = errors.New("workers are stuck")
	// ErrMixed ends a Run in which a WRITE touched a word that had been changed by an atomic.
	ErrMixed = errors.New("write to a word that is changed by atomics")
	// ErrPanic ends a Run in which a worker panicked.
	ErrPanic = errors.New("worker panicked")
)

// Sim is a simulated pool with its workers. It implements rdma.Fabric. Its parts know those above
// them in this list, and not the Sim. A verb goes through them so: endpoint.Post counts it, and
// network.send, or cards.enqueue with Options.Hardware, draws its moments and schedules them as
// events. Sim.handle gives each event to its part. On machines cards.ring and cards.incoming decide
// when the verb lands. network.land changes memory, and network.complete wakes the worker that
// waits. An APPEND lands by rings.placeBlock, settle and see. A call goes by network.arrive, serve
// and replied.
type Sim struct {
	// The parts point to fields of this struct, so that a Sim is not copied.
	engine
	scheduler
	pool
	identities
	injector injector
	boxes    boxes
	cards    cards
	net      network
	rings    rings
	membership
	// running keeps a worker from calling Run, which would handle events inside of a coroutine.
	running bool
}

// New returns a pool. Its memory is all zero. It returns no error. A fault that Fault.Check refuses
// is what each Run of the pool returns.
func New(o Options) *Sim {
	o.defaults()
	s := &Sim{engine: engine{opts: o}}
	if o.Hardware != nil {
		s.hw = newTiming(o.Hardware)
	}
	// From here on parts are made in the order of their dependencies. A pool of machines needs hw.
	g, sched, p := &s.engine, &s.scheduler, &s.pool
	s.scheduler.engine = g
	s.pool = makePool(g, sched)
	// Entry 0 of clients stays nil: identity 0 is no client.
	s.identities = identities{engine: g, sched: sched, names: map[string]uint64{}, clients: make([]*endpoint, 1, 16)}
	s.injector = injector{engine: g, sched: sched, pool: p}
	s.boxes = boxes{sched: sched, pool: p, byAddr: map[rdma.BoxAddr]*mailbox{}}
	s.cards = cards{engine: g, pool: p, boxes: &s.boxes}
	s.net = network{engine: g, sched: sched, pool: p, boxes: &s.boxes, cards: &s.cards}
	s.rings = rings{engine: g, net: &s.net, byAddr: map[rdma.RingAddr]*ring{}}
	s.membership = membership{sched: sched, pool: p, ids: &s.identities, net: &s.net}
	s.view.Members = make([]rdma.Member, o.Nodes)
	// Nodes have to be there: their faults are set in them.
	s.injector.prepareFaults()
	return s
}

// Now returns the virtual time.
func (s *Sim) Now() time.Duration { return time.Duration(s.now()) }

// Events returns how many events have happened.
func (s *Sim) Events() uint64 { return s.queue.Steps() }

// Run lets the workers run until each top-level one has finished or crashed, and then lands what is
// still in flight. Tasks that are not done stay where they are; another Run goes on with them. It
// returns the first breach of a rule, a worker's panic, or ErrStuck with the workers that wait, and
// for what. Which event is next depends on nothing but the time and the order in which events were
// scheduled. So no map is ranged over, and every draw comes from the seed.
//
// A failure other than ErrStuck stays: the next Run returns it, too. Behind ErrStuck another Run
// goes on, with bounds of its own.
func (s *Sim) Run() error {
	if s.closed {
		return fmt.Errorf("run a simulation: %w", rdma.ErrClosed)
	}
	if s.running {
		return errors.New("sim: Run called by a worker")
	}
	s.running = true
	end := s.now() + int64(s.opts.Limit)
	stop := s.queue.Steps() + s.opts.MaxEvents
	var e event
	defer func() { s.running, s.draining, s.current = false, false, nil }()
	for s.live > 0 && s.failed == nil {
		// MaxEvents is looked at before an event, Limit behind it: one event may happen beyond
		// Limit.
		if s.queue.Steps() >= stop {
			return s.stuck(fmt.Sprintf("after %d events", s.opts.MaxEvents))
		}
		if !s.queue.Next(&e) {
			return s.stuck("nothing is left to happen")
		}
		s.handle(&e)
		if s.now() > end {
			return s.stuck("time limit")
		}
	}
	// Workers that are woken from here on are ready for the next Run, and draw nothing in this one.
	s.draining = true
	// Alarms stay: a worker that they would wake goes on in the next Run. Other events that are due
	// before the last landing happen, too: deaths of nodes among them.
	for s.net.inflight > 0 && s.failed == nil && s.queue.NextEvent(&e) {
		s.handle(&e)
	}
	return s.failed
}

// Close detaches the memory and unwinds the coroutines that are left: their verbs return
// rdma.ErrClosed without effect, their sleeps return at once. Memory is freed behind the unwinding:
// what a coroutine still calls finds the simulation closed, and touches none.
func (s *Sim) Close() error {
	if s.current != nil {
		return errors.New("sim: Close called by a worker")
	}
	if s.closed {
		return nil
	}
	// It is set first: each call that a coroutine makes while it is unwound finds it.
	s.closed = true
	for i := 0; i < len(s.workers); i++ { // a task may start another one on its way out, which does not run
		s.workers[i].unwind()
	}
	// Now no coroutine is left that could read the pages, which other simulations get from a pool.
	for i := range s.nodes {
		s.nodes[i].memory.Free()
	}
	s.queue.Clear()
	return nil
}
