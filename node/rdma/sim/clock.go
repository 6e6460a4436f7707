package sim

import (
	"math"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/random"
)

// clock is a client's: it may be off, and run fast or slow. Its tasks read the same one.
type clock struct {
	// Both are drawn once, when the client begins. A StepFault adds to off later.
	rate int64 // parts in 1e9 that it runs fast; negative: slow
	off  int64 // ns
}

// setClock draws a client's clock, from a generator of its own: whether clocks drift changes no
// other draw. Half of the clocks are slow, on average; none is behind at the beginning.
func (w *Worker) setClock(stream uint64) {
	o := &w.s.opts
	if o.Drift <= 0 && o.ClockOffset <= 0 {
		return
	}
	// The constant, "clock" in ASCII, keeps this generator apart from the worker's two others.
	var g random.Generator
	g.Seed(o.Seed, random.Mix(stream^0x636c6f636b))
	// Drift is in parts in a million, and rate in parts in 1e9.
	most := int64(o.Drift * 1000)
	w.clock = clock{rate: g.UpTo(2*most) - most, off: g.UpTo(int64(o.ClockOffset))}
}

// read returns what the clock shows at virtual time t. Dividing by 1000 first keeps the product
// within 64 bits, for a drift of a percent and times of days.
func (c *clock) read(t int64) int64 { return t + t/1000*c.rate/1e6 + c.off }

// lasts returns how long the clock takes to go on by d. It is the inverse of rate to first order:
// the error is d times the square of the rate. A step of the clock does not shorten a wait.
func (c *clock) lasts(d int64) int64 { return d - d/1000*c.rate/1e6 }

// Now is the worker's clock; outside Run, the virtual time. Looking at it takes none, so a worker
// that does nothing else would never end.
func (e *endpoint) Now() time.Duration {
	w := e.s.current
	if e.s.closing() || w == nil {
		return e.s.Now()
	}
	w.spin(1)
	// Posting takes the core's time at once, and virtual time stands meanwhile: the worker sees the
	// time at which its core is through.
	return time.Duration(w.root.clock.read(max(e.s.now(), w.core.busy)))
}

// arms wakes w when its clock has gone on by d, unless that is for ever. It begins when the
// worker's core is through with what it has posted. It takes poll at the least, also when d is
// negative.
func (s *scheduler) arms(w *Worker, d time.Duration) {
	from := max(s.now(), w.core.busy)
	// The first bound keeps the sum below within 64 bits, the second what lasts adds for a fast or
	// slow clock. No alarm is set: only what the worker waits for wakes it.
	if d >= rdma.Forever-time.Duration(from) || d > math.MaxInt64/2 {
		return
	}
	s.arm(w, from+w.root.clock.lasts(int64(max(d, poll))))
}
