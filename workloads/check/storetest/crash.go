package storetest

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
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

// victim is what a client is doing when it crashes.
type victim struct {
	kind  check.Kind
	key   before
	alone bool // no other worker runs meanwhile, which might mend what it leaves
}

func (c victim) String() string {
	s := fmt.Sprintf("%s on %s key", c.kind, c.key)
	if c.alone {
		s += ", alone"
	}
	return s
}

// everyCrash lets a client crash after each verb of each kind of operation, and of the Close behind
// it, alone and while others work on the same key.
func (h *Harness) everyCrash(seed uint64, t *tally) error {
	for _, kind := range []check.Kind{check.Get, check.Insert, check.Update, check.Delete} {
		for key := fresh; key <= deleted; key++ {
			for _, alone := range []bool{true, false} {
				if err := h.eachVerb(victim{kind, key, alone}, seed, t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (h *Harness) eachVerb(c victim, seed uint64, t *tally) error {
	for k := range uint64(maxVerbs) {
		crashed, err := h.crashOnce(c, seed, k, t)
		if err != nil {
			return fmt.Errorf("crash after verb %d of %s: %w", k, c, err)
		}
		if !crashed && k == 0 {
			return fmt.Errorf("%s sends no verb", c)
		}
		if !crashed {
			return nil
		}
	}
	return fmt.Errorf("%s does not end within %d verbs", c, maxVerbs)
}

// crashOnce has the victim crash after the k-th verb of its operation, if it sends as many before
// it is closed.
func (h *Harness) crashOnce(at victim, seed, k uint64, t *tally) (crashed bool, err error) {
	l := load{workers: 2, keys: 2, ops: 5, seed: seed, maxValue: min(h.MaxValue, 200), pause: 4 * time.Microsecond}
	if at.alone {
		l.workers, l.ops = 1, 0
	}
	c, err := h.scene(l)
	if err != nil {
		return false, err
	}
	var prepared, begun bool // coroutines share them: no two run at a time
	prepare := func(w int, r *check.Recorder) {
		if at.key != fresh {
			r.Insert(l.key(0), check.MakeValue(nil, w, 1000, 40))
		}
		if at.key == deleted {
			r.Delete(l.key(0))
		}
		prepared = true
	}
	self := seed%2 == 0 // an even seed's victim knows the key from before
	var dies *sim.Worker
	dies = c.enter("victim", func(w int, r *check.Recorder, ep rdma.Endpoint) {
		if self {
			prepare(w, r)
		}
		for !prepared {
			ep.Sleep(time.Microsecond)
		}
		begun = true
		c.s.CrashAt(dies, dies.Sent()+k)
		_ = at.kind.Do(r, l.key(0), check.MakeValue(nil, w, 1001, 90))
	})
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
	return dies.Crashed(), err
}
