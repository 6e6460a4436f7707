package simulate

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// run is a simulation in progress. All of it, but for stop, belongs to one goroutine: clients are
// coroutines of the simulation, and what one does between two waits is not interrupted.
type run struct {
	Config
	*pool
	task    func(*run, *participant, rdma.Endpoint) // what each client does
	core    *workloads.Core
	clients []*participant
	began   time.Duration // the simulation's time when measuring begins
	ended   time.Duration // since then, when the last client was done
	begun   int64         // operations that began
	series  timeline
	sampler sampler
	gap     time.Duration     // the longest in which a participant finished nothing
	memory  []client.Use      // in the end
	usage   []sim.NodeUsage   // then
	cpu     [][]time.Duration // that nodes have used by the beginning of each interval, where requests shift
	idle    []sim.NodeUsage   // when measuring began, where setting up took time
	loaded  int               // participants that have loaded their records, then
	warmed  int64             // operations of the warm-up that began, then
	events  []Event
	shift   *shifting // nil: requests have not shifted
	failed  error
	stop    atomic.Bool // set when the run is to end early
}

// participant is a client of the run, or one of the operations that it has in flight.
type participant struct {
	session
	process *stores.Process // nil: it shares nothing with others
	number  int
	span    span
	tally   *workloads.Tally
	meter   *meter
	seen    uint64        // operations that are in the timeline
	broken  uint64        // and those of them that failed
	last    time.Duration // when one ended well
}

// start makes the clients, and opens the stores of those that are there from the beginning.
func (r *run) start() error {
	spans, err := r.population()
	if err != nil {
		return err
	}
	if r.kind.Option(stores.CacheBytes) != nil {
		r.Options.Own = stores.Values{stores.CacheBytes: cacheBytes(r.Spec)}.With(r.Options.Own)
	}
	for i, s := range spans {
		var first *sim.Worker
		for lane := range r.InFlight {
			p := &participant{number: i*r.InFlight + lane, span: s}
			r.clients = append(r.clients, p)
			task := func(ep rdma.Endpoint) {
				if p.span.from > 0 || r.ready(p) {
					r.task(r, p, ep)
				}
			}
			w := first
			if lane == 0 {
				first = r.sim.Go(ClientName(i), task)
				w = first
			} else {
				w = r.sim.GoOnCoreOf(first, fmt.Sprintf("%s, operation %d", ClientName(i), lane), task)
			}
			p.process = r.processOf(w)
			if s.from > 0 {
				continue
			}
			if err := r.enter(p, w.Endpoint()); err != nil {
				return fmt.Errorf("client %d: %w", i, err)
			}
		}
	}
	return r.startVictims()
}

// enter opens a participant's store.
func (r *run) enter(p *participant, ep rdma.Endpoint) (err error) {
	o := r.Options
	o.Process = p.process
	p.session, err = r.pool.open(ep, o)
	return err
}

// cacheBytes is the size of an index cache that all records fill by half. An entry counts for 24
// bytes. Every client has a cache of its own.
func cacheBytes(s *workloads.Spec) int {
	const entry, least, most = 24, 4 << 10, 8 << 20
	return int(max(min(2*entry*(s.RecordCount+s.ExpectedInserts()), most), least))
}

// Outside the simulation's Run verbs take no time. So clients work in turns. turn is how many
// operations one client does while the others wait. turnTime is about how long these would take,
// and passes after each turn: stores release freed memory only after a time.
const (
	turn     = 16
	turnTime = turn * 10 * time.Microsecond
	setUp    = time.Second // the most that setting up takes, beside turns, for so many records
	forSetUp = 100_000
	patience = 10 * time.Minute // how much longer than its Duration a run may take
)

// beginning returns the virtual time at which measuring begins: known before anything happens,
// since faults happen at times that count from there.
func (c *Config) beginning() time.Duration {
	if k, err := stores.Lookup(c.Store); err == nil && k.Serve != nil {
		return c.servedSetUp()
	}
	round := int64(turn * c.Clients * c.InFlight)
	return c.Loading + setUp/forSetUp*time.Duration(max(c.Spec.RecordCount, forSetUp)) +
		time.Duration((c.WarmUp+round-1)/round)*turnTime
}

// know lets the clients of the beginning read all records.
func (r *run) know() error {
	if !r.Known || r.servers != nil {
		return nil
	}
	for _, p := range r.clients {
		if err := r.knows(p); err != nil {
			return err
		}
	}
	return nil
}

// knows lets a client read all records.
func (r *run) knows(p *participant) error {
	for i := int64(0); p.store != nil && i < r.Spec.RecordCount && !r.stop.Load(); i++ {
		if _, err := p.store.Get(r.Spec.Key(i)); err != nil {
			return fmt.Errorf("client %d: record %d: %w", p.number/r.InFlight, i, err)
		}
	}
	return nil
}

// look reads from the store what the pool's memory is used for.
func (r *run) look() (err error) {
	if r.Memory {
		r.memory, err = r.kind.Usage(r.sim)
	}
	return err
}

// warmUp lets the clients of the beginning do operations of the mix, in turns.
func (r *run) warmUp() error {
	if r.servers != nil {
		return nil
	}
	var failed error
	var workers []*workloads.Worker
	left, seed := r.WarmUp, r.Seed
	if r.Fresh {
		seed = ^seed
	}
	for i, p := range r.clients {
		if p.store == nil {
			continue
		}
		n := 0
		workers = append(workers, workloads.NewWorker(r.core, p.rows(r.Spec), newEnv(p.ep, seed, i), workloads.Share{
			Worker: i, Workers: r.Config.Clients * r.InFlight,
			Poll: func(*workloads.Tally) bool {
				if n++; n > turn || left == 0 || failed != nil || r.stop.Load() {
					n = 0
					return false
				}
				left--
				return true
			},
			Failed: func(op workloads.Op, err error) { failed = fmt.Errorf("%s: %w", op, err) },
		}))
	}
	for left > 0 && failed == nil && !r.stop.Load() {
		for _, w := range workers {
			w.Run()
		}
		r.clients[0].ep.Sleep(turnTime)
	}
	return failed
}

// measure runs the clients in virtual time.
func (r *run) measure() error {
	ahead := r.began - r.sim.Now()
	if ahead < 0 {
		return errLate(-ahead)
	}
	if r.servers == nil {
		r.clients[0].ep.Sleep(ahead)
	}
	if r.Sample != nil {
		faults, err := r.faults(r.Nodes, r.began)
		if err != nil {
			return err
		}
		r.sampler = sampler{take: r.Sample, faults: faults}
	}
	if err := r.keep(); err != nil {
		return err
	}
	r.series.interval = r.Interval
	return errors.Join(r.sim.Run(), r.failed, r.servers.Err())
}

func errLate(by time.Duration) error { return fmt.Errorf("setting up took %v longer than can be", by) }

// keep starts the pool's master if the run has faults, or requests shift. The master runs beside
// the clients, and ends with the simulation.
func (r *run) keep() error {
	if r.Faults == "" && !r.Shift.happens() {
		return nil
	}
	return stores.Keep(r.kept, r.kind, cluster.Options{Lease: r.Lease, Log: func(e cluster.Event) {
		r.events = append(r.events, Event{Seconds: (e.At - r.began).Seconds(), What: e.String(), Report: e.Report})
		r.sampler.note(e, e.At-r.began)
	}})
}

// apart is the time between the beginnings of two clients. Clients that begin at the same time
// would stay in step for a while.
const apart = 100 * time.Nanosecond

// work is a client's coroutine.
func (r *run) work(p *participant, ep rdma.Endpoint) {
	ep.Sleep(p.span.from + time.Duration(p.number+1)*apart - (ep.Now() - r.began))
	if p.store == nil {
		if err := r.enter(p, ep); err != nil {
			r.failed = errors.Join(r.failed, fmt.Errorf("client %d joins: %w", p.number, err))
			return
		}
	}
	env := newEnv(ep, r.Seed, p.number)
	env.began = r.began
	p.meter = &meter{DB: p.rows(r.Spec), env: env, count: ep.Counters()}
	p.last = env.Now()
	share := r.share(p.number, p.span)
	if r.Shift.happens() {
		share.Pick = func(n int64) int64 { return r.shifted(n, env) }
	}
	out := false
	share.Poll = func(t *workloads.Tally) bool {
		r.note(p, t, env.Now())
		if out || r.stop.Load() || !r.another() {
			return false
		}
		if r.Think > 0 {
			ep.Sleep(r.Think)
		}
		return true
	}
	share.Failed = func(_ workloads.Op, err error) {
		out = out || fenced(err)
		ep.Sleep(afterFailure)
	}
	w := workloads.NewWorker(r.core, p.meter, env, share)
	p.tally = w.Tally()
	w.Run()
	r.note(p, p.tally, env.Now())
	r.gap = max(r.gap, env.Now()-p.last)
	if now := env.Now(); now > r.ended {
		r.ended, r.usage = now, r.sim.Usage()
	}
	if p.span.to > 0 && !out {
		if err := p.close(); err != nil {
			r.failed = errors.Join(r.failed, fmt.Errorf("client %d leaves: %w", p.number, err))
		}
	}
}

// afterFailure is how long a client waits after a failed operation. Some operations fail in no
// time: without the wait virtual time would stand still.
const afterFailure = time.Microsecond

// fenced reports whether err means that a client cannot go on.
func fenced(err error) bool { return errors.Is(err, rdma.ErrRevoked) || errors.Is(err, rdma.ErrClosed) }

// another reports whether one more operation is to begin. Paced clients do not use it: each has a
// share of the operations.
func (r *run) another() bool {
	if r.Target > 0 || r.Ops == 0 {
		return true
	}
	if r.begun >= r.Ops {
		return false
	}
	r.begun++
	return true
}

// note adds what a client finished since the last time to the timeline.
func (r *run) note(p *participant, t *workloads.Tally, now time.Duration) {
	r.sample(now)
	r.meterCPU(now)
	n, failed := t.Operations-p.seen, t.Failed-p.broken
	p.seen, p.broken = t.Operations, t.Failed
	if n > failed {
		r.gap = max(r.gap, now-p.last)
		p.last = now
	}
	if p.meter != nil {
		r.series.add(now, point{operations: n, failed: failed, took: p.meter.took})
		p.meter.took = 0
	}
}
