package explore

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
)

// Search is what Fuzz tries.
type Search struct {
	First    uint64 // seed
	Runs     uint64 // as many seeds, one after the other
	Limits   Limits
	Progress func(Stats) // told after some seeds now and then, by one goroutine at a time; may be nil
}

// Result is what a search found.
type Result struct {
	Stats
	Seeds   uint64   // that were tried: some have two runs
	Seed    uint64   // the lowest that failed
	Plan    *Plan    // its plan; nil when none failed
	Failure *Failure // what is wrong with it
	// UndecidedSeed is the lowest with a run that could not be judged, and UndecidedPlan that
	// run's; nil when all were judged.
	UndecidedSeed uint64
	UndecidedPlan *Plan
}

// progressEvery is how many seeds go by between two calls of Progress.
const progressEvery = 256

// Fuzz runs the plans of many seeds, as many at a time as there are processors, and reports the
// lowest seed that fails, whichever is found first. When ctx ends it stops, with what was done;
// runs are short.
func (s *Subject) Fuzz(ctx context.Context, o Search) Result {
	f := &fuzzing{subject: s, search: o}
	f.end.Store(o.Runs)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() { f.work(ctx) })
	}
	all.Wait()
	f.result.Seeds = f.done
	return f.result
}

type fuzzing struct {
	subject *Subject
	search  Search
	next    atomic.Uint64 // seeds are handed out in order, so that all below one that failed have been
	end     atomic.Uint64

	mu     sync.Mutex
	result Result
	done   uint64 // seeds
}

func (f *fuzzing) work(ctx context.Context) {
	for ctx.Err() == nil {
		i := f.next.Add(1) - 1
		if i >= f.end.Load() {
			return
		}
		seed := f.search.First + i
		p := f.subject.Draw(seed, f.search.Limits)
		r, failure := f.subject.play(p, nil)
		stats, undecided := r.stats, (*Plan)(nil)
		if stats.Undecided > 0 {
			undecided = p
		}
		if failure == nil && seed%3 == 0 {
			if q := r.interrupted(rand.New(rand.NewPCG(seed, 0x1e4))); q != nil {
				p = q
				r, failure = f.subject.play(p, nil)
				stats.add(r.stats)
				if r.stats.Undecided > 0 && undecided == nil {
					undecided = p
				}
			}
		}
		f.report(i, p, stats, failure, undecided)
	}
}

func (f *fuzzing) report(i uint64, p *Plan, s Stats, failure *Failure, undecided *Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.result.add(s)
	if failure != nil && i < f.end.Load() {
		f.end.Store(i)
		f.result.Seed, f.result.Plan, f.result.Failure = f.search.First+i, p, failure
	}
	if seed := f.search.First + i; undecided != nil &&
		(f.result.UndecidedPlan == nil || seed < f.result.UndecidedSeed) {
		f.result.UndecidedSeed, f.result.UndecidedPlan = seed, undecided
	}
	if f.done++; f.search.Progress != nil && f.done%progressEvery == 0 {
		f.search.Progress(f.result.Stats)
	}
}
