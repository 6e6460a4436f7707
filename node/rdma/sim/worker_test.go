package sim_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestTasksGoOnInTheNextRun(t *testing.T) {
	s := open(t, sim.Options{})
	ticks, why := 0, error(nil)
	s.Go("client", func(ep rdma.Endpoint) {
		ep.Go("task", func(ep rdma.Endpoint) {
			for why == nil {
				b := ep.Batch()
				b.FetchAdd(rdma.At(0, 0), 1)
				why = rdma.Do(ep, b, rdma.Forever)
				ep.Sleep(time.Microsecond)
				ticks++
			}
		})
		ep.Sleep(time.Millisecond)
	})
	for run, sleep := range []time.Duration{0, time.Millisecond} {
		if run > 0 {
			s.Go("later", func(ep rdma.Endpoint) { ep.Sleep(sleep) })
		}
		before := ticks
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if ticks-before < 100 {
			t.Errorf("run %d: %d ticks", run, ticks-before)
		}
	}
	if err := s.Close(); err != nil || !errors.Is(why, rdma.ErrClosed) {
		t.Errorf("Close: %v; the task ended with %v", err, why)
	}
	if err := s.Run(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
}

// TestRunLandsWhatFliesButDoesNotResumeTasks: a busy task would keep it from coming to an end.
func TestRunLandsWhatFliesButDoesNotResumeTasks(t *testing.T) {
	s := open(t, sim.Options{MaxEvents: 10_000})
	verbs := uint64(0)
	s.Go("client", func(ep rdma.Endpoint) {
		ep.Go("task", func(ep rdma.Endpoint) {
			for n := faa(ep, rdma.At(0, 0)); n != 0 && n < 1e5; n = faa(ep, rdma.At(0, 0)) {
				verbs = n
			}
		})
		ep.Sleep(time.Millisecond)
	})
	for range 2 {
		before, start := verbs, s.Events()
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if verbs-before < 100 || s.Events()-start > 10_000 || load(t, s, rdma.At(0, 0)) > verbs+1 {
			t.Errorf("%d verbs, %d events; %d landed", verbs-before, s.Events()-start, load(t, s, rdma.At(0, 0)))
		}
		s.Go("later", func(ep rdma.Endpoint) { ep.Sleep(time.Millisecond) })
	}
}

func TestAnOldLimitDoesNotEndALaterWait(t *testing.T) {
	s := open(t, sim.Options{})
	s.Go("client", func(ep rdma.Endpoint) {
		for range 3 {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			if ep.Post(b) != nil || ep.Wait(b, rdma.All, 10*time.Microsecond) != nil {
				t.Error("a verb failed")
			}
		}
		b := ep.Batch()
		for range 30 { // each waits for the one before it: longer than the limit from before
			b.FetchAdd(rdma.At(0, 0), 1).Fence = true
		}
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Error(err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersOfOneNameDrawDifferently(t *testing.T) {
	s := open(t, sim.Options{})
	seen := map[uint64]bool{}
	for range 5 {
		s.Go("worker", func(ep rdma.Endpoint) { seen[ep.Rand().Uint64()] = true })
	}
	if err := s.Run(); err != nil || len(seen) != 5 {
		t.Errorf("five workers drew %d numbers (%v)", len(seen), err)
	}
}

// TestFailedTestInAWorker: t.Fatal in a worker is runtime.Goexit, which has to end the goroutine
// that called Run.
func TestFailedTestInAWorker(t *testing.T) {
	s := open(t, sim.Options{})
	done := make(chan bool)
	deferred := false
	go func() {
		defer close(done)
		s.Go("other", func(ep rdma.Endpoint) {
			defer func() { deferred = true }()
			ep.Sleep(time.Hour / 2)
		})
		s.Go("fatal", func(ep rdma.Endpoint) {
			ep.Sleep(time.Millisecond)
			runtime.Goexit()
		})
		s.Run()
		done <- true
	}()
	if <-done {
		t.Error("Run returned")
	}
	if err := s.Run(); err != nil || !deferred || s.Now() < time.Hour/2 {
		t.Errorf("the others do not go on: %v at %v", err, s.Now())
	}
}

func TestSpinningIsEnded(t *testing.T) {
	for _, f := range []func(ep rdma.Endpoint){
		func(ep rdma.Endpoint) {
			for until := ep.Now() + time.Second; ep.Now() < until; {
			}
		},
		func(ep rdma.Endpoint) {
			for {
				b := ep.Batch()
				ep.Post(b)
				b.Release()
			}
		},
	} {
		s := open(t, sim.Options{})
		s.Go("spinner", f)
		if err := s.Run(); !errors.Is(err, sim.ErrPanic) || !strings.Contains(err.Error(), "without a wait") {
			t.Errorf("error is %v", err)
		}
	}
}

func TestPollingEnds(t *testing.T) {
	s := open(t, sim.Options{})
	polls := 0
	s.Go("poller", func(ep rdma.Endpoint) {
		b := ep.Batch()
		b.FetchAdd(rdma.At(0, 0), 1)
		ep.Post(b)
		for ep.Wait(b, rdma.All, 0) != nil {
			polls++
		}
		for until := ep.Now() + time.Microsecond; ep.Now() < until; polls++ {
			ep.Sleep(0)
		}
	})
	if err := s.Run(); err != nil || polls == 0 || polls > 1000 {
		t.Errorf("%d polls, %v", polls, err)
	}
}

func TestEndpointOpenedByAWorker(t *testing.T) {
	s := open(t, sim.Options{})
	w := s.Go("client", func(ep rdma.Endpoint) {
		own, err := s.Open("extra")
		if err != nil {
			t.Error(err)
			return
		}
		before := ep.Now()
		if faa(own, rdma.At(0, 0)) != 1 || ep.Now() == before {
			t.Errorf("a verb of an endpoint opened in Run took %v", ep.Now()-before)
		}
		ep.Sleep(time.Second)
	})
	s.CrashAfter(w, time.Millisecond)
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Clients() {
		if c.Alive {
			t.Errorf("%q outlives the worker that opened it", c.Name)
		}
	}
	if len(s.Clients()) != 2 {
		t.Errorf("clients are %v", s.Clients())
	}
}

// holder returns the holder of an identity as the pool lists it.
func holder(s *sim.Sim, c rdma.ClientID) rdma.Client {
	for _, h := range s.Clients() {
		if h.ID == c {
			return h
		}
	}
	return rdma.Client{}
}

func TestForget(t *testing.T) {
	s := open(t, sim.Options{Clients: 3})
	dead := s.Go("dead", func(ep rdma.Endpoint) { faa(ep, rdma.At(0, 0)) })
	s.CrashAt(dead, 1)
	fenced := s.Go("fenced", func(ep rdma.Endpoint) { ep.Sleep(time.Second) })
	s.Go("master", func(ep rdma.Endpoint) {
		ep.Sleep(time.Millisecond)
		if err := s.Forget(holder(s, fenced.Client())); !errors.Is(err, rdma.ErrHeld) {
			t.Errorf("forget a client that is alive: %v", err)
		}
		if err := s.Revoke(fenced.Client()); err != nil {
			t.Error(err)
		}
		ep.Sleep(2 * time.Second)
		if n := len(s.Clients()); n != 3 {
			t.Errorf("%d clients are listed before the dead ones are forgotten", n)
		}
		for _, w := range []*sim.Worker{dead, fenced} {
			c := holder(s, w.Client())
			if err := s.Forget(c); err != nil {
				t.Error(err)
			}
			if err := s.Forget(c); err != nil {
				t.Errorf("forgotten twice: %v", err)
			}
			if next, err := s.Open("next"); err != nil || next.Client() != w.Client() {
				t.Errorf("the identity of %s is not used again: %v", w.Name(), err)
			}
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestTraceReadsAsProse(t *testing.T) {
	var lines []string
	s := open(t, sim.Options{
		MinLatency: time.Microsecond, MaxLatency: time.Microsecond, Handler: adder,
		Trace: func(e sim.Event) { lines = append(lines, e.String()) },
	})
	w := s.Go("client", func(ep rdma.Endpoint) {
		ep.Sleep(10*time.Microsecond - ep.Now())
		b := ep.Batch().As("commit")
		b.CompareSwap(rdma.At(0, 64), 0, 5)
		b.Read(rdma.At(0, 128), 20)
		b.FetchAdd(rdma.At(0, 3), 1)
		rdma.Do(ep, b, rdma.Forever)
		ep.Call(0, &rdma.Request{Step: "ask", Proc: 4}, rdma.Forever)
	})
	s.CrashAt(w, 4)
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	s.KillNode(0)
	s.Revoke(w.Client())
	want := `
        10µs  client [commit] posts 1.0 CAS 0:0x40 0x0 -> 0x5
        10µs  client [commit] posts 1.1 READ 0:0x80 20 bytes
        10µs  client [commit] posts 1.2 FAA 0:0x3 +0x1
        11µs  client [commit] lands 1.0 CAS 0:0x40 0x0 -> 0x5, was 0x0
        11µs  client [commit] lands 1.1 READ 0:0x80 20 bytes, words landed: 3
        12µs  client [commit] completes 1.2 FAA 0:0x3 +0x1, was 0x0: misaligned: memory access refused
        12µs  client [commit] completes 1.0 CAS 0:0x40 0x0 -> 0x5, was 0x0
        12µs  client [commit] completes 1.1 READ 0:0x80 20 bytes
        12µs  client [ask] calls at node 0, procedure 4
        12µs  client crashes
        13µs  client [ask] is served at node 0, procedure 4
        14µs  node 0 dies
        14µs  client is fenced off
`
	if got := "\n" + strings.Join(lines, "\n") + "\n"; got != want {
		t.Errorf("trace is%s", got)
	}
}
