package directory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestContention lets a few workers meet in one to three buckets: over 3, 5 and 7 replicas, with
// slow nodes, torn, reordered and late verbs, a minority of nodes that dies, and clients that do.
// No operation fails, their answers are linearizable, and no buffer has two owners or none.
// $FARKV_SEEDS and $FARKV_SEED choose the seeds.
func TestContention(t *testing.T) {
	for _, replicas := range []int{3, 5, 7} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			var total tally
			count := seeds.Each(t, 700, func(seed uint64) error {
				r := draw(seed, replicas)
				if err := r.play(&total); err != nil {
					return fmt.Errorf("%w\n%+v", err, r)
				}
				return nil
			})
			t.Logf("%+v", total)
			if count >= 200 && (total.Mixed == 0 || total.Settled == 0 || total.Lost == 0 ||
				total.Helped == 0 || total.Widened == 0 ||
				total.Fetches == 0 || total.Leaked == 0 || total.unsure > total.ops/200) {
				t.Error("the workers do not meet: this test shows nothing")
			}
		})
	}
}

// tally is what runs add up to.
type tally struct {
	Stats
	ops, unsure int
}

func (t *tally) add(s Stats) {
	t.Widened += s.Widened
	t.Retries += s.Retries
	t.Attempts = max(t.Attempts, s.Attempts)
	t.Mixed += s.Mixed
	t.Fetches += s.Fetches
	t.Settled += s.Settled
	t.Lost += s.Lost
	t.Helped += s.Helped
	t.Leaked += s.Leaked
}

// run is one run's plan.
type run struct {
	seed         uint64
	shape        Shape
	keys         int
	workers, ops int
	writes       int // of 10 operations
	pause, slow  time.Duration
	options      sim.Options
	after        func()   // each operation
	crashes      bool     // of clients: what they own is lost
	sent         []uint64 // verbs, by worker, once it was played
	landed       []uint64 // by node
}

// draw plans a run. Whatever a pool may meet happens in some.
func draw(seed uint64, replicas int) *run {
	rng := rand.New(rand.NewPCG(seed, 12))
	r := &run{
		seed: seed, keys: 1 + rng.IntN(6), workers: 2 + rng.IntN(5), ops: 3 + rng.IntN(12), writes: 2 + rng.IntN(7),
		shape: Shape{Nodes: replicas + rng.IntN(2), Replicas: replicas, Buckets: 1 + rng.Uint64N(3),
			Base: 8 * rng.Uint64N(2)},
		pause: []time.Duration{0, 2, 10, 50}[rng.IntN(4)] * time.Microsecond,
		slow:  []time.Duration{0, 5, 16, 100, 1000}[rng.IntN(5)] * time.Microsecond,
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Clients = r.shape.Nodes, r.workers+2
	o.FlyProb = []float64{0, 0.02, 0.2}[rng.IntN(3)]
	o.MaxLatency = []time.Duration{2, 10, 50}[rng.IntN(3)] * time.Microsecond // far from the least: replicas disagree
	r.faults(rng, &o)
	r.options = o
	return r
}

// faults draws what goes wrong, besides the network.
func (r *run) faults(rng *rand.Rand, o *sim.Options) {
	moment := func() time.Duration { return time.Duration(rng.IntN(200)) * time.Microsecond }
	victim := func() string { return fmt.Sprintf("worker %d", rng.IntN(r.workers)) }
	some := func() time.Duration { return time.Duration(1+rng.IntN(100)) * time.Microsecond }
	if rng.IntN(4) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.SlowFault, Node: rng.IntN(r.shape.Nodes), At: moment(),
			For: some(), Factor: float64(2 + rng.IntN(20))})
	}
	for range rng.IntN(3) {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: victim(), At: moment(), For: some()})
	}
	if rng.IntN(3) == 0 { // any minority: with a node more than replicas every bucket's lies in it
		first := rng.IntN(r.shape.Nodes)
		for n := range 1 + rng.IntN(r.shape.Replicas/2) {
			o.Faults = append(o.Faults, sim.Fault{Kind: sim.CrashFault, Node: (first + n) % r.shape.Nodes,
				At: moment()})
		}
	}
	if rng.IntN(6) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.PartitionFault, Client: victim(),
			Node: rng.IntN(r.shape.Nodes), At: moment(), For: some()})
	}
	for range rng.IntN(2) * rng.IntN(r.workers) {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.CrashFault, Client: victim(), Verb: uint64(1 + rng.IntN(100))})
		r.crashes = true
	}
}

// play runs r, and returns what is wrong with it.
func (r *run) play(total *tally) error {
	l, err := NewLayout(r.shape)
	if err != nil {
		return err
	}
	a := newArena(l, 40*(r.workers+1))
	r.options.Memory = a.memory()
	s := sim.New(r.options)
	defer s.Close()
	recorders, workers := make([]*check.Recorder, r.workers+1), make([]*sim.Worker, r.workers)
	var mine tally
	for w := range r.workers {
		workers[w] = s.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) {
			x := r.open(ep, a, w)
			recorders[w] = check.NewRecorder(w, x, s.Now)
			r.work(w, ep, recorders[w])
			ep.Sleep(10 * time.Millisecond) // whatever is in flight lands
			x.Close()
			mine.add(x.Stats())
		})
	}
	if err := s.Run(); err != nil {
		return err
	}
	for _, w := range workers {
		r.sent = append(r.sent, w.Sent())
	}
	for n := range r.shape.Nodes {
		r.landed = append(r.landed, s.Landed(n))
	}
	err = errors.Join(r.last(s, a, recorders, &mine), a.breach, judge(recorders, total))
	total.add(mine.Stats)
	return err
}

func (r *run) open(ep rdma.Endpoint, a *arena, worker int) *index {
	return &index{Client: Open(poison{ep}, a.Layout, a, Options{Slow: r.slow}), worker: worker,
		buckets: int(r.shape.Buckets)}
}

// last reads every key when all is over, and looks after the buffers.
func (r *run) last(s *sim.Sim, a *arena, recorders []*check.Recorder, sum *tally) (err error) {
	s.Go("last", func(ep rdma.Endpoint) {
		x := r.open(ep, a, r.workers)
		recorders[r.workers] = check.NewRecorder(r.workers, x, s.Now)
		for n := range r.keys {
			recorders[r.workers].Get(fmt.Appendf(nil, "key-%d", n))
		}
		var held []Held
		err = x.Walk(func(f *Found) error {
			held = append(held, f.Held...)
			for _, n := range f.Silent {
				if !r.dead()[n] {
					return fmt.Errorf("node %d is well, and said to be silent", n)
				}
			}
			return nil
		})
		ep.Sleep(10 * time.Millisecond)
		x.Close()
		sum.add(x.Stats())
		if err == nil {
			err = r.account(a, held, sum.Leaked > 0)
		}
	})
	return errors.Join(s.Run(), err)
}

// dead are the nodes that died.
func (r *run) dead() map[int]bool {
	dead := map[int]bool{}
	for _, f := range r.options.Faults {
		if f.Kind == sim.CrashFault && f.Client == "" {
			dead[f.Node] = true
		}
	}
	return dead
}

// account compares the buffers that words name with those that are in use, on nodes that did not
// die.
func (r *run) account(a *arena, held []Held, leaked bool) error {
	type buffer struct {
		node    int
		pointer uint16
	}
	dead, seen := r.dead(), map[buffer]bool{}
	for _, h := range held {
		b := buffer{h.Node, h.Pointer}
		if !dead[h.Node] && (seen[b] || !a.owned[h.Node][h.Pointer]) {
			return fmt.Errorf("buffer %d of node %d is used twice", h.Pointer, h.Node)
		}
		seen[b] = true
	}
	for n := range r.shape.Nodes {
		for p := range a.owned[n] {
			if !seen[buffer{n, p}] && !dead[n] && !r.crashes && !leaked {
				return fmt.Errorf("buffer %d of node %d is lost", p, n)
			}
		}
	}
	return nil
}

func (r *run) work(w int, ep rdma.Endpoint, s *check.Recorder) {
	rng := ep.Rand()
	for n := range r.ops {
		key, value := fmt.Appendf(nil, "key-%d", rng.IntN(r.keys)), check.MakeValue(nil, w, n+1, 8)
		switch {
		case rng.IntN(10) >= r.writes:
			s.Get(key)
		case rng.IntN(3) == 0:
			s.Delete(key)
		case rng.IntN(2) == 0:
			s.Insert(key, value)
		default:
			s.Update(key, value)
		}
		if r.after != nil {
			r.after()
		}
		if r.pause > 0 {
			ep.Sleep(time.Duration(rng.Int64N(int64(r.pause))))
		}
	}
}

// judge checks a history. The outcome of a change may be unknown only if more than a few other
// changes of its bucket came after it.
func judge(recorders []*check.Recorder, total *tally) error {
	var h check.History
	for _, r := range recorders {
		if r != nil { // else it crashed before it began
			h = append(h, r.History()...)
		}
	}
	total.ops += len(h)
	for _, op := range h.With(check.Uncertain, check.Failed, check.Refused, check.TimedOut) {
		if op.Answer != check.Uncertain {
			return fmt.Errorf("operations failed, the first is: %v: %s", &op, op.Err)
		}
		total.unsure++
	}
	return check.Linearizable(h, check.Options{})
}
