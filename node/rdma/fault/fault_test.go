package fault_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errOnPurpose = errors.New("on purpose")

// run runs worker on a hostile pool of two nodes.
func run(t *testing.T, seed uint64, worker func(s *sim.Sim, ep rdma.Endpoint)) {
	t.Helper()
	o := sim.Hostile(seed)
	o.Nodes = 2
	o.Handler = func(m rdma.Memory, r *rdma.Request) error { r.Ret[0] = m.FetchAdd(8, 1); return nil }
	s := sim.New(o)
	defer s.Close()
	s.Go("worker", func(ep rdma.Endpoint) { worker(s, ep) })
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func load(ep rdma.Endpoint, a rdma.Addr) uint64 {
	b := ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := rdma.Do(ep, b, rdma.Forever); err != nil {
		panic(err)
	}
	return binary.LittleEndian.Uint64(op.Buf)
}

// chains is a batch of n chains of a WRITE, an FAA and a READ behind a fence.
func chains(ep rdma.Endpoint, n int) *rdma.Batch {
	b := ep.Batch()
	for i := range n {
		a := rdma.At(i%2, uint64(64*(i+1)))
		p := b.Alloc(8)
		binary.LittleEndian.PutUint64(p, uint64(i+1))
		b.Chain()
		b.Write(a, p)
		b.FetchAdd(a.Add(8), uint64(i+1))
		b.Read(a.Add(8), 8).Fence = true
	}
	return b
}

func join(q rdma.Queue) error {
	_, err := q.Join()
	return err
}

func TestCrashPostsWhatComesBefore(t *testing.T) {
	const n = 8
	for k := uint64(1); k <= 3*n; k++ {
		run(t, k, func(s *sim.Sim, ep rdma.Endpoint) {
			calls := 0
			f := fault.New(ep, fault.Fault{At: k, Crash: func() { calls++ }})
			f.Go("task", func(own rdma.Endpoint) {
				own.Sleep(time.Millisecond)
				if err := rdma.Do(own, chains(own, 1), rdma.Forever); !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("a dead worker's task: %v", err)
				}
			})
			b := chains(f, n)
			if err := f.Post(b); !errors.Is(err, rdma.ErrClosed) || !f.Crashed() || calls != 1 || f.Sent() != k-1 {
				t.Errorf("crash at %d: %v, crashed %d times, %d verbs sent", k, err, calls, f.Sent())
			}
			b.Release() // a dead worker's defers run here; what it sent must not notice
			again := f.Batch()
			clear(again.Alloc(4000))
			again.FetchAdd(rdma.At(0, 0), 1)
			for _, err := range []error{
				f.Post(again), f.Wait(again, rdma.All, 1), f.Call(0, &rdma.Request{}, rdma.Forever),
				f.Go("late", func(rdma.Endpoint) { t.Error("a dead worker started a task") }), f.Close(), join(f),
			} {
				if !errors.Is(err, rdma.ErrClosed) {
					t.Errorf("crash at %d: a dead worker is answered %v", k, err)
				}
			}
			before := ep.Now()
			f.Sleep(time.Hour)
			ep.Sleep(5 * time.Millisecond)
			if d := ep.Now() - before; d != 5*time.Millisecond {
				t.Errorf("a dead worker sleeps for %v", d)
			}
			for i := range n {
				a := rdma.At(i%2, uint64(64*(i+1)))
				for part := range 2 {
					want := uint64(0)
					if uint64(3*i+part+1) < k {
						want = uint64(i + 1)
					}
					if got := load(ep, a.Add(uint64(8*part))); got != want {
						t.Errorf("crash at %d: verb %d left %d, want %d", k, 3*i+part+1, got, want)
					}
				}
			}
		})
	}
}

func TestFailedVerbIsNotPosted(t *testing.T) {
	const n = 8
	for k := 1; k <= 3*n; k++ {
		run(t, uint64(k), func(s *sim.Sim, ep rdma.Endpoint) {
			f := fault.New(ep, fault.Fault{At: uint64(k), Err: errOnPurpose},
				fault.Fault{At: 3*n + 1, Err: errOnPurpose})
			b := chains(f, n)
			if err := f.Post(b); err != nil {
				t.Error(err)
			}
			for c := range n + 1 {
				if err := f.Wait(b, c, rdma.Forever); err != nil || b.Done() < c {
					t.Errorf("fail %d: waited for %d chains, %d are complete (%v)", k, c, b.Done(), err)
				}
			}
			if err := b.Err(); !errors.Is(err, errOnPurpose) || !errors.Is(b.Op(k-1).Err, errOnPurpose) {
				t.Errorf("fail %d: the batch says %v, its op %v", k, err, b.Op(k-1).Err)
			}
			for i := range n {
				wrote, added := uint64(i+1), uint64(i+1)
				if k == 3*i+1 {
					wrote = 0
				}
				if k == 3*i+2 {
					added = 0
				}
				a := rdma.At(i%2, uint64(64*(i+1)))
				if w, x := load(ep, a), load(ep, a.Add(8)); w != wrote || x != added {
					t.Errorf("fail %d: chain %d left %d and %d, want %d and %d", k, i, w, x, wrote, added)
				}
				if got := binary.LittleEndian.Uint64(b.Op(3*i + 2).Buf); k != 3*i+3 && got != added {
					t.Errorf("fail %d: chain %d read %d, want %d", k, i, got, added)
				}
			}
			b.Release()
			next := f.Batch()
			next.FetchAdd(rdma.At(0, 0), 1)
			if err := rdma.Do(f, next, rdma.Forever); !errors.Is(err, errOnPurpose) || f.Sent() != 3*n+1 {
				t.Errorf("the second fault: %v, %d verbs", err, f.Sent())
			}
			next.Release()
			next = f.Batch()
			next.FetchAdd(rdma.At(0, 0), 1)
			if err := rdma.Do(f, next, rdma.Forever); err != nil || next.Op(0).Result != 0 {
				t.Errorf("behind the last fault: %v, met %d", err, next.Op(0).Result)
			}
		})
	}
}

func TestFailedVerbOfABackgroundBatch(t *testing.T) {
	run(t, 1, func(s *sim.Sim, ep rdma.Endpoint) {
		f := fault.New(ep, fault.Fault{At: 2, Err: errOnPurpose}, fault.Fault{At: 20, Err: errOnPurpose})
		kept, released := chains(f, 4), chains(f, 4)
		if f.Post(kept) != nil || f.Post(released) != nil {
			t.Error("post failed")
		}
		released.Release()
		if other := f.Batch(); other == released {
			t.Error("a batch in flight was handed out again")
		}
		f.Sleep(time.Second)
		if !kept.Finished() || kept.Done() != 4 || !errors.Is(kept.Op(1).Err, errOnPurpose) {
			t.Errorf("a second later %d of 4 chains are complete, op 1: %v", kept.Done(), kept.Op(1).Err)
		}
		before := f.Counters().Trips
		if err := f.Wait(kept, rdma.All, 0); err != nil || f.Counters().Trips != 3 {
			t.Errorf("%v; trips were %d, are %d, want 3", err, before, f.Counters().Trips)
		}
		again := false
		for range 3 { // the two batches that stood for them are free, too
			again = again || f.Batch() == released
		}
		if !again {
			t.Error("a batch that has landed is not used again")
		}
	})
}

func TestFailedLoneOps(t *testing.T) {
	run(t, 1, func(s *sim.Sim, ep rdma.Endpoint) {
		f := fault.New(ep, fault.Fault{At: 3, Err: errOnPurpose}, fault.Fault{At: 4, Err: errOnPurpose},
			fault.Fault{At: 5, Err: errOnPurpose})
		for _, fails := range []int{1, 2, 0} { // the last of three; all of two; none
			before := f.Counters().Trips
			b := f.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			b.FetchAdd(rdma.At(1, 0), 1)
			if fails == 1 {
				b.FetchAdd(rdma.At(0, 8), 1)
			}
			if err := f.Post(b); err != nil {
				t.Error(err)
			}
			if err := f.Wait(b, b.Chains(), time.Second); err != nil || b.Done() != b.Chains() {
				t.Errorf("waited for %d chains, %d are complete: %v", b.Chains(), b.Done(), err)
			}
			n := 0
			for i := range b.Len() {
				if b.Op(i).Err != nil {
					n++
				}
			}
			if trips := f.Counters().Trips - before; n != fails || trips != 1 {
				t.Errorf("%d verbs failed, want %d; %d trips", n, fails, trips)
			}
			b.Release()
		}
	})
}

func TestDelayAndStep(t *testing.T) {
	run(t, 1, func(s *sim.Sim, ep rdma.Endpoint) {
		f := fault.New(ep, fault.Fault{Step: "commit", Crash: fault.Stop}, fault.Fault{At: 4, Delay: time.Second},
			fault.Fault{At: 7, Delay: time.Second})
		post := func(slow bool) {
			before := f.Now()
			if err := rdma.Do(f, chains(f, 1), rdma.Forever); err != nil || f.Now()-before >= time.Second != slow {
				t.Errorf("%v after %v, want delay: %v", err, f.Now()-before, slow)
			}
		}
		post(false)
		post(true)
		before := f.Now()
		if err := f.Call(0, &rdma.Request{Step: "commit"}, rdma.Forever); !errors.Is(err, rdma.ErrClosed) ||
			f.Now() != before {
			t.Errorf("a call in the step: %v", err)
		}
		if load(ep, rdma.At(0, 8)) != 0 || f.Sent() != 6 {
			t.Errorf("the call was made; %d verbs sent", f.Sent())
		}
	})
}

func TestCalls(t *testing.T) {
	run(t, 1, func(s *sim.Sim, ep rdma.Endpoint) {
		f := fault.New(ep, fault.Fault{At: 2, Err: errOnPurpose}, fault.Fault{At: 3, Delay: time.Second})
		for i, want := range []error{nil, errOnPurpose, nil} {
			if err := f.Call(0, &rdma.Request{}, rdma.Forever); !errors.Is(err, want) {
				t.Errorf("call %d: %v", i+1, err)
			}
		}
		if load(ep, rdma.At(0, 8)) != 2 || f.Now() < time.Second {
			t.Errorf("%d calls were served in %v", load(ep, rdma.At(0, 8)), f.Now())
		}
	})
}

// TestSuite runs the suite of every fabric through fault endpoints that hold each worker up now and
// then.
func TestSuite(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { rdmatest.Run(t, harness(sim.Hostile(seed))) })
	}
}

func harness(o sim.Options) rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			o := o
			o.Nodes, o.Memory, o.Handler = nodes, memory, h
			s := sim.New(o)
			t.Cleanup(func() { s.Close() })
			return s
		},
		Parallel: func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
			s := f.(*sim.Sim)
			for i, w := range workers {
				s.Go(fmt.Sprint("worker ", i), func(ep rdma.Endpoint) {
					var faults []fault.Fault
					for k := range uint64(10) {
						faults = append(faults, fault.Fault{At: 1 + 7*k, Delay: time.Microsecond})
					}
					w(fault.New(ep, faults...))
				})
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		Beside: func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint),
			clients ...func(rdma.Endpoint)) {
			s := f.(*sim.Sim)
			s.GoAt(node, "server", func(ep rdma.Endpoint) {
				server(fault.New(ep, fault.Fault{At: 3, Delay: time.Microsecond}))
			})
			for i, c := range clients {
				s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
					c(fault.New(ep, fault.Fault{At: 2, Delay: time.Microsecond}))
				})
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		KillNode:     func(t testing.TB, f rdma.Fabric, node int) { f.(*sim.Sim).KillNode(node) },
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, InFlight: true, Rings: true, AllocFree: true},
	}
}
