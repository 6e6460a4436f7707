// Package runner runs a workload on the wall's time: a goroutine a worker, progress while it runs,
// and a Result that can be written to a file and read by reports.
package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
)

// Database is what a run drives. Open is called by each worker's goroutine.
type Database interface {
	Open(worker int) (workloads.DB, error)
	Close() error
	// CPU returns the processor time that it takes, in this process and in others, since some
	// moment; false: it is not known.
	CPU() (here, elsewhere time.Duration, ok bool)
	// Publish begins to tell the pool that the database is on of a run. nil: the pool has no place
	// for that.
	Publish(s client.Subject) *client.Publisher
	// Gone returns why there is nothing left to run on, now and for good; nil: there may be. It
	// waits for nothing, and is safe for concurrent use.
	Gone() error
}

// NoPool is embedded by a Database that is on no pool.
type NoPool struct{}

// CPU implements Database: it is not known.
func (NoPool) CPU() (here, elsewhere time.Duration, ok bool) { return 0, 0, false }

// Publish implements Database: there is no pool to tell.
func (NoPool) Publish(client.Subject) *client.Publisher { return nil }

// Gone implements Database: it never is.
func (NoPool) Gone() error { return nil }

// Config says what to run. Zero values mean no limit, no pace, no progress.
type Config struct {
	Name     string // of the database, for the result
	Database Database
	Spec     *workloads.Spec
	Load     bool // load the Spec's records instead of running its mix
	Threads  int  // default 1
	Seed     uint64
	Target   float64       // operations a second, over all threads
	MaxTime  time.Duration // no operation starts later
	WarmUp   time.Duration // what starts earlier is neither measured nor counted
	// between calls of Progress, and of the result's series; 0: there are no calls, and one entry
	Interval time.Duration
	Progress func(Progress)
	Failed   func(workloads.Op, error) // told of each call that fails, by many goroutines at a time
}

// maxThreads bounds the workers of one process.
const maxThreads = 1 << 14

// Run does what c says. It returns an error when it could not start; operations that fail are in
// the Result. When ctx is cancelled it returns what there is so far, as an interrupted Result.
func Run(ctx context.Context, c Config) (*Result, error) {
	c.Threads = max(c.Threads, 1)
	if c.Threads > maxThreads {
		return nil, workloads.Usagef("%d threads are more than %d", c.Threads, maxThreads)
	}
	r := &run{
		Config: c, core: workloads.NewCore(c.Spec), ready: make(chan error, c.Threads), start: make(chan struct{}),
		clock: clock{live: make([]workloads.LiveCounts, c.Threads), warm: c.WarmUp, least: c.Interval / 2},
	}
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	r.ctx = ctx
	defer context.AfterFunc(ctx, func() { r.stop.Store(true) })()

	var workers sync.WaitGroup
	for i := range c.Threads {
		workers.Go(func() { r.work(i) })
	}
	err := r.launch()
	before := cpuOf(c.Database)
	if err != nil {
		r.cancel()
	}
	stopped, stop := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	if c.Interval > 0 && err == nil {
		beside.Go(func() { r.report(stopped) })
	}
	beside.Go(func() { r.watch(stopped) })
	told := r.publish(err)
	workers.Wait()
	told.Close()
	stop()
	beside.Wait()
	if err != nil {
		return nil, err
	}
	r.clock.cut(r.took) // the rest
	res := r.result(r.took)
	res.CPU = before.until(cpuOf(c.Database), res.Operations)
	return res, nil
}

// cpuTime is the processor time used up to some moment; nil: the database does not report it.
type cpuTime struct{ here, elsewhere time.Duration }

func cpuOf(d Database) *cpuTime {
	here, elsewhere, ok := d.CPU()
	if !ok {
		return nil
	}
	return &cpuTime{here, elsewhere}
}

// until is what an operation took, from c on.
func (c *cpuTime) until(end *cpuTime, operations uint64) *CPU {
	if c == nil || end == nil || operations == 0 || end.elsewhere < c.elsewhere {
		return nil
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(operations) }
	return &CPU{us(end.here - c.here), us(end.elsewhere - c.elsewhere)}
}

type run struct {
	Config
	core   *workloads.Core
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan error    // one a worker, once it has opened its connection
	start  chan struct{} // closed when all are ready
	began  time.Time     // set before start is closed
	clock  clock         // of the reporter, until it ends
	gone   error         // of the watcher, until it ends

	stop   atomic.Bool
	epoch  atomic.Uint64 // a worker that sees a new one hands its tally over
	handed atomic.Int64  // workers that have seen the present one
	busy   atomic.Int64  // workers that run

	gathering sync.Mutex // held by gather: one at a time bumps epoch

	mu       sync.Mutex // guards what follows
	total    workloads.Tally
	interval workloads.Tally
	counters *rdma.Counters    // nil: no DB counts
	told     telemetry.Process // what stores and endpoints counted
	closing  error
	took     time.Duration // until the last worker was done, but for closing
}

// launch waits until all workers are ready, and starts the clock.
func (r *run) launch() error {
	var failed error
	for range r.Threads {
		if err := <-r.ready; err != nil && failed == nil {
			failed = err
		}
	}
	r.busy.Store(int64(r.Threads))
	r.began = time.Now()
	if failed != nil {
		r.stop.Store(true)
	}
	close(r.start)
	return failed
}

// work is worker i's goroutine.
func (r *run) work(i int) {
	db, err := r.Database.Open(i)
	if err != nil {
		err = fmt.Errorf("worker %d: %w", i, err)
	}
	r.ready <- err
	<-r.start
	if err != nil {
		r.busy.Add(-1)
		return
	}
	var before rdma.Counters
	if c := db.Counters(); c != nil {
		before = *c
	}
	w := workloads.NewWorker(r.core, db, r.env(i), r.share(i, db))
	if !r.stop.Load() {
		w.Run()
	}
	r.clock.live[i].Rest(true)
	r.finish(w, db, before)
	if err := db.Close(); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.closing == nil {
			r.closing = fmt.Errorf("worker %d: close: %w", i, err)
		}
	}
}

// finish adds the measurements of a worker that has ended to those of the run.
func (r *run) finish(w *workloads.Worker, db workloads.DB, before rdma.Counters) {
	took := time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = max(r.took, took)
	if c := db.Counters(); c != nil {
		if r.counters == nil {
			r.counters = new(rdma.Counters)
		}
		*r.counters = r.counters.Add(c.Sub(before))
	}
	r.total.Merge(w.Tally())
	r.interval.Merge(w.Tally())
	workloads.Collect(db, &r.told)
	if r.Load && w.Tally().Failed > 0 {
		r.stop.Store(true) // an incomplete load is of no use: stop the others
	}
	r.busy.Add(-1)
}

func (r *run) share(i int, db workloads.DB) workloads.Share {
	s := workloads.Share{
		Worker: i, Workers: r.Threads, Load: r.Load,
		Ops: workloads.SplitOps(r.Spec.OperationCount, i, r.Threads), Warm: r.WarmUp, Failed: r.Failed,
		Live: &r.clock.live[i],
	}
	if r.MaxTime > 0 {
		s.Until = r.WarmUp + r.MaxTime
	}
	if r.Target > 0 {
		// The workers take turns, so that the whole is paced evenly and they do not all start at
		// once.
		each := float64(time.Second) / r.Target
		s.First = time.Duration(each * float64(i))
		s.Period = max(time.Duration(each*float64(r.Threads)), 1)
	}
	idle := !r.Load && r.Spec.OperationCount > 0 && s.Ops == 0 // more threads than operations
	seen := uint64(0)
	s.Poll = func(t *workloads.Tally) bool {
		if e := r.epoch.Load(); e != seen {
			seen = e
			r.collect(t, db)
		}
		return !r.stop.Load() && !idle
	}
	return s
}

// collect takes over what a worker measured.
func (r *run) collect(t *workloads.Tally, db workloads.DB) {
	r.mu.Lock()
	r.total.Merge(t)
	r.interval.Merge(t)
	workloads.Collect(db, &r.told)
	r.mu.Unlock()
	t.Reset()
	r.handed.Add(1)
}

func (r *run) result(took time.Duration) *Result {
	res := newResult(&r.Config, &r.total, took)
	res.Series = r.clock.intervals()
	res.Interrupted = r.ctx.Err() != nil && r.gone == nil
	if r.counters != nil {
		c := Counters(*r.counters)
		res.Counters = &c
	}
	switch {
	case r.gone != nil: // then nothing can be closed in order, either
		res.gone = fmt.Errorf("the pool is gone: %w", r.gone)
		res.Problem = res.gone.Error()
	case r.closing != nil:
		res.Problem = r.closing.Error()
	}
	return res
}

// Misused reports whether err is a user's mistake rather than a failure.
func Misused(err error) bool {
	var use *workloads.UsageError
	return errors.As(err, &use)
}
