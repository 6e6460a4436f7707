package swarm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestContention lets a few workers meet on one or two keys: over 3, 5 and 7 replicas, with one to
// all metadata words, writers that guess and writers beyond the locks, clocks that are off, drift
// and step, slow nodes, torn, reordered and late verbs, a minority of nodes that dies, and clients
// that do. No operation fails, all end within their bounds, and their answers are linearizable.
// $FARKV_SEEDS and $FARKV_SEED choose the seeds.
func TestContention(t *testing.T) {
	for _, replicas := range []int{3, 5, 7} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			var total Stats
			count := seeds.Each(t, 1000, func(seed uint64) error {
				r := draw(seed, replicas)
				if err := r.play(&total); err != nil {
					return fmt.Errorf("%w\n%+v", err, r)
				}
				return nil
			})
			t.Logf("%+v", total)
			if count >= 200 && (total.Stale == 0 || total.Rewritten == 0 || total.Rewritten == total.Stale ||
				total.WaitFree == 0 ||
				total.Retries == 0 || total.Widened == 0 || total.WriteBacks == 0 || total.Fetches == 0 ||
				total.Reused == 0 || replicas == 3 && total.Lost == 0) {
				t.Error("the workers do not meet: this test shows nothing")
			}
		})
	}
}

// run is one run's plan.
type run struct {
	seed         uint64
	shape        Shape
	nodes, keys  int
	workers, ops int
	writes       int // of 10 operations
	deletes      bool
	forgets      bool     // what registers cache, but for what their writers used
	recycles     bool     // buffers, of which there are so few that they are used again at once
	sweeps       bool     // so that what crashed workers had is used again, too
	sent         []uint64 // verbs, by worker, once it was played
	landed       []uint64 // by node
	pause, slow  time.Duration
	options      sim.Options
}

// draw plans a run. Whatever a pool may meet happens in some.
func draw(seed uint64, replicas int) *run {
	rng := rand.New(rand.NewPCG(seed, 11))
	workers := 2 + rng.IntN(5)
	locks := workers - rng.IntN(2)*rng.IntN(workers)
	r := &run{
		seed: seed, nodes: replicas + rng.IntN(2), keys: 1 + rng.IntN(2), workers: workers,
		ops: 3 + rng.IntN(15), writes: 2 + rng.IntN(7),
		shape: Shape{Replicas: replicas, Words: 1 + rng.IntN(workers), Locks: locks, Writers: workers,
			MaxValue: []int{8, 40, 200}[rng.IntN(3)]},
		deletes: rng.IntN(4) == 0, forgets: rng.IntN(2) == 0,
		pause: []time.Duration{0, 2, 10, 50}[rng.IntN(4)] * time.Microsecond,
		slow:  []time.Duration{0, 5, 16, 100, 1000}[rng.IntN(5)] * time.Microsecond,
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Clients = r.nodes, workers+2
	o.FlyProb = []float64{0, 0.02, 0.2}[rng.IntN(3)]
	o.MaxLatency = []time.Duration{2, 10, 50}[rng.IntN(3)] * time.Microsecond // far from the least: replicas disagree
	if rng.IntN(2) == 0 {
		o.ClockOffset = []time.Duration{5, 50, 5000}[rng.IntN(3)] * time.Microsecond
		o.Drift = []float64{0, 100, 10_000}[rng.IntN(3)]
	}
	r.faults(rng, &o)
	r.recycles = rng.IntN(4) > 0
	o.Handler = node.Serve
	r.sweeps = r.recycles && rng.IntN(4) == 0
	r.options = o
	return r
}

// faults draws what goes wrong, besides the network.
func (r *run) faults(rng *rand.Rand, o *sim.Options) {
	moment := func() time.Duration { return time.Duration(rng.IntN(200)) * time.Microsecond }
	victim := func() string { return fmt.Sprintf("worker %d", rng.IntN(r.workers)) }
	if rng.IntN(3) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.StepFault, Client: victim(), At: moment(),
			By: time.Duration(1+rng.IntN(200)) * time.Microsecond * time.Duration(1-2*rng.IntN(2))})
	}
	if rng.IntN(4) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.SlowFault, Node: rng.IntN(r.nodes), At: moment(),
			For: 100 * time.Microsecond, Factor: float64(2 + rng.IntN(20))})
	}
	if rng.IntN(4) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: victim(), At: moment(),
			For: time.Duration(1+rng.IntN(100)) * time.Microsecond})
	}
	if rng.IntN(3) == 0 { // any minority: with a node more than replicas every key's lies in it
		first := rng.IntN(r.nodes)
		for n := range 1 + rng.IntN(r.shape.Replicas/2) {
			o.Faults = append(o.Faults, sim.Fault{Kind: sim.CrashFault, Node: (first + n) % r.nodes, At: moment()})
		}
	}
	if rng.IntN(6) == 0 {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.PartitionFault, Client: victim(), Node: rng.IntN(r.nodes),
			At: moment(), For: time.Duration(1+rng.IntN(100)) * time.Microsecond})
	}
	for range rng.IntN(2) * rng.IntN(r.workers) {
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.CrashFault, Client: victim(), Verb: uint64(1 + rng.IntN(60))})
	}
}

// play runs r, and returns what is wrong with it.
func (r *run) play(total *Stats) error {
	l, err := NewLayout(r.shape)
	if err != nil {
		return err
	}
	leaked := total.Leaked
	a := newArena(l, r.nodes, r.keys, 4096)
	if r.recycles {
		a = newArena(l, r.nodes, r.keys, fewBuffers).recycle()
	}
	r.options.Memory = a.memory()
	s := sim.New(r.options)
	defer s.Close()
	recorders, err := r.first(s, a)
	if err != nil {
		return err
	}
	workers := make([]*sim.Worker, r.workers)
	for w := range r.workers {
		workers[w] = s.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) {
			k, err := a.open(ep, Options{Writer: w, Slow: r.slow, Member: r.member(ep)})
			if err != nil {
				panic(err)
			}
			recorders[w] = check.NewRecorder(w, k, s.Now)
			r.work(w, ep, recorders[w], k)
			total.add(k.Stats())
			k.Close()
		})
	}
	swept := r.sweep(s, a, workers)
	if err := errors.Join(s.Run(), *swept); err != nil {
		return err
	}
	for _, w := range workers {
		r.sent = append(r.sent, w.Sent())
	}
	for n := range r.nodes {
		r.landed = append(r.landed, s.Landed(n))
	}
	if err := r.last(s, a, recorders); err != nil {
		return err
	}
	if err := judge(recorders, r.sweeps); err != nil || !r.recycles {
		return err
	}
	whole := r.sweeps || total.Leaked == leaked && !slices.ContainsFunc(r.options.Faults, func(f sim.Fault) bool {
		return f.Kind == sim.CrashFault || f.Kind == sim.PartitionFault
	})
	return a.account(s, whole)
}

// fewBuffers are what the workers have in their words and hands, and a few.
const fewBuffers = 120

// account expects that each buffer is either free or what one word points at; where a client died
// there may be others.
func (a *arena) account(f rdma.Fabric, whole bool) error {
	ep, err := f.Open("account")
	if err != nil {
		return err
	}
	defer ep.Close()
	type buffer struct{ node, segment, pointer int }
	owners := map[buffer]string{}
	own := func(b buffer, owner string) (err error) {
		if owners[b] != "" {
			err = fmt.Errorf("buffer %+v is %s, and %s", b, owners[b], owner)
		}
		owners[b] = owner
		return err
	}
	handed := 0
	for n := range a.nodes {
		for seg := range segments {
			free, err := a.space.Walk(ep, n, seg, time.Second)
			if errors.Is(err, rdma.ErrNodeDown) {
				continue
			}
			if err != nil {
				return err
			}
			handed += free.Handed
			for _, p := range free.Pointers {
				if err := own(buffer{n, seg, int(p)}, "free"); err != nil {
					return err
				}
			}
		}
	}
	for key := range a.keys {
		o := a.object(key)
		for r := range a.Replicas {
			b := ep.Batch()
			words := b.Read(o.At[r].Add(uint64(a.wordsAt())), 8*a.Words)
			err := rdma.Do(ep, b, time.Second)
			for i := 0; i < a.Words && err == nil; i++ {
				if p := bufferOf(Word(le.Uint64(words.Buf[8*i:]))); p != 0 {
					err = own(buffer{o.At[r].Node(), a.space.Segment(o.Hash), int(p)},
						fmt.Sprintf("word %d's of key %d", i, key))
				}
			}
			b.Release()
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return err
			}
		}
	}
	if whole && len(owners) != handed {
		return fmt.Errorf("%d buffers were handed out, and %d have an owner", handed, len(owners))
	}
	return nil
}

// first writes every key, before any other client is there.
func (r *run) first(s *sim.Sim, a *arena) ([]*check.Recorder, error) {
	recorders := make([]*check.Recorder, r.workers+2)
	ep, err := s.Open("first")
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	k, err := a.open(ep, Options{})
	if err != nil {
		return nil, err
	}
	defer k.Close()
	recorders[r.workers] = check.NewRecorder(r.workers, k, s.Now)
	for n := range r.keys {
		if err := recorders[r.workers].Insert(fmt.Appendf(nil, "key-%d", n),
			check.MakeValue(nil, r.workers, n+1, 8)); err != nil {
			return nil, err
		}
		ep.Sleep(time.Microsecond)
	}
	ep.Sleep(10 * time.Microsecond) // the writer's number is used again, above that
	return recorders, nil
}

// last reads every key when all is over.
func (r *run) last(s *sim.Sim, a *arena, recorders []*check.Recorder) error {
	w := r.workers + 1
	var err error
	s.Go("last", func(ep rdma.Endpoint) {
		var k *registers
		if k, err = a.open(ep, Options{}); err != nil {
			return
		}
		recorders[w] = check.NewRecorder(w, k, s.Now)
		for n := range r.keys {
			recorders[w].Get(fmt.Appendf(nil, "key-%d", n))
		}
		k.Close()
	})
	return errors.Join(s.Run(), err)
}

func (r *run) work(w int, ep rdma.Endpoint, s *check.Recorder, k *registers) {
	rng := ep.Rand()
	for n := range r.ops {
		number := rng.IntN(r.keys)
		key := fmt.Appendf(nil, "key-%d", number)
		if r.forgets && rng.IntN(4) == 0 {
			k.keys[number] = NewRegister(k.keys[number].Object, k.keys[number].Floor())
		}
		switch {
		case r.deletes && w == 0 && n == r.ops-1: // one at a time: of two, both say yes
			s.Delete([]byte("key-0"))
		case rng.IntN(10) < r.writes:
			s.Update(key, check.MakeValue(nil, w, n+1, r.shape.MaxValue))
		default:
			s.Get(key)
		}
		if r.pause > 0 {
			ep.Sleep(time.Duration(rng.Int64N(int64(r.pause))))
		}
	}
}

// judge looks at a history. Operations may be uncertain where writes may meet two sweeps.
func judge(recorders []*check.Recorder, uncertain bool) error {
	var h check.History
	for _, r := range recorders {
		if r != nil { // else it crashed before it began
			h = append(h, r.History()...)
		}
	}
	worst := []check.Answer{check.Failed, check.Refused, check.TimedOut}
	if !uncertain {
		worst = append(worst, check.Uncertain)
	}
	if bad := h.With(worst...); len(bad) > 0 {
		return fmt.Errorf("%d of %d operations failed, the first is: %v", len(bad), len(h), &bad[0])
	}
	return check.Linearizable(h, check.Options{})
}

func (s *Stats) add(t Stats) {
	s.Stale += t.Stale
	s.Rewritten += t.Rewritten
	s.Locks += t.Locks
	s.Retries += t.Retries
	s.Widened += t.Widened
	s.WriteBacks += t.WriteBacks
	s.Fetches += t.Fetches
	s.WaitFree += t.WaitFree
	s.Lost += t.Lost
	s.Unmarked += t.Unmarked
	s.Reused += t.Reused
	s.Leaked += t.Leaked
	s.Iterations = max(s.Iterations, t.Iterations)
	s.Attempts = max(s.Attempts, t.Attempts)
}

var _ client.Store = (*registers)(nil)
