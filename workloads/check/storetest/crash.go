package storetest

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// before is what a key has gone through when the victim's operation begins.
type before int

const (
	fresh before = iota
	there
	deleted
)

func (b before) String() string { return [...]string{"a fresh", "a present", "a deleted"}[b] }

// maxVerbs bounds the enumeration: no operation sends as many.
const maxVerbs = 2000

// everyCrash lets a client crash after each verb of each kind of operation, and of the Close behind it, while others
// work on the same key.
func (h *Harness) everyCrash(seed uint64, t *tally) error {
	for _, kind := range []check.Kind{check.Get, check.Insert, check.Update, check.Delete} {
		for b := fresh; b <= deleted; b++ {
			crashes := uint64(0)
			for ; ; crashes++ {
				if crashes == maxVerbs {
					return fmt.Errorf("%s on %s key does not end within %d verbs", kind, b, maxVerbs)
				}
				crashed, err := h.crashOnce(kind, b, seed, crashes, t)
				if err != nil {
					return fmt.Errorf("crash after verb %d of %s on %s key: %w", crashes, kind, b, err)
				}
				if !crashed {
					break
				}
			}
			if crashes == 0 {
				return fmt.Errorf("%s on %s key sends no verb", kind, b)
			}
			t.crashes.Add(int64(crashes))
		}
	}
	return nil
}

// crashOnce has the victim crash after the k-th verb of its operation, if it sends as many before it is closed.
func (h *Harness) crashOnce(kind check.Kind, b before, seed, k uint64, t *tally) (crashed bool, err error) {
	l := load{workers: 2, keys: 2, ops: 5, seed: seed, maxValue: min(h.MaxValue, 200), pause: 4 * time.Microsecond}
	c, err := h.scene(l)
	if err != nil {
		return false, err
	}
	var prepared, begun bool // coroutines share them: no two run at a time
	prepare := func(w int, r *check.Recorder) {
		if b != fresh {
			r.Insert(l.key(0), check.MakeValue(nil, w, 1000, 40))
		}
		if b == deleted {
			r.Delete(l.key(0))
		}
		prepared = true
	}
	self := seed%2 == 0 // an even seed's victim knows the key from before
	var when func()
	victim := c.enter("victim", func(w int, r *check.Recorder, ep rdma.Endpoint) {
		if self {
			prepare(w, r)
		}
		for !prepared {
			ep.Sleep(time.Microsecond)
		}
		begun = true
		when()
		l.do(r, kind, l.key(0), check.MakeValue(nil, w, 1001, 90))
	})
	when = func() { c.s.CrashAt(victim, victim.Sent()+k) }
	for i := range l.workers {
		c.enter(fmt.Sprintf("worker %d", i), func(w int, r *check.Recorder, ep rdma.Endpoint) {
			if i == 0 && !self {
				prepare(w, r)
			}
			for !begun {
				ep.Sleep(time.Microsecond)
			}
			l.work(w, r, ep)
		})
	}
	err = c.end(t)
	return victim.Crashed(), err
}
