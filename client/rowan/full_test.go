package rowan_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestFull: when a pool is full, writes are refused in time, and certainly. DELs go on; what they
// leave is collected, and there is room again. What is there is never lost.
func TestFull(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), full)
}

func full(t *testing.T, k kv.Kind) {
	o := small(k)
	o.Workers = 1
	for _, size := range []int{1, 300} {
		c, err := newCluster(o)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := c.simulate(sim.Options{Seed: 1, MTU: mtu, CountRings: true}, func(ep rdma.Endpoint) {
			store, err := c.open(ep, 100*time.Millisecond)
			if err == nil {
				err = c.fillAndEmpty(store, size, t.Logf)
			}
			if err != nil {
				c.fail("%w", err)
			}
		})
		if err := errors.Join(s.Run(), c.wrong); err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

// TestFullCrowd: while more clients than a mailbox has buffers insert into a full pool, DELs go on.
// Servers that kept the INSERTs for long would have no buffer for them.
func TestFullCrowd(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), fullCrowd)
}

func fullCrowd(t *testing.T, k kv.Kind) {
	o := small(k)
	o.Workers, o.FullAfter = 1, 50*time.Millisecond
	c, err := newCluster(o)
	if err != nil {
		t.Fatal(err)
	}
	const clients, deletes = 60, 30 // a mailbox has 16 buffers
	value := check.MakeValue(nil, 1, 1, 1000)
	full, over, refused := false, false, 0
	bodies := []func(ep rdma.Endpoint){func(ep rdma.Endpoint) {
		store, err := c.open(ep, time.Second)
		for n := 0; err == nil; n++ {
			err = store.Insert(fmt.Appendf(nil, "key-%d", n), value)
		}
		if full = true; !errors.Is(err, client.ErrFull) {
			c.fail("fill: %w", err)
			return
		}
		ep.Sleep(10 * time.Millisecond) // by now the others wait
		worst := time.Duration(0)
		for n := range deletes {
			began := ep.Now()
			if err := store.Delete(fmt.Appendf(nil, "key-%d", n)); err != nil {
				c.fail("delete: %w", err)
			}
			worst = max(worst, ep.Now()-began)
		}
		if over = true; worst > o.FullAfter/2 {
			t.Errorf("the slowest DELETE took %v", worst)
		}
	}}
	for i := range clients {
		bodies = append(bodies, func(ep rdma.Endpoint) {
			store, err := c.open(ep, time.Second)
			for !full {
				ep.Sleep(time.Millisecond)
			}
			for n := 0; err == nil && !over; n++ {
				if err = store.Insert(fmt.Appendf(nil, "key-%d-%d", i, n), value); errors.Is(err, client.ErrFull) {
					err, refused = nil, refused+1
				}
			}
			if err != nil {
				c.fail("insert: %w", err)
			}
		})
	}
	s, _ := c.simulate(sim.Options{Seed: 1, MTU: mtu, CountRings: true}, bodies...)
	defer s.Close()
	if err := errors.Join(s.Run(), c.wrong); err != nil {
		t.Fatal(err)
	}
	if refused == 0 {
		t.Error("the pool was not full")
	}
}

// TestEmptied: all pairs of a full pool can be deleted, one by one, of sizes that are drawn. Its
// servers have two workers and two cleaners each, so entries go to many logs, of which each fills a
// segment of its own.
func TestEmptied(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	eachSeed(t, 12, 60, func(k kv.Kind, seed uint64) error { return emptied(crowded(k), seed, 0, false) })
}

// TestEmptiedAtRandom: so can those of many segments and of entries of several blocks, in any
// order. Of most segments the last entry ends in the next one.
func TestEmptiedAtRandom(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, segments := range []int{300, 600} {
		o := small(kv.Rowan)
		o.Log.Segments = segments
		if err := emptied(o, 1, 700, true); err != nil {
			t.Errorf("%d segments: %v", segments, err)
		}
	}
}

// emptied fills a pool with values of at least some bytes, and deletes all.
func emptied(o kv.Options, seed uint64, least int, shuffled bool) error {
	return alone(o, seed, func(w *worker) error {
		if _, err := w.fill(least); err != nil {
			return err
		}
		if shuffled {
			w.shuffle()
		}
		return w.leave(0)
	})
}

// TestRefilled: a full pool takes pairs again when a fifth of all are deleted in any order, though
// nearly every segment has live ones.
func TestRefilled(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		o := small(k)
		o.Log.Segments = 200
		err := alone(o, 1, func(w *worker) error {
			n, err := w.fill(0)
			if err != nil {
				return err
			}
			w.shuffle()
			left := n * 4 / 5
			if err := w.leave(left); err != nil {
				return err
			}
			again, err := w.fill(0)
			if err == nil && again < (n-left)*7/10 {
				err = fmt.Errorf("full with %d pairs, of which %d were deleted, and %d new ones", n, n-left, again)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// alone has one client use a pool.
func alone(o kv.Options, seed uint64, body func(w *worker) error) error {
	c, err := newCluster(fit(o))
	if err != nil {
		return err
	}
	s, _ := c.simulate(sim.Options{Seed: seed, MTU: mtu, CountRings: true}, func(ep rdma.Endpoint) {
		store, err := c.open(ep, patience)
		if err == nil {
			w := worker{soaked: &soaked{real: &real{cluster: c}}, rng: rand.New(rand.NewPCG(seed, 1)), store: store,
				there: map[int]int{}}
			err = body(&w)
		}
		if err != nil {
			c.fail("%w", err)
		}
	})
	defer s.Close()
	return errors.Join(s.Run(), c.wrong)
}

// shuffle has pairs deleted in any order.
func (w *worker) shuffle() {
	w.rng.Shuffle(len(w.order), func(i, j int) { w.order[i], w.order[j] = w.order[j], w.order[i] })
}

// leave deletes pairs until some are left.
func (w *worker) leave(some int) error {
	for refused := 0; len(w.order) > some; {
		switch err := w.remove(); {
		case err == nil:
			refused = 0
		case refused == 40 || !errors.Is(err, client.ErrFull): // each waits for FullAfter
			return fmt.Errorf("delete all but %d, of which %d are left: %w", some, len(w.order), err)
		default:
			refused++
		}
	}
	return nil
}

// fillAndEmpty fills a pool with values of up to a size, and deletes all, again and again, with
// other keys each time.
func (c *cluster) fillAndEmpty(s client.Store, size int, logf func(string, ...any)) error {
	most := 0
	for round := range 5 {
		name := func(i int) []byte { return fmt.Appendf(nil, "key-%d-%d", round, i) }
		value := func(i int) []byte { return check.MakeValue(nil, round+1, i+1, 1+i*7919%size) }
		n, refused := 0, 0
		for refused < 20 {
			err := s.Insert(name(n), value(n))
			switch {
			case errors.Is(err, client.ErrFull):
				refused++
			case err != nil:
				return fmt.Errorf("round %d, insert %d: %w", round, n, err)
			default:
				n++
			}
			if n > 10_000 {
				return errors.New("the pool is never full")
			}
		}
		logf("round %d: full with %d pairs, %+v", round, n, c.running[0].Stats())
		// Tombstones that are left take less than half of what pairs do: see package kv.
		if n < most*2/3 || n < 100 {
			return fmt.Errorf("round %d: full with %d pairs, and with %d before", round, n, most)
		}
		most = max(most, n)
		for i := range n {
			if got, err := s.Get(name(i)); err != nil || !bytes.Equal(got, value(i)) {
				return fmt.Errorf("round %d: pair %d of a full pool: %w", round, i, err)
			}
		}
		for i := range n {
			if err := s.Delete(name(i)); err != nil {
				return fmt.Errorf("round %d: delete pair %d of %d from a full pool: %w", round, i, n, err)
			}
		}
	}
	return nil
}
