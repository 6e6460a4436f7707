package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/explore"
)

// scene is one run in virtual time.
type scene struct {
	h         *Harness
	load      load
	s         *sim.Sim
	servers   explore.Servers // nil: there are none
	recorders []*check.Recorder
	workers   []*sim.Worker
	errs      []error
}

func (h *Harness) scene(l load) (*scene, error) {
	s, servers, err := h.sim(l.seed)
	if err != nil {
		return nil, err
	}
	return &scene{h: h, load: l, s: s, servers: servers}, nil
}

// crashed reports whether a worker has crashed so far.
func (c *scene) crashed() bool { return slices.ContainsFunc(c.workers, (*sim.Worker).Crashed) }

// enter starts a worker that records what f does. A worker that crashes does not come to the end of
// it.
func (c *scene) enter(name string, f func(w int, r *check.Recorder, ep rdma.Endpoint)) *sim.Worker {
	w := len(c.recorders)
	c.recorders = append(c.recorders, nil)
	body := func(ep rdma.Endpoint) {
		s, err := c.h.open(c.s, ep)
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s: open store: %w", name, err))
			return
		}
		r := check.NewRecorder(w, s, ep.Now)
		c.recorders[w] = r
		f(w, r, ep)
		if err := s.Close(); err != nil {
			if !c.crashed() || !errors.Is(err, client.ErrUncertain) {
				c.errs = append(c.errs, fmt.Errorf("%s: close: %w", name, err))
			}
			// Its identity must not be given back (client.Leave); a worker that returns gives back
			// only what was not fenced.
			if err := c.s.Revoke(ep.Client()); err != nil {
				c.errs = append(c.errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	c.workers = append(c.workers, c.s.Go(name, body))
	return c.workers[w]
}

// end runs the scene, then has one more worker read and write every key, and judges it all.
func (c *scene) end(t *tally) error {
	defer c.s.Close()
	err := c.s.Run()
	if err == nil {
		c.enter("last", func(w int, r *check.Recorder, ep rdma.Endpoint) {
			for i := range c.load.keys {
				key := c.load.key(i)
				r.Get(key)
				r.Update(key, check.MakeValue(nil, w, i+1, 16))
				r.Get(key)
			}
		})
		err = c.s.Run()
	}
	if err == nil && c.servers != nil {
		err = explore.Dismiss(c.s, c.servers)
	}
	if err = errors.Join(append(c.errs, err)...); err != nil {
		return err
	}
	hist := merge(c.recorders)
	t.ops.Add(int64(len(hist)))
	t.oks.Add(int64(len(hist.With(check.OK))))
	if err := errors.Join(judge(hist, c.crashed(), 0), c.late(hist)); err != nil {
		return err
	}
	return c.h.sound(c.s, c.crashed())
}

// late returns an error for an operation that took longer than Longest although no worker crashed.
func (c *scene) late(h check.History) error {
	if c.h.Longest == 0 || c.crashed() {
		return nil
	}
	for i := range h {
		if d := h[i].Return - h[i].Call; d > c.h.Longest {
			return fmt.Errorf("took %v without a crash: %s", d, &h[i])
		}
	}
	return nil
}

// loadOf derives a small load from a seed: enough to collide in, small enough to read.
func (h *Harness) loadOf(seed uint64) load {
	rng := rand.New(rand.NewPCG(seed, 0x10ad))
	return load{
		workers: 2 + rng.IntN(4), keys: 1 + rng.IntN(3), ops: 4 + rng.IntN(12), seed: seed,
		maxValue: h.MaxValue, pause: time.Duration(rng.IntN(3)) * 3 * time.Microsecond,
	}
}

// simHistories is one seed without crashes.
func (h *Harness) simHistories(seed uint64, t *tally) error {
	return shortest(h.loadOf(seed), func(l load) error { return h.simHistory(l, 0, t) })
}

// simCrashes is one seed in which one or two clients crash somewhere.
func (h *Harness) simCrashes(seed uint64, t *tally) error {
	return shortest(h.loadOf(seed), func(l load) error { return h.simHistory(l, 1+int(seed%2), t) })
}

func (h *Harness) simHistory(l load, crashes int, t *tally) error {
	c, err := h.scene(l)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(l.seed, 0xdead))
	for i := range l.workers {
		w := c.enter(fmt.Sprintf("worker %d", i), l.work)
		if i < crashes {
			c.s.CrashAt(w, rng.Uint64N(uint64(l.ops)*10+10))
		}
	}
	return c.end(t)
}

// shortest runs a load and, when it fails, looks for a shorter one that fails, too. The same seed
// finds the same.
func shortest(l load, run func(load) error) error {
	err := run(l)
	if err == nil {
		return nil
	}
	for ops := 1; ops < l.ops; ops += 1 + ops/4 {
		for workers := 2; workers <= l.workers; workers++ {
			less := l
			less.ops, less.workers = ops, workers
			if e := run(less); e != nil {
				return fmt.Errorf("%d workers with %d operations each on %d keys: %w", workers, ops, l.keys, e)
			}
		}
	}
	return fmt.Errorf("%d workers with %d operations each on %d keys: %w", l.workers, l.ops, l.keys, err)
}
