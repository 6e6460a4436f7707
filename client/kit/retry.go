package kit

import (
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Pause is a formula of back-off: how long a worker waits after its n-th failed attempt, counted
// from 0. A formula that draws random numbers uses the worker's generator r, and no other.
type Pause func(n int, r *rand.Rand) time.Duration

// Doubling returns a formula with pauses that begin with first and double with each attempt, up to
// most.
func Doubling(first, most time.Duration) Pause {
	return func(n int, _ *rand.Rand) time.Duration {
		pause := first
		for ; n > 0 && pause < most; n-- {
			pause *= 2
		}
		return min(pause, most)
	}
}

// Spread returns a formula with random pauses between least and least plus what another formula
// returns, so that workers that collided do not collide again and again. It draws once an attempt.
func Spread(least time.Duration, over Pause) Pause {
	return func(n int, r *rand.Rand) time.Duration {
		return least + time.Duration(r.Int64N(int64(max(over(n, r), 1))))
	}
}

// Unless returns a formula that is another one, but without a pause once late reports that the
// worker has waited for long. From then on the worker tries as long as it has a processor: if it
// sleeps it may find each time that others were faster. What it tries takes at least a trip, which
// bounds the rate.
func Unless(late func() bool, p Pause) Pause {
	return func(n int, r *rand.Rand) time.Duration {
		if late() {
			return 0
		}
		return p(n, r)
	}
}

// Retry paces an operation that is tried until it succeeds or its time is over. Each operation has
// its own formula: waiting for a round trip of another client and waiting for a master differ by
// orders of magnitude.
//
//	for r := s.retry(); ; {
//		if done, err := s.try(); done || err != nil {
//			return err
//		}
//		if !r.Again() {
//			return errTimeout
//		}
//	}
type Retry struct {
	// The clock and the generator.
	Env   rdma.Env
	Pause Pause
	// Over reports whether the operation's time is over. It is called before each pause. nil: it
	// never is.
	Over func() bool
	// Tries counts the pauses so far.
	Tries int
	// Total counts the pauses of all Retries that share it. nil: they are not counted.
	Total *uint64
}

// Again pauses before the next attempt. It reports false, without a pause, if the time is over.
func (r *Retry) Again() bool {
	if r.Over != nil && r.Over() {
		return false
	}
	r.Wait()
	return true
}

// Wait pauses before the next attempt for as long as the formula says, whether or not the time is
// over.
func (r *Retry) Wait() {
	if pause := r.Pause(r.Tries, r.Env.Rand()); pause > 0 {
		r.Env.Sleep(pause)
	}
	r.Tries++
	if r.Total != nil {
		*r.Total++
	}
}
