package dtx

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// sleeper is an endpoint that does something instead of each pause, and whose clock a test sets.
type sleeper struct {
	rdma.Endpoint
	asleep func(d time.Duration)
	late   time.Duration
}

func (e *sleeper) Sleep(d time.Duration) { e.asleep(d) }

func (e *sleeper) Now() time.Duration { return e.Endpoint.Now() + e.late }

// TestPassedOn: a lock is passed on while a client waits for it, by its holder or to another
// client. The client looks as often as one that has just come.
func TestPassedOn(t *testing.T) {
	const passes, pauses = 20, 3
	f, l := pool(t, Shape{Roots: 1})
	a, r := l.Root(0), newRaw(t, f, l)
	founder, other := worker(t, f, l, Options{}), worker(t, f, l, Options{})
	must(t, set(founder, "there", a))
	was := r.lock(a)
	for _, holders := range [][]rdma.ClientID{{other.id}, {other.id, founder.id}} {
		ep, err := f.Open("waits")
		must(t, err)
		e := &sleeper{Endpoint: ep}
		w := open(t, e, l, Options{})
		n, longest := 0, time.Duration(0)
		pass := func() {
			if n++; n < passes*pauses {
				r.take(a, lockOf(holders[n/pauses%len(holders)], uint64(1000+n/pauses)))
			} else {
				r.take(a, was)
			}
		}
		r.take(a, lockOf(other.id, 1000))
		e.asleep = func(d time.Duration) { longest = max(longest, d); pass() }
		must(t, w.Await(a))
		if most := w.waits.Pause(pauses, nil); longest > most {
			t.Errorf("a client that is overtaken pauses for %v, want up to %v", longest, most)
		}
		must(t, w.Close())
	}
}

// TestLateAttempts: a transaction that other ones have overtaken for long makes no pauses between
// its attempts, and one that has just begun does.
func TestLateAttempts(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	ep, err := f.Open("late")
	must(t, err)
	e := &sleeper{Endpoint: ep}
	w := open(t, e, l, Options{})
	for _, c := range []struct{ late, most time.Duration }{{0, time.Second}, {w.opt.Timeout / 5, 0}} {
		w.trips.Begin()
		e.late += c.late
		slept := time.Duration(0)
		e.asleep = func(d time.Duration) { slept += d }
		r := w.conflicts
		for range 20 {
			r.Wait()
		}
		if slept > c.most || c.most > 0 && slept == 0 {
			t.Errorf("a transaction of %v pauses for %v, want up to %v", c.late, slept, c.most)
		}
	}
	must(t, w.Close())
}
