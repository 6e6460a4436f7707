package kit

import (
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Pause is a formula of back-off: how long a worker waits behind its n-th try in vain, counted from
// 0. A formula that draws uses the worker's generator r, and no other.
type Pause func(n int, r *rand.Rand) time.Duration

// Doubling returns the formula of a pause that is first at the beginning and doubles with each try,
// up to most.
func Doubling(first, most time.Duration) Pause {
	return func(n int, _ *rand.Rand) time.Duration {
		pause := first
		for ; n > 0 && pause < most; n-- {
			pause *= 2
		}
		return min(pause, most)
	}
}

// Spread returns the formula of a pause that is drawn from least on, over as much as another
// formula says: so that workers that met once do not meet again and again. It draws once a try.
func Spread(least time.Duration, over Pause) Pause {
	return func(n int, r *rand.Rand) time.Duration {
		return least + time.Duration(r.Int64N(int64(max(over(n, r), 1))))
	}
}

// Unless returns the formula of a pause that another formula says, or of none at all where late
// reports that the worker has waited for long. Then it goes on for as long as it has a processor:
// one that sleeps may find, each time that it gets a processor again, that others were faster. What
// it waits for takes a trip at least, which bounds how often it tries.
func Unless(late func() bool, p Pause) Pause {
	return func(n int, r *rand.Rand) time.Duration {
		if late() {
			return 0
		}
		return p(n, r)
	}
}

// Retry paces an operation that is tried until it succeeds or its time is over. The formula is the
// operation's own: what waits for a round trip of another client, and what waits for a master,
// differ by orders of magnitude.
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
	Env   rdma.Env // whose clock it is, and whose generator
	Pause Pause
	// Over reports whether the operation's time is over. It is asked before each pause. nil: it never
	// is.
	Over func() bool
	// Tries counts the pauses so far.
	Tries int
	// Total counts the pauses of all Retries that share it. nil: they are not counted.
	Total *uint64
}

// Again pauses before the next try; false: time is over, and it does not pause.
func (r *Retry) Again() bool {
	if r.Over != nil && r.Over() {
		return false
	}
	r.Wait()
	return true
}

// Wait pauses before the next try, for as long as the formula says, whatever time is left.
func (r *Retry) Wait() {
	if pause := r.Pause(r.Tries, r.Env.Rand()); pause > 0 {
		r.Env.Sleep(pause)
	}
	r.Tries++
	if r.Total != nil {
		*r.Total++
	}
}
