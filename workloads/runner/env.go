package runner

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// env is the wall's time since the start of the run, and a worker's own generator.
type env struct {
	ctx   context.Context
	began time.Time
	rnd   *rand.Rand
}

func (r *run) env(worker int) *env {
	return &env{ctx: r.ctx, began: r.began, rnd: rand.New(rand.NewPCG(r.Seed, uint64(worker)+1))}
}

func (e *env) Now() time.Duration { return time.Since(e.began) }
func (e *env) Rand() *rand.Rand   { return e.rnd }

// late is how late Go's timers may fire, for the poller that they share with files counts
// milliseconds. The rest of a pause is waited for awake, or it would be measured as the database's.
// A sleep in the kernel is no way out: it keeps a processor from the other workers until the
// scheduler notices.
const late = 1100 * time.Microsecond

func (e *env) Sleep(d time.Duration) {
	end := e.Now() + d
	if d > late {
		t := time.NewTimer(d - late)
		defer t.Stop()
		select {
		case <-t.C:
		case <-e.ctx.Done():
			return
		}
	}
	for e.Now() < end {
		runtime.Gosched()
	}
}
