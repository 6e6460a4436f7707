package quorum

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// timer finds out which replicas are slow: those that take some times as long as a step usually
// does, on whatever fabric this is. One step in so many is measured. The timer falls with what it
// measures and rises slowly, so that a dead node, which each step that meets it waits for, does not
// drive it up.
type timer struct {
	slow  time.Duration
	fixed bool
	usual time.Duration // that a step takes; 0: none was measured
	steps uint
}

const (
	slowTrips = 8
	// leastSlow is several trips of an RNIC, and the first guess; mostSlow keeps a mistake from
	// costing more than an operation over a far network does.
	leastSlow = 16 * time.Microsecond
	mostSlow  = 10 * time.Millisecond
	measured  = 64 // steps, of which one is measured
)

// follow sets the timer to what is usual.
func (t *timer) follow() {
	if !t.fixed {
		t.slow = min(max(slowTrips*t.usual, leastSlow), mostSlow)
	}
}

// unmeasured is the beginning of a step that is not measured.
const unmeasured = time.Duration(-1 << 63)

func (t *timer) begin(env rdma.Env) time.Duration {
	t.steps++
	if t.fixed || t.steps%measured != 1 {
		return unmeasured
	}
	return env.Now()
}

// end takes a measurement; a clock that was set makes it a wrong one, of which others mend the
// effect.
func (t *timer) end(env rdma.Env, began time.Duration) {
	if began == unmeasured {
		return
	}
	took := max(env.Now()-began, 1)
	if t.usual == 0 {
		t.usual = took
	}
	t.usual += (min(took, 2*t.usual) - t.usual) / 4
	t.follow()
}
