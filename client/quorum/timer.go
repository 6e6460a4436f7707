package quorum

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// timer decides which replicas are slow: those that take several times as long as a step usually
// does on this fabric. One step in measured is timed. The timer follows shorter times quickly and
// longer ones slowly, so that a dead node, for which each step that meets it waits, does not drive
// it up.
type timer struct {
	// How long a step waits before it is wide: slowTrips * usual, within its bounds, unless fixed.
	slow time.Duration
	// The options set slow.
	fixed bool
	// How long a step usually takes; 0: none was timed.
	usual time.Duration
	// The steps that began; it may wrap.
	steps uint
}

const (
	// slow is so many times usual.
	slowTrips = 8
	// leastSlow is several trips of an RNIC, and the first value; mostSlow bounds what a wrong
	// value costs: no more than an operation over a distant network.
	leastSlow = 16 * time.Microsecond
	mostSlow  = 10 * time.Millisecond
	// One step of so many is timed.
	measured = 64
)

// follow derives slow from usual.
func (t *timer) follow() {
	if !t.fixed {
		t.slow = min(max(slowTrips*t.usual, leastSlow), mostSlow)
	}
}

// unmeasured stands for the beginning of a step that is not timed.
const unmeasured = time.Duration(-1 << 63)

// begin returns when a step that is timed begins, or else unmeasured. The clock is read for timed
// steps only; a worker's first one is.
func (t *timer) begin(env rdma.Env) time.Duration {
	t.steps++
	if t.fixed || t.steps%measured != 1 {
		return unmeasured
	}
	return env.Now()
}

// end takes a measurement, which changes usual by a quarter at most. So a wrong one, such as after
// the clock was set, is corrected by later ones. Only steps that succeed are measured. One that is
// wide by then counts as well: its time has the wait for the slow node in it, hence the bound of
// twice usual.
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
