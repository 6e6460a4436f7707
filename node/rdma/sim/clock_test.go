package sim_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestClocksDrift(t *testing.T) {
	const drift, offset = 200, 5 * time.Millisecond
	o := sim.Options{Seed: 3, Drift: drift, ClockOffset: offset}
	s := open(t, o)
	shown, took := map[int]time.Duration{}, map[int]time.Duration{}
	for i := range 20 {
		s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			began, own := s.Now(), ep.Now()
			if ahead := own - began; ahead < -time.Microsecond || ahead > offset+time.Microsecond {
				t.Errorf("client %d begins %v ahead", i, ahead)
			}
			ep.Sleep(time.Second)
			took[i] = s.Now() - began
			if slept := ep.Now() - own; slept < time.Second-time.Microsecond || slept > time.Second+time.Microsecond {
				t.Errorf("client %d sleeps a second and its clock shows %v", i, slept)
			}
			b := ep.Batch()
			b.Read(rdma.At(0, 0), 8)
			if err := rdma.Do(ep, b, 20*time.Millisecond); err != nil {
				t.Error(err)
			}
			done := make([]time.Duration, 1) // a task reads its client's clock
			ep.Go("task", func(task rdma.Endpoint) { done[0] = task.Now() - ep.Now() })
			ep.Sleep(time.Millisecond)
			if done[0] != 0 {
				t.Errorf("a task's clock differs by %v", done[0])
			}
			shown[i] = ep.Now() - s.Now()
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	fast, slow, clocks := 0, 0, map[time.Duration]bool{}
	for i := range 20 {
		clocks[shown[i]] = true
		switch off := took[i] - time.Second; {
		case off < -drift*time.Microsecond-time.Microsecond || off > drift*time.Microsecond+time.Microsecond:
			t.Errorf("client %d: a second of its clock takes %v", i, took[i])
		case off < -10*time.Microsecond:
			fast++
		case off > 10*time.Microsecond:
			slow++
		}
	}
	if fast < 4 || slow < 4 || len(clocks) < 18 {
		t.Errorf("%d clocks are fast, %d slow, %d differ", fast, slow, len(clocks))
	}
}

func TestWaitLimitsAreOnTheWorkersClock(t *testing.T) {
	s := open(t, sim.Options{Seed: 4, Drift: 1e5, MinLatency: time.Hour, MaxLatency: time.Hour, Limit: 10 * time.Hour})
	s.Go("client", func(ep rdma.Endpoint) {
		b := ep.Batch()
		b.Read(rdma.At(0, 0), 8)
		ep.Post(b)
		began, own := s.Now(), ep.Now()
		if err := ep.Wait(b, rdma.All, time.Second); !errors.Is(err, rdma.ErrTimeout) {
			t.Error(err)
		}
		if waited := ep.Now() - own; waited < 980*time.Millisecond || waited > 1020*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
		if passed := s.Now() - began; passed > 999*time.Millisecond && passed < 1001*time.Millisecond {
			t.Errorf("%v have passed; the clock does not drift", passed)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

// TestClocksDrawApart: what a worker draws does not depend on whether clocks drift.
func TestClocksDrawApart(t *testing.T) {
	draw := func(o sim.Options) (n uint64, at time.Duration) {
		o.Seed, o.FlyProb = 9, 0.5
		s := open(t, o)
		s.Go("client", func(ep rdma.Endpoint) {
			for range 20 {
				faa(ep, rdma.At(0, 0))
			}
			n = ep.Rand().Uint64()
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		return n, s.Now()
	}
	n, at := draw(sim.Options{})
	if m, then := draw(sim.Options{Drift: 100, ClockOffset: time.Second}); m != n || then != at {
		t.Errorf("drew %d by %v, and %d by %v with clocks that drift", n, at, m, then)
	}
}
