package explore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// scene is an operation in which a client or a node crashes: the last one of worker-0. The
// operations before it prepare the key.
type scene struct {
	name   string
	victim string // as in a plan's line
	other  string // what worker-1 does meanwhile; "": there is no worker-1
}

// busy are the operations of another client on the key. They begin before the operation and end
// long after it.
const busy = "g0,u0:24,i0:24,g0,u0:24,d0,i0:24,u0:24,g0,u0:24,d0,g0,i0:24,g0"

// scenes are every operation, alone and beside a busy client, and pairs of operations that
// conflict. Beside an operation that runs alone no other client can repair what a crash leaves.
var scenes = []scene{
	{"get miss", "g0", ""},
	{"get hit", "i0:8,g0", busy},
	{"insert", "i0:8", ""}, {"insert, busy", "i0:8", busy},
	{"insert of a present key", "i0:8,i0:24", ""},
	{"insert over a tombstone", "i0:8,d0,i0:24", ""}, {"insert over a tombstone, busy", "i0:8,d0,i0:24", busy},
	{"update miss", "u0:8", ""},
	{"update", "i0:8,u0:24", ""}, {"update, busy", "i0:8,u0:24", busy},
	{"update to another size class", "i0:8,u0:200", ""}, {"update to another size class, busy", "i0:8,u0:200", busy},
	{"delete miss", "d0", ""},
	{"delete", "i0:8,d0", ""}, {"delete, busy", "i0:8,d0", busy},
	{"two inserts", "g0,i0:8", "g0,i0:24"},
	{"two updates", "i0:8,u0:24", "g0,g0,u0:24,u0:24"},
	{"two deletes", "i0:8,d0", "g0,g0,d0,d0"},
	{"update and delete", "i0:8,u0:24", "g0,g0,d0,d0"},
	{"delete and update", "i0:8,d0", "g0,g0,u0:24,u0:24"},
	{"delete and insert", "i0:8,d0", "g0,g0,i0:24,i0:24,i0:24"},
	{"two keys", "i0:8,u0:24", "i1:8,u1:24,d1,i1:8"},
}

// doubles is how many runs with two crashes one seed leaves out for each that it tries.
const doubles = 8

// leastRuns is fewer than any scene takes, together with its Open and its Close.
const leastRuns = 4

// Enumerate lets a client crash behind each verb of each operation and of the Close behind it, and
// each memory node die at each verb that lands on it meanwhile, for 1, 2, 3 and 5 replicas. It also
// tries some of the runs with two crashes: of two clients, of a client and a node, of two nodes,
// and of a keeper at each of the verbs of its recovery. Each run is a plan, judged as any other.
// $FARKV_SEEDS (1 by default) is how many seeds draw the network and choose among the runs with two
// crashes, from $FARKV_SEED on.
func Enumerate(t *testing.T, s *Subject) {
	first, count := seeds.Chosen(t, 1)
	for _, replicas := range []int{1, 2, 3, 5} {
		if !slices.Contains(s.withDefaults().Replicas, [2]int{replicas, replicas}) {
			continue
		}
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			e := &enumeration{subject: s, replicas: replicas, first: first, jobs: int(count) * len(scenes)}
			if p, f := e.run(); f != nil {
				p, f := s.Shrink(p, f)
				t.Fatalf("%v\nplan: %s\n%s", f, p, s.tail(p))
			}
			if n := e.runs.Load(); n < int64(e.jobs)*leastRuns {
				t.Errorf("only %d runs", n)
			}
			t.Logf("%d runs, %d of them with two faults", e.runs.Load(), e.twice.Load())
		})
	}
}

type enumeration struct {
	subject  *Subject
	replicas int
	first    uint64 // seed
	jobs     int    // scenes of seeds

	runs, twice atomic.Int64
}

// run tries all scenes. Of several failures it returns that of the first scene.
func (e *enumeration) run() (p *Plan, f *Failure) {
	plans := make([]*Plan, e.jobs)
	first, err := seeds.Lowest(uint64(e.jobs), func(i uint64) error {
		j := &job{enumeration: e, rng: rand.New(rand.NewPCG(e.first, i))}
		scene, round := i%uint64(len(scenes)), i/uint64(len(scenes))
		p, f := j.scene(scenes[scene], e.first+round)
		if plans[i] = p; f != nil {
			return f
		}
		return nil
	})
	errors.As(err, &f)
	return plans[first], f
}

// job is one scene with one seed.
type job struct {
	*enumeration
	rng *rand.Rand
}

// base returns the plan of a scene in which nothing goes wrong.
func (j *job) base(sc scene, seed uint64) *Plan {
	work, err := parseWork(sc.victim + "/" + sc.other)
	if err != nil {
		panic(err)
	}
	p := &Plan{Seed: seed, Shape: Shape{Nodes: j.replicas, Index: j.replicas, Data: j.replicas},
		Cache: j.rng.IntN(2) == 0, Work: work}
	p.Net = Net{Tear: true, Reorder: true, Min: 500, Max: 4000}
	if j.rng.IntN(2) == 0 { // what the dead sent comes late
		p.Net.Fly, p.Net.FlyMax = 0.1, 200*time.Microsecond
	}
	if j.subject.spared(j.replicas) && j.rng.IntN(3) == 0 {
		p.Spares = 1
		p.Nodes++
	}
	return p
}

// never is a fault that does not happen. A plan with a fault has keepers, and their verbs land on
// the nodes, too: with never they do so in a run without failures.
var never = sim.Fault{Kind: sim.StepFault, Client: "none", At: maxTime, By: 1}

func (j *job) scene(sc scene, seed uint64) (*Plan, *Failure) {
	p := j.base(sc, seed)
	dry, f := j.try(with(p, never))
	if f != nil {
		return p, f
	}
	span := dry.span()
	for k := span.from; k <= span.to; k++ {
		with := with(p, sim.Fault{Kind: sim.CrashFault, Client: workerName(0), Verb: k})
		if with.Faults[0].Verb == 0 {
			continue // before the first verb of all: there is no such client
		}
		r, f := j.try(with)
		if f == nil {
			with, f = j.twoCrashes(r, with, span)
		}
		if f == nil { // its last verb lands while it is being recovered, or later
			late := time.Duration(1 + j.rng.Int64N(int64(5*time.Millisecond)))
			with, f = j.double(with, flying(with.Faults[0], late))
		}
		if f != nil {
			return with, f
		}
	}
	if j.subject.expendable(j.replicas) == 0 {
		return nil, nil
	}
	return j.nodes(p, span)
}

// nodes lets each node die at each verb that lands on it, and sometimes another one with it.
func (j *job) nodes(p *Plan, span span) (*Plan, *Failure) {
	for n := range p.Nodes {
		for k := max(span.landed[n].from, 1); k <= span.landed[n].to; k++ {
			with := with(p, sim.Fault{Kind: sim.CrashFault, Node: n, Verb: k})
			r, f := j.try(with)
			if f == nil {
				with, f = j.interrupt(r, with)
			}
			if f == nil && j.subject.expendable(j.replicas) > 1 && j.rng.IntN(doubles) == 0 {
				with, f = j.double(with, j.death(span, n))
			}
			if f != nil {
				return with, f
			}
		}
	}
	return nil, nil
}

// death returns the crash of a node other than n at some verb.
func (j *job) death(span span, n int) sim.Fault {
	if other := j.rng.IntN(len(span.landed)); other != n {
		n = other
	} else {
		n = (n + 1) % len(span.landed)
	}
	l := span.landed[n]
	return sim.Fault{Kind: sim.CrashFault, Node: n, Verb: max(1, l.from+j.rng.Uint64N(l.to-l.from+1))}
}

// twoCrashes adds a second crash to the run r of a plan in which a client crashed.
func (j *job) twoCrashes(r *run, p *Plan, span span) (*Plan, *Failure) {
	if j.subject.Recoverer == nil && !j.subject.Majority {
		return p, nil
	}
	if q, f := j.interrupt(r, p); f != nil {
		return q, f
	}
	if sent := r.sent(1); sent > 0 && j.rng.IntN(2) == 0 { // the other client, perhaps in the same round
		if q, f := j.double(p, sim.Fault{Kind: sim.CrashFault, Client: workerName(1),
			Verb: 1 + j.rng.Uint64N(sent)}); f != nil {
			return q, f
		}
	}
	if j.subject.expendable(j.replicas) == 0 || j.rng.IntN(doubles/4) > 0 {
		return p, nil
	}
	return j.double(p, j.death(span, -1))
}

// interrupt lets a keeper that did recovery work in r crash, too, at some of its verbs.
func (j *job) interrupt(r *run, p *Plan) (*Plan, *Failure) {
	for range 4 {
		q := r.interrupted(j.rng)
		if q == nil || j.rng.IntN(doubles) > 0 {
			continue
		}
		j.twice.Add(1)
		if _, f := j.try(q); f != nil {
			return q, f
		}
	}
	return p, nil
}

// double adds a second fault.
func (j *job) double(p *Plan, second sim.Fault) (*Plan, *Failure) {
	q := with(p, second)
	j.twice.Add(1)
	_, f := j.try(q)
	return q, f
}

func (j *job) try(p *Plan) (*run, *Failure) {
	j.runs.Add(1)
	return j.subject.play(p, nil)
}

// with returns p with one more fault.
func with(p *Plan, f sim.Fault) *Plan {
	q := p.clone()
	q.Faults = append(q.Faults, f)
	return q
}

// between is a range of verbs, its ends included.
type between struct{ from, to uint64 }

// span is where the last operation of worker-0 and its Close lie: among the worker's verbs, and
// among those that land on each node.
type span struct {
	between
	landed []between
}

// moment is when an operation begins: how many verbs its worker had sent, and had landed on each
// node.
type moment struct {
	sent   uint64
	landed []uint64
}

func (r *run) moment(p *player) moment {
	m := moment{sent: p.w.Sent()}
	for n := range r.plan.Nodes {
		m.landed = append(m.landed, r.s.Landed(n))
	}
	return m
}

// sent returns how many verbs a worker has sent.
func (r *run) sent(number int) uint64 {
	for _, p := range r.players {
		if p.number == number && p.name == workerName(number) {
			return p.w.Sent()
		}
	}
	return 0
}

func (r *run) span() span {
	i := slices.IndexFunc(r.players, func(p *player) bool { return p.number == 0 })
	p := r.players[i]
	s := span{between: between{p.last.sent, p.w.Sent()}}
	for n := range r.plan.Nodes {
		s.landed = append(s.landed, between{p.last.landed[n], p.end.landed[n]})
	}
	return s
}
