package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// torn counts, over some seeds, the READs of 64 bytes that see parts of several WRITEs, and whether
// a part was not the beginning of a WRITE, in address order.
func torn(t *testing.T, o sim.Options) (mixed, disordered int) {
	for seed := range uint64(30) {
		o.Seed = seed
		s := open(t, o)
		s.Go("writer", func(ep rdma.Endpoint) {
			for i := range 30 {
				b := ep.Batch()
				p := b.Alloc(64)
				copy(p, bytes.Repeat([]byte{byte(i + 1)}, 64))
				b.Write(rdma.At(0, 0), p)
				rdma.Do(ep, b, rdma.Forever)
				b.Release()
			}
		})
		s.Go("reader", func(ep rdma.Endpoint) {
			for range 30 {
				b := ep.Batch()
				p := b.Read(rdma.At(0, 0), 64).Buf
				rdma.Do(ep, b, rdma.Forever)
				changes := 0
				for i := 8; i < 64; i += 8 {
					if p[i] != p[i-8] {
						changes++
					}
				}
				if changes > 0 {
					mixed++
				}
				if changes > 1 {
					disordered++
				}
				b.Release()
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	}
	return mixed, disordered
}

func TestTearing(t *testing.T) {
	if mixed, disordered := torn(t, sim.Hostile(0)); mixed < 90 || disordered < 20 {
		t.Errorf("of 900 READs %d are torn, %d of them at several words", mixed, disordered)
	}
	if mixed, _ := torn(t, sim.Options{}); mixed != 0 {
		t.Errorf("%d READs are torn without Tear", mixed)
	}
}

// passes counts the READs and CASes of 1000 that a later WRITE, or CAS, passed.
func passes(t *testing.T, o sim.Options) (reads, atomics int) {
	s := open(t, o)
	s.Go("worker", func(ep rdma.Endpoint) {
		for i := range uint64(1000) {
			b := ep.Batch()
			before := b.Read(rdma.At(0, 64), 8)
			p := b.Alloc(8)
			copy(p, fmt.Sprintf("%8d", i))
			b.Write(rdma.At(0, 64), p)
			first := b.CompareSwap(rdma.At(0, 0), 2*i, 2*i+1)
			b.CompareSwap(rdma.At(0, 0), 2*i+1, 2*i+2)
			rdma.Do(ep, b, rdma.Forever)
			if bytes.Equal(before.Buf, p) {
				reads++
			}
			if !b.Op(3).Swapped() {
				atomics++
				fix := ep.Batch()
				fix.CompareSwap(rdma.At(0, 0), 2*i+1, 2*i+2)
				rdma.Do(ep, fix, rdma.Forever)
			}
			if !first.Swapped() {
				t.Errorf("CAS %d met %d", i, first.Result)
				return
			}
			b.Release()
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return reads, atomics
}

func TestReordering(t *testing.T) {
	if reads, atomics := passes(t, sim.Hostile(1)); reads < 100 || atomics < 100 || reads > 900 || atomics > 900 {
		t.Errorf("%d of 1000 READs and %d CASes were passed", reads, atomics)
	}
	if reads, atomics := passes(t, sim.Options{}); reads != 0 || atomics != 0 {
		t.Errorf("%d READs and %d CASes were passed without Reorder", reads, atomics)
	}
}

func TestAnswerOfADyingNodeMayBeLost(t *testing.T) {
	lost, kept := 0, 0
	for seed := range uint64(100) {
		s := open(t, sim.Options{Seed: seed})
		s.KillNodeAt(0, 1)
		s.Go("client", func(ep rdma.Endpoint) {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			before := ep.Now()
			switch err := rdma.Do(ep, b, rdma.Forever); {
			case err == nil:
				kept++
			case errors.Is(err, rdma.ErrNodeDown) && ep.Now()-before >= 100*time.Microsecond:
				lost++
			default:
				t.Errorf("%v after %v", err, ep.Now()-before)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	}
	if lost < 20 || kept < 20 {
		t.Errorf("%d answers were lost, %d kept", lost, kept)
	}
}

// adder is a handler that counts at word 8.
func adder(m rdma.Memory, r *rdma.Request) error {
	r.Ret[0] = m.FetchAdd(8, 1)
	return nil
}

func TestNodeServesOneCallAtATime(t *testing.T) {
	s := open(t, sim.Options{Handler: adder, ServiceTime: time.Millisecond})
	var last time.Duration
	for i := range 10 {
		s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			if err := ep.Call(0, new(rdma.Request), rdma.Forever); err != nil {
				t.Error(err)
			}
			last = ep.Now()
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if last < 10*time.Millisecond || last > 11*time.Millisecond {
		t.Errorf("ten calls of a millisecond ended after %v", last)
	}
}

func TestLateAnswerOfACallIsDropped(t *testing.T) {
	s := open(t, sim.Options{Handler: adder, ServiceTime: time.Millisecond})
	s.Go("client", func(ep rdma.Endpoint) {
		r := rdma.Request{Ret: [6]uint64{77}}
		if err := ep.Call(0, &r, time.Microsecond); !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("call: %v", err)
		}
		ep.Sleep(time.Second)
		if r.Ret[0] != 77 {
			t.Error("the answer of a call that timed out was written to its request")
		}
		if err := ep.Call(0, &r, rdma.Forever); err != nil || r.Ret[0] != 1 {
			t.Errorf("the next call met %d (%v)", r.Ret[0], err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashCountsCallsAndTasks(t *testing.T) {
	for k := range uint64(6) {
		s := open(t, sim.Options{Handler: adder})
		w := s.Go("victim", func(ep rdma.Endpoint) {
			ep.Go("task", func(ep rdma.Endpoint) {
				ep.Sleep(time.Millisecond)
				faa(ep, rdma.At(0, 16))
				faa(ep, rdma.At(0, 16))
			})
			faa(ep, rdma.At(0, 0))
			ep.Call(0, new(rdma.Request), rdma.Forever)
			ep.Sleep(time.Second)
			faa(ep, rdma.At(0, 0))
		})
		s.CrashAt(w, k)
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		want := [3]uint64{min(k, 1) + max(k, 4) - 4, min(max(k, 1)-1, 1), min(max(k, 2)-2, 2)}
		if got := [3]uint64{load(t, s, rdma.At(0, 0)), load(t, s, rdma.At(0, 8)),
			load(t, s, rdma.At(0, 16))}; got != want {
			t.Errorf("crash at %d: verbs, calls and tasks' verbs are %v, want %v", k, got, want)
		}
		if w.Sent() != k {
			t.Errorf("crash at %d: %d sent", k, w.Sent())
		}
	}
}

func TestFaultsAtATime(t *testing.T) {
	s := open(t, sim.Options{Nodes: 2, Handler: adder})
	s.KillNodeAfter(1, time.Millisecond)
	w := s.Go("victim", func(ep rdma.Endpoint) {
		for {
			faa(ep, rdma.At(0, 0))
		}
	})
	s.CrashAfter(w, 3*time.Millisecond)
	s.Go("client", func(ep rdma.Endpoint) {
		for _, want := range []bool{true, false} {
			if got := faa(ep, rdma.At(1, 0)) != 0; got != want {
				t.Errorf("at %v a verb to node 1 succeeds: %v", ep.Now(), got)
			}
			ep.Sleep(2 * time.Millisecond)
		}
		if err := ep.Call(1, new(rdma.Request), rdma.Forever); !errors.Is(err, rdma.ErrNodeDown) {
			t.Error(err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if !w.Crashed() || s.Now() < 3*time.Millisecond || s.Now() > 5*time.Millisecond {
		t.Errorf("crashed: %v, at the end it is %v", w.Crashed(), s.Now())
	}
	if err := s.KillNode(2); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("killing a node that is not there: %v", err)
	}
}

func TestMemoryFollowsWhatIsTouched(t *testing.T) {
	s := open(t, sim.Options{Memory: 1 << 40})
	for _, off := range []uint64{0, 1 << 30, 1<<40 - 8} {
		if load(t, s, rdma.At(0, off)) != 0 {
			t.Errorf("memory at %#x is not zero", off)
		}
	}
	s.Go("client", func(ep rdma.Endpoint) { faa(ep, rdma.At(0, 1<<40-8)) })
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if load(t, s, rdma.At(0, 1<<40-8)) != 1 {
		t.Error("the last word was not written")
	}
}

func TestFreshMemoryIsZero(t *testing.T) {
	for range 50 { // pages are used again
		s := sim.New(sim.Options{})
		for off := uint64(0); off < 1<<16; off += 4096 {
			if got := load(t, s, rdma.At(0, off)); got != 0 {
				t.Fatalf("a new pool holds %d at %#x", got, off)
			}
		}
		s.Go("client", func(ep rdma.Endpoint) {
			b := ep.Batch()
			for off := uint64(0); off < 1<<16; off += 4096 {
				if off%8192 == 0 {
					b.FetchAdd(rdma.At(0, off), 1)
					continue
				}
				p := b.Alloc(8)
				copy(p, "leftover")
				b.Write(rdma.At(0, off), p) // a breach, if a page remembered its atomics
			}
			rdma.Do(ep, b, rdma.Forever)
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
}

func TestRevokeDropsCallsAndVerbsOfTheDeparted(t *testing.T) {
	s := open(t, sim.Options{Handler: adder, ServiceTime: time.Millisecond, FlyProb: 1, FlyMax: time.Second})
	w := s.Go("caller", func(ep rdma.Endpoint) {
		if err := ep.Call(0, new(rdma.Request), rdma.Forever); !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("the call of a client that was fenced off: %v", err)
		}
	})
	gone := s.Go("gone", func(ep rdma.Endpoint) {
		b := ep.Batch()
		for range 20 {
			b.FetchAdd(rdma.At(0, 0), 1)
		}
		ep.Post(b)
	})
	s.Go("master", func(ep rdma.Endpoint) {
		ep.Sleep(time.Millisecond / 2)
		if err := errors.Join(s.Revoke(w.Client()), s.Revoke(gone.Client())); err != nil {
			t.Error(err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if calls, verbs := load(t, s, rdma.At(0, 8)), load(t, s, rdma.At(0, 0)); calls != 0 || verbs == 20 {
		t.Errorf("after Revoke %d calls were served, and of 20 flying verbs %d landed", calls, verbs)
	}
}
