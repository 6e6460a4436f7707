package explore

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// Stats are sums over runs.
type Stats struct {
	Runs, Operations, OK uint64 // operations that were called, and that answered OK
	Events               uint64 // of the simulation
	Crashes, Deaths      uint64 // of clients and keepers, and of memory nodes
	Restarts             uint64 // of memory nodes that came back
	Undecided            uint64 // runs in which the search for an order of the operations took too long
}

func (s *Stats) add(t Stats) {
	s.Runs += t.Runs
	s.Operations += t.Operations
	s.OK += t.OK
	s.Events += t.Events
	s.Crashes += t.Crashes
	s.Deaths += t.Deaths
	s.Restarts += t.Restarts
	s.Undecided += t.Undecided
}

// run is one plan being played.
type run struct {
	subject *Subject
	plan    *Plan
	s       *sim.Sim
	tell    func(format string, args ...any) // nil: the run is not traced
	players []*player
	guards  []*guard
	servers Servers       // nil: there are none
	calm    time.Duration // since when only keepers are at work, and nothing died; 0: players are, too
	losses  int           // that there were by then: see lost
	keys    []string      // of the plan, in order
	unsure  int           // operations that ended without an answer
	stats   Stats
	trouble error // what a keeper could not do last
}

// player is a worker with what it did.
type player struct {
	number  int
	name    string
	w       *sim.Worker
	history *check.Recorder
	last    moment // when its last operation began
	// passed has the operations, by number, during which the pool's view moved on twice.
	passed map[int]bool
	end    moment // when its store was closed
	fenced bool   // it was taken for dead, and has noticed
	err    error  // of Open or Close
}

// Bounds of a run. A run that exceeds them counts as one without an end.
const (
	timeLimit  = 30 * time.Second // virtual; a second is a long run
	eventLimit = 1_000_000
)

// patience is how many operations without an answer the workers tolerate before they leave. Without
// recovery of dead clients nearly every operation would end so, and the search for an order is
// exponential in their number.
const patience = 4

// patience is as much again for each outage, which leaves many without an answer at once.
func (r *run) patience() int { return patience * (1 + r.plan.outages()) }

// Run plays a plan and returns what is wrong with the run; nil: nothing.
func (s *Subject) Run(p *Plan) *Failure {
	_, f := s.Try(p)
	return f
}

// Try plays a plan and returns what its run adds up to, and what is wrong with it; nil: nothing,
// unless it is undecided.
func (s *Subject) Try(p *Plan) (Stats, *Failure) {
	r, f := s.play(p, nil)
	return r.stats, f
}

// play runs a plan. The run that it returns is over.
func (s *Subject) play(p *Plan, listen func(*run, *sim.Options)) (*run, *Failure) {
	s = s.withDefaults()
	r := &run{subject: s, plan: p}
	for i := range p.keys() {
		r.keys = append(r.keys, keyName(i))
	}
	slices.Sort(r.keys)
	memory, err := s.Memory(p.Shape)
	if err != nil {
		return r, &Failure{BadPlan, err}
	}
	o := p.options()
	o.Memory, o.Clients, o.Handler = memory, s.Clients, s.Handler
	o.Clients += p.outages() * s.Servers // those of before wait to be recovered
	o.Limit, o.MaxEvents = timeLimit, eventLimit
	if listen != nil {
		listen(r, &o)
	}
	r.s = sim.New(o)
	defer r.s.Close()
	if p.outages() > 0 && !s.Durable {
		return r, guilty(BadPlan, "pools of %s do not come back from a power or restart fault", s.Name)
	}
	if err := s.Format(r.s, p.Shape); err != nil {
		return r, &Failure{BadPlan, err}
	}
	if s.Serve != nil {
		if r.servers, err = s.Serve(r.s); err != nil {
			return r, &Failure{BadPlan, err}
		}
	}
	f := r.play()
	r.tell = nil // what the dead say while they are unwound is no part of the run
	r.count()
	return r, f
}

func (r *run) play() *Failure {
	for i := range r.plan.Work {
		if len(r.plan.Work[i]) > 0 {
			r.enter(i, workerName(i), r.script(i))
		}
	}
	if r.mended() {
		for range keepers {
			r.guard()
		}
	}
	if f := ofRun(r.s.Run()); f != nil {
		return f
	}
	if f := r.recovered(); f != nil {
		return f
	}
	r.spare()
	if f := r.sweep(); f != nil {
		return f
	}
	r.enter(len(r.plan.Work), "visitor", r.visit)
	if f := ofRun(r.s.Run()); f != nil {
		return f
	}
	if r.servers != nil {
		if f := ofRun(Dismiss(r.s, r.servers)); f != nil {
			return f
		}
	}
	return r.judge()
}

// mended reports whether keepers take part. In a run without faults they would only make replays
// longer.
func (r *run) mended() bool { return r.subject.Recoverer != nil && len(r.plan.Faults) > 0 }

// enter starts a player.
func (r *run) enter(number int, name string, f func(p *player, ep rdma.Endpoint)) {
	p := &player{number: number, name: name}
	r.players = append(r.players, p)
	p.w = r.s.Go(name, func(ep rdma.Endpoint) {
		store, err := r.subject.open(r.s, ep, r.plan.Cache)
		if err != nil {
			p.err = fmt.Errorf("%s: open store: %w", name, err)
			return
		}
		p.history, p.passed = check.NewRecorder(number, store, r.s.Now), map[int]bool{}
		f(p, ep)
		r.say(p, "closes its store")
		err = store.Close()
		p.end = r.moment(p)
		if err != nil {
			p.err = fmt.Errorf("%s: close: %w", name, err)
			r.abandon(p, err, ep)
		}
	})
}

// abandon is the end of a worker that cannot close its store: it still owns memory, so its process
// has to die with it (see client.Leave), and recovery does the rest. One that was fenced off is
// dead already.
func (r *run) abandon(p *player, err error, ep rdma.Endpoint) {
	if !errors.Is(err, rdma.ErrRevoked) {
		r.s.CrashAfter(p.w, 0)
		ep.Sleep(timeLimit)
	}
}

// script returns what worker i does.
func (r *run) script(i int) func(*player, rdma.Endpoint) {
	return func(p *player, ep rdma.Endpoint) {
		for n, op := range r.plan.Work[i] {
			if p.fenced || r.unsure >= r.patience() {
				return
			}
			r.do(p, op, n+1)
			if r.plan.Pause > 0 {
				ep.Sleep(time.Duration(ep.Rand().Int64N(int64(r.plan.Pause))))
			}
		}
	}
}

// visit is the script of the last worker. After all others it must be able to read, update, delete
// and insert every key.
func (r *run) visit(p *player, _ rdma.Endpoint) {
	n := 0
	for key := range r.plan.keys() {
		for _, kind := range []check.Kind{check.Get, check.Update, check.Insert, check.Get, check.Delete, check.Insert,
			check.Get} {
			n++
			r.do(p, Op{kind, key, 24}, n)
		}
	}
	if r.subject.Scans {
		r.do(p, Op{check.Scan, 0, len(r.keys)}, n+1)
	}
}

func keyName(i int) string { return fmt.Sprintf("key-%d", i) }

// do carries out one operation; the recorder keeps its answer.
func (r *run) do(p *player, op Op, n int) {
	key := []byte(keyName(op.Key))
	var value []byte
	if op.writes() {
		value = check.MakeValue(nil, p.number, n, op.Size)
	}
	p.last = r.moment(p)
	if r.tell != nil {
		r.say(p, "begins: %s of %s%s", op.Kind, key,
			map[bool]string{true: ", value " + check.Identify(value).String()}[op.writes()])
	}
	epoch, err := r.s.View().Epoch, error(nil)
	if op.Kind == check.Scan {
		err = p.history.Scan(r.keys, string(key), op.Size)
	} else {
		err = op.Kind.Do(p.history, key, value)
	}
	p.fenced = errors.Is(err, rdma.ErrRevoked)
	if r.s.View().Epoch > epoch+1 {
		h := p.history.History()
		p.passed[h[len(h)-1].Seq] = true
	}
	if errors.Is(err, client.ErrUncertain) || errors.Is(err, rdma.ErrTimeout) {
		r.unsure++
	}
	if r.tell != nil {
		h := p.history.History()
		r.say(p, "answers: %s", &h[len(h)-1])
	}
}

// say puts a line between the events of a replay.
func (r *run) say(p *player, format string, args ...any) {
	if r.tell != nil {
		r.tell("%12v  %s %s", r.s.Now(), p.name, fmt.Sprintf(format, args...))
	}
}

func (r *run) count() {
	s := Stats{Runs: 1, Events: r.s.Events(), Restarts: r.s.Restarts(), Undecided: r.stats.Undecided}
	for _, p := range r.players {
		if p.w.Crashed() {
			s.Crashes++
		}
		if p.history != nil {
			h := p.history.History()
			s.Operations += uint64(len(h))
			s.OK += uint64(len(h.With(check.OK)))
		}
	}
	for _, g := range r.guards {
		if g.w.Crashed() {
			s.Crashes++
		}
	}
	for n := range r.plan.Nodes {
		if r.s.Dead(n) {
			s.Deaths++
		}
	}
	r.stats = s
}

var _ client.Store = (*check.Recorder)(nil)
