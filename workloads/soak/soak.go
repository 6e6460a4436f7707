package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// Target is what load is put on.
type Target struct {
	// Open opens a worker; end closes it, and what it stands on.
	Open func(name string) (s client.Store, end func() error, err error)
	// Largest is how many bytes the longest value has, with a key of KeyBytes.
	Largest int
	// DeletesNeedRoom: a DELETE may find the pool full, for a while.
	DeletesNeedRoom bool
	// Unmerged: what deleted keys took is not used for other keys.
	Unmerged bool
}

// KeyBytes is how long keys are.
const KeyBytes = 12

// Of returns a pool as a target, and makes this process a candidate for its master, as drivers do.
func Of(p *stores.Pool) (Target, error) {
	if err := p.Keep(cluster.Options{}); err != nil {
		return Target{}, err
	}
	s, ep, err := p.Worker("soak", stores.Options{})
	if err != nil {
		return Target{}, err
	}
	most := p.Kind.MostPair(s) - KeyBytes
	if p.Kind.Limits != nil {
		l, err := p.Kind.Limits(p.Header)
		if err != nil {
			return Target{}, errors.Join(err, s.Close(), ep.Close())
		}
		if most = min(most, l.Value); l.Pair > 0 {
			most = min(most, l.Pair-KeyBytes)
		}
	}
	open := func(name string) (client.Store, func() error, error) {
		s, ep, err := p.Worker(name, stores.Options{})
		if err != nil {
			return nil, nil, err
		}
		return s, func() error { return errors.Join(s.Close(), ep.Close()) }, nil
	}
	return Target{Open: open, Largest: most, Unmerged: p.Kind.Unmerged}, errors.Join(s.Close(), ep.Close())
}

// Options shape the load. Zero values mean defaults.
type Options struct {
	Workers int // default 64
	Seed    uint64
	Length  time.Duration
	// Keys is how many keys each worker uses again and again; 0: none is used again, or
	// unmergedKeys of an Unmerged target, which would be full of what deleted keys took.
	Keys int
	// Room is the share of the bytes which a pool takes of one worker alone that have to be live
	// before it may be full for one of many, each of which has some memory for itself; default 0.5,
	// 0.3 of an Unmerged target.
	Room float64
	// Refill is the share of the pairs that a pool took at first which it has to take behind the
	// load; default 0.9.
	Refill float64
	// Longest bounds each operation; default 10 s, five times the timeout of a store's operation,
	// some of which wait for memory once more than that.
	Longest time.Duration
	// Say is told what begins; nil: nothing.
	Say func(format string, args ...any)
}

const unmergedKeys = 200

func (o *Options) defaults(t Target) {
	keys, room := 0, 0.5
	if t.Unmerged {
		keys, room = unmergedKeys, 0.3
	}
	o.Workers, o.Keys = cmp.Or(o.Workers, 64), cmp.Or(o.Keys, keys)
	o.Longest = cmp.Or(o.Longest, 10*time.Second)
	o.Room, o.Refill = cmp.Or(o.Room, room), cmp.Or(o.Refill, 0.9)
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
}

// The operations that are counted.
const (
	get = iota
	insert
	update
	remove
	scan
	kinds
)

var kindNames = [kinds]string{"GET", "INSERT", "UPDATE", "DELETE", "SCAN"}

// Latency says how long operations took.
type Latency struct {
	Ops                   uint64
	Mean, P50, P99, Worst time.Duration
}

func latency(h *workloads.Histogram) Latency {
	return Latency{h.Count(), time.Duration(h.Mean()), h.Percentile(50), h.Percentile(99), h.Max()}
}

func (l Latency) String() string {
	return fmt.Sprintf("%d, mean %v, p50 %v, p99 %v, worst %v", l.Ops, l.Mean.Round(time.Microsecond),
		l.P50.Round(time.Microsecond), l.P99.Round(10*time.Microsecond), l.Worst.Round(100*time.Microsecond))
}

// Counts are a Run's of one kind of operation.
type Counts struct {
	Kind string // GET, INSERT, UPDATE, DELETE, or SCAN
	Latency
	Full uint64 // of them those that found the pool full
}

// Result is what a Run has met.
type Result struct {
	Counts []Counts // SCANs only of stores that have them
	First  int      // pairs that the pool took of one worker, of sizes drawn evenly
	Again  int      // and behind the load
	// FullAt is the least share of the bytes which one worker had put into the pool that was live
	// when an operation of the load found it full; 0: none did. Full buckets do not count.
	FullAt float64
	Heap   int64 // bytes that this process has more behind the load than in front of it
}

func (r *Result) String() string {
	text := fmt.Sprintf("full with %d pairs, and later with %d; the heap has %d KiB more", r.First, r.Again, r.Heap>>10)
	for _, c := range r.Counts {
		text += fmt.Sprintf("\n%-6s %v, full %d", c.Kind, c.Latency, c.Full)
	}
	return text
}

// load is a Run at work.
type load struct {
	Target
	Options
	ctx   context.Context
	until time.Time // of the load
	live  live
	alone int64 // bytes of values that the pool took of one worker

	mu     sync.Mutex
	result Result
	times  [kinds]workloads.Histogram
	full   [kinds]uint64
	fullAt int64 // bytes of values that were live when it was found full: the least; 0: it was not
}

// live is an upper bound of the bytes of values that are there. A value counts from the moment
// before its write begins until the one behind the write that replaced or deleted it, so that a
// worker that stands still between its operation and the count of it makes no pool look emptier
// than it is.
type live struct {
	mu    sync.Mutex
	bytes int64
	most  []int64 // by worker, of bytes since its operation began
}

func (l *live) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += int64(n)
	for i := range l.most {
		l.most[i] = max(l.most[i], l.bytes)
	}
}

// begin begins an operation of a worker.
func (l *live) begin(worker int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most[worker] = l.bytes
}

// since returns how many bytes there were at most since the worker's operation began: others may
// fill and empty the pool while it runs.
func (l *live) since(worker int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most[worker]
}

func newLoad(ctx context.Context, t Target, o Options) *load {
	o.defaults(t)
	return &load{Target: t, Options: o, ctx: ctx, live: live{most: make([]int64, o.Workers+1)}}
}

// Run fills the pool and empties it, has workers use it in ways of their own for a while, and then
// does the first again. All answers are compared with what each worker knows of its own keys. The
// error says what was wrong; the result is what there was, also then. The pool is empty before and
// behind it, and no other worker uses it. When ctx ends it, it deletes its pairs first.
func Run(ctx context.Context, t Target, o Options) (Result, error) {
	l := newLoad(ctx, t, o)
	l.Say("one worker fills the pool, and empties it")
	first, bytes, err := l.fillAlone()
	if err != nil {
		return l.result, fmt.Errorf("fill the pool: %w", err)
	}
	l.result.First, l.alone = first, bytes
	before := heap()
	l.until = time.Now().Add(l.Length)
	l.Say("%d workers use it for %v", l.Workers, l.Length)
	if err = l.all(); err == nil {
		l.Say("one worker fills it again, and empties it")
		l.result.Again, _, err = l.fillAlone()
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	for k := range l.times {
		if l.times[k].Count() > 0 {
			l.result.Counts = append(l.result.Counts, Counts{kindNames[k], latency(&l.times[k]), l.full[k]})
		}
	}
	l.result.Heap, l.result.FullAt = heap()-before, float64(l.fullAt)/float64(max(l.alone, 1))
	if least := int(float64(first) * l.Refill); err == nil && l.result.Again < least {
		err = fmt.Errorf("the pool is full with %d pairs, and was with %d: want %d at least", l.result.Again,
			first, least)
	}
	return l.result, err
}

// heap returns how many bytes of it are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// roles are what workers do, each as many as its share of them says.
var roles = []struct {
	share int
	name  string
	work  func(*worker) error
}{
	{3, "churn", (*worker).churn}, {2, "write hot keys", (*worker).hot}, {1, "fill and clear", (*worker).fillAndClear},
	{2, "come and go", (*worker).comeAndGo},
}

// over reports whether a worker is to end: the one that is alone only when the Run was ended.
func (w *worker) over() bool {
	return w.ctx.Err() != nil || w.number > 0 && !time.Now().Before(w.until)
}

// all has all workers work until the end.
func (l *load) all() error {
	shares := 0
	for _, r := range roles {
		shares += r.share
	}
	errs := make([]error, l.Workers)
	var group sync.WaitGroup
	for i := range l.Workers {
		at, role := i%shares, 0
		for ; at >= roles[role].share; role++ {
			at -= roles[role].share
		}
		group.Go(func() {
			err := l.one(i+1, roles[role].work)
			if err != nil {
				errs[i] = fmt.Errorf("worker %d, to %s: %w", i+1, roles[role].name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(some(errs), l.clearHot())
}

// mostTold bounds the workers with errors that are reported: what one worker finds wrong, usually
// all find.
const mostTold = 3

func some(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - mostTold; more > 0 {
		errs = append(errs[:mostTold], fmt.Errorf("and %d more workers", more))
	}
	return errors.Join(errs...)
}

// one is one worker, from its beginning to its end.
func (l *load) one(number int, work func(*worker) error) error {
	w := newWorker(l, number)
	if err := w.open(); err != nil {
		return err
	}
	err := work(w)
	err = errors.Join(err, w.end())
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.times {
		l.times[k].Merge(&w.times[k])
		l.full[k] += w.full[k]
	}
	l.fullAt = lower(l.fullAt, w.fullAt)
	return err
}

// lower returns the lower of two numbers, of which 0 is none.
func lower(a, b int64) int64 {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// fillAlone fills the pool with one worker, and empties it. It returns with how many pairs, and how
// many bytes of values.
func (l *load) fillAlone() (pairs int, bytes int64, err error) {
	w := newWorker(l, 0)
	if err := w.open(); err != nil {
		return 0, 0, err
	}
	err = w.fill()
	pairs, bytes = len(w.own), l.live.bytes
	return pairs, bytes, errors.Join(err, w.clear(), w.end())
}

// clearHot deletes the hot keys.
func (l *load) clearHot() error {
	w := newWorker(l, 0)
	if err := w.open(); err != nil {
		return err
	}
	var failed error
	for k := range hotKeys {
		if err := w.store.Delete(hotKey(k)); err != nil && !errors.Is(err, client.ErrNotFound) {
			failed = errors.Join(failed, fmt.Errorf("delete hot key %d: %w", k, err))
		}
	}
	return errors.Join(failed, w.end())
}

func newWorker(l *load, number int) *worker {
	return &worker{load: l, number: number, rng: rand.New(rand.NewPCG(l.Seed, uint64(number))), there: map[int]int{}}
}

// mayBeFull reports whether an error may be of a pool that is full.
func mayBeFull(err error) bool { return errors.Is(err, rdma.ErrFull) }
