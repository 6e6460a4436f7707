package sim_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// with returns a network of two nodes with faults: one at random with ways of a microsecond, and
// one of hardware.
func with(t testing.TB, faults string) map[string]sim.Options {
	t.Helper()
	l, err := sim.ParseFaults(faults)
	if err != nil {
		t.Fatal(err)
	}
	h := sim.Hardware{Propagation: 1000, Doorbell: 10, Verb: 10}
	return map[string]sim.Options{
		"random": {Seed: 1, Nodes: 2, MinLatency: 1000, MaxLatency: 1000, Faults: l,
			Handler: adder, ServiceTime: 1000},
		"hardware": {Seed: 1, Nodes: 2, Hardware: &h, Faults: l, Handler: adder},
	}
}

// each runs a test on both networks.
func each(t *testing.T, faults string, test func(t *testing.T, s *sim.Sim)) {
	for name, o := range with(t, faults) {
		t.Run(name, func(t *testing.T) {
			s := open(t, o)
			test(t, s)
			if err := s.Run(); err != nil {
				t.Error(err)
			}
		})
	}
}

// took returns how long something takes on the virtual clock.
func took(s *sim.Sim, f func()) time.Duration {
	before := s.Now()
	f()
	return s.Now() - before
}

func TestCrashFaults(t *testing.T) {
	for name, o := range with(t, `crash client=b verb=3; crash client=#2 at=50µs; crash node=1 verb=4`) {
		s := open(t, o)
		forever := func(node int) func(rdma.Endpoint) {
			return func(ep rdma.Endpoint) {
				for i := uint64(0); faa(ep, rdma.At(node, 8*uint64(node))) != 0 && i < 1e4; i++ {
				}
			}
		}
		a, b, c := s.Go("a", forever(1)), s.Go("b", forever(0)), s.Go("c", forever(0))
		again := s.Go("b", func(ep rdma.Endpoint) {
			ep.Sleep(time.Millisecond)
			faa(ep, 64)
			faa(ep, 64)
			faa(ep, 64)
			faa(ep, 64)
		})
		died := map[string]time.Duration{}
		for _, w := range []*sim.Worker{b, c} {
			w.WhenCrashed(func() { died[w.Name()] = s.Now() })
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if !b.Crashed() || b.Sent() != 3 {
			t.Errorf("%s: b crashed %v behind %d verbs, not behind 3", name, b.Crashed(), b.Sent())
		}
		if !c.Crashed() || died["c"] != 50*time.Microsecond {
			t.Errorf("%s: c crashed %v at %v, not at 50µs", name, c.Crashed(), died["c"])
		}
		if a.Crashed() || s.Landed(1) != 4 {
			t.Errorf("%s: node 1 died behind %d verbs, not behind 4", name, s.Landed(1))
		}
		if !again.Finished() {
			t.Errorf("%s: the second b was hit by the first one's fault", name)
		}
	}
}

func TestStallFaults(t *testing.T) {
	each(t, `stall client=victim verb=3 for=5ms; stall client=sleeper at=100µs for=2ms`,
		func(t *testing.T, s *sim.Sim) {
			var ticks []time.Duration
			victim := s.Go("victim", func(ep rdma.Endpoint) {
				ep.Go("task", func(ep rdma.Endpoint) {
					for range 100 {
						ep.Sleep(100 * time.Microsecond)
						ticks = append(ticks, s.Now())
					}
				})
				b := ep.Batch()
				for i := range 5 {
					b.FetchAdd(rdma.At(i%2, 0), 1)
				}
				if took := took(s, func() { ep.Post(b) }); took != 5*time.Millisecond {
					t.Errorf("a Post that is stalled behind its third verb takes %v", took)
				}
				if b.Completed(3) || b.Completed(4) || !b.Completed(0) || !b.Completed(1) || !b.Completed(2) {
					t.Error("what it has sent does not go on, or what it has not sent does")
				}
				if took := took(s, func() {
					ep.Wait(b, rdma.All, rdma.Forever)
				}); took < time.Microsecond || took > 10*time.Microsecond {
					t.Errorf("the rest takes %v", took)
				}
				ep.Sleep(time.Millisecond)
			})
			s.Go("sleeper", func(ep rdma.Endpoint) {
				if took := took(s, func() {
					ep.Sleep(time.Millisecond)
				}); took < 2*time.Millisecond || took > 2100*time.Microsecond {
					t.Errorf("a sleep of 1 ms takes %v with a stall of 2 ms", took)
				}
				b := ep.Batch()
				b.FetchAdd(rdma.At(0, 64), 1)
				ep.Post(b)
				if err := ep.Wait(b, rdma.All, time.Millisecond); err != nil {
					t.Error(err)
				}
			})
			other := s.Go("other", func(ep rdma.Endpoint) {
				if took := took(s, func() { faa(ep, rdma.At(0, 0)) }); took > 10*time.Microsecond {
					t.Errorf("another client's verb takes %v", took)
				}
			})
			s.Go("end", func(ep rdma.Endpoint) {
				ep.Sleep(10 * time.Millisecond)
				if victim.Stalled() != 5*time.Millisecond || other.Stalled() != 0 {
					t.Errorf("stalled for %v, and the other for %v", victim.Stalled(), other.Stalled())
				}
				for i, at := range ticks {
					if i > 0 && at > 10*time.Microsecond && at < 5*time.Millisecond {
						t.Errorf("a stalled client's task runs at %v", at)
					}
				}
				if len(ticks) < 40 {
					t.Errorf("%d ticks", len(ticks))
				}
			})
		})
}

// TestAnExpiredWaitOfAStalledClient: it wakes late, and finds what came meanwhile.
func TestAnExpiredWaitOfAStalledClient(t *testing.T) {
	each(t, `stall client=victim at=1µs for=1ms; late client=victim verb=1 for=500µs`, func(t *testing.T, s *sim.Sim) {
		s.Go("victim", func(ep rdma.Endpoint) {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			ep.Post(b)
			if err := ep.Wait(b, rdma.All, 100*time.Microsecond); err != nil || s.Now() < time.Millisecond {
				t.Errorf("%v at %v", err, s.Now())
			}
		})
	})
}

func TestSlowFault(t *testing.T) {
	for name, o := range with(t, `slow node=1 factor=10 at=100µs for=100µs; slow node=* factor=3 at=150µs for=20µs`) {
		if name == "hardware" {
			o.Hardware.PCIe, o.Hardware.ServiceTime = 1000, 1000
		}
		s := open(t, o)
		s.Go("client", func(ep rdma.Endpoint) {
			for _, c := range []struct {
				at              time.Duration
				factor0, factor time.Duration
			}{{50, 1, 1}, {105, 1, 10}, {155, 3, 30}, {240, 1, 1}} {
				ep.Sleep(c.at*time.Microsecond - s.Now())
				for node, factor := range []time.Duration{c.factor0, c.factor} {
					from := s.Now()
					faa(ep, rdma.At(node, 0))
					got := s.Now() - from
					least, most := factor*time.Microsecond, (3*factor+1)*time.Microsecond
					if got < least || got > most {
						t.Errorf("%s: a verb at %v to node %d takes %v, with factor %d", name, from, node, got, factor)
					}
				}
			}
			ep.Sleep(time.Millisecond)
		})
		s.Go("caller", func(ep rdma.Endpoint) {
			ep.Sleep(110 * time.Microsecond)
			got := took(s, func() { ep.Call(1, new(rdma.Request), rdma.Forever) })
			if got < 10*time.Microsecond || got > 40*time.Microsecond {
				t.Errorf("%s: a call of a slow node takes %v", name, got)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPartitionThatHeals(t *testing.T) {
	each(t, `partition client=a node=0 at=100µs for=300µs; partition client=c node=* at=50µs for=100µs`,
		func(t *testing.T, s *sim.Sim) {
			s.Go("a", func(ep rdma.Endpoint) {
				faa(ep, rdma.At(0, 0)) // before
				ep.Sleep(150*time.Microsecond - s.Now())
				b := ep.Batch() // in it
				for i := range uint64(4) {
					b.CompareSwap(rdma.At(0, 64), i, i+1)
				}
				other := b.FetchAdd(rdma.At(1, 0), 1)
				from := s.Now()
				if err := ep.Post(b); err != nil {
					t.Error(err)
				}
				if err := ep.Wait(b, 1, rdma.Forever); err != nil || s.Now() > from+10*time.Microsecond ||
					!b.Completed(4) {
					t.Errorf("another node is not reached: %v", err)
				}
				if err := ep.Wait(b, rdma.All, rdma.Forever); err != nil || other.Err != nil || b.Err() != nil {
					t.Error(err, b.Err())
				}
				if at := s.Now(); at < 400*time.Microsecond || at > 410*time.Microsecond {
					t.Errorf("what was held up is there at %v", at)
				}
				for i := range 4 {
					if !b.Op(i).Swapped() {
						t.Errorf("verb %d landed out of order", i)
					}
				}
				if took := took(s, func() { faa(ep, rdma.At(0, 0)) }); took > 10*time.Microsecond {
					t.Errorf("after it a verb takes %v", took)
				}
			})
			s.Go("b", func(ep rdma.Endpoint) {
				ep.Sleep(150*time.Microsecond - s.Now())
				if took := took(s, func() { faa(ep, rdma.At(0, 0)) }); took > 10*time.Microsecond {
					t.Errorf("another client's verb takes %v", took)
				}
			})
			s.Go("c", func(ep rdma.Endpoint) {
				ep.Sleep(60*time.Microsecond - s.Now())
				if err := ep.Call(1, new(rdma.Request), rdma.Forever); err != nil || s.Now() < 150*time.Microsecond {
					t.Errorf("a call is there at %v (%v)", s.Now(), err)
				}
			})
		})
}

func TestPartitionThatLastsTooLong(t *testing.T) {
	each(t, `partition client=a node=0 at=100µs for=5ms`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			ep.Sleep(100*time.Microsecond - s.Now() - 1500)
			early := ep.Batch() // it lands in time, and its answer is cut off
			early.FetchAdd(rdma.At(0, 8), 1)
			ep.Post(early)
			ep.Sleep(50 * time.Microsecond)
			b := ep.Batch()
			for range 3 {
				b.FetchAdd(rdma.At(0, 16), 1)
			}
			from := s.Now()
			if err := rdma.Do(ep, b, rdma.Forever); !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("verbs end in %v", err)
			}
			if took := s.Now() - from; took < time.Millisecond || took > 1100*time.Microsecond {
				t.Errorf("the requester gives up after %v", took)
			}
			if !errors.Is(early.Err(), rdma.ErrNodeDown) {
				t.Errorf("the verb with the answer that was cut off ends in %v", early.Err())
			}
			from = s.Now()
			err := ep.Call(0, new(rdma.Request), rdma.Forever)
			if took := s.Now() - from; !errors.Is(err, rdma.ErrNodeDown) || took < time.Millisecond ||
				took > 1100*time.Microsecond {
				t.Errorf("a call ends after %v in %v", took, err)
			}
			ep.Sleep(5 * time.Millisecond)
			if faa(ep, rdma.At(0, 8)) != 2 || faa(ep, rdma.At(0, 16)) != 1 {
				t.Error("after it the words are not what they should be: only the early verb had landed")
			}
		})
		s.Go("b", func(ep rdma.Endpoint) {
			ep.Sleep(time.Millisecond)
			if took := took(s, func() { faa(ep, rdma.At(0, 0)) }); took > 10*time.Microsecond {
				t.Errorf("another client's verb takes %v", took)
			}
		})
	})
}

// TestTheEndOfAPartition: a verb that arrives in the very nanosecond in which it ends stays behind
// one that was held up.
func TestTheEndOfAPartition(t *testing.T) {
	for end := 1000; end < 1100; end++ {
		each(t, fmt.Sprintf("partition client=a node=0 at=10µs for=%dns", end), func(t *testing.T, s *sim.Sim) {
			s.Go("a", func(ep rdma.Endpoint) {
				ep.Sleep(10*time.Microsecond - s.Now())
				first, second := ep.Batch(), ep.Batch()
				a := first.CompareSwap(rdma.At(0, 0), 0, 1)
				b := second.CompareSwap(rdma.At(0, 0), 1, 2)
				ep.Post(first)
				ep.Sleep(50)
				ep.Post(second)
				if ep.Wait(second, rdma.All, rdma.Forever) != nil || !a.Swapped() || !b.Swapped() {
					t.Errorf("a partition of %d ns: swapped %v, %v", end, a.Swapped(), b.Swapped())
				}
			})
		})
	}
}

// cutInTwo posts a WRITE and a CAS behind it, and a CAS to another node, as a batch that a stall of
// 2 ms cuts in two behind the first verb, and waits for it.
func cutInTwo(t *testing.T, s *sim.Sim, ep rdma.Endpoint) (write, behind, other *rdma.Op) {
	ep.Sleep(20*time.Microsecond - s.Now())
	b := ep.Batch()
	b.Chain()
	write = b.WriteWord(rdma.At(0, 0), 1)
	behind = b.CompareSwap(rdma.At(0, 8), 0, 1)
	b.Chain()
	other = b.CompareSwap(rdma.At(1, 8), 0, 1)
	if err := ep.Post(b); err != nil || s.Now() < 2*time.Millisecond {
		t.Errorf("posted at %v: %v", s.Now(), err)
	}
	ep.Wait(b, rdma.All, rdma.Forever)
	return write, behind, other
}

// TestLostInTheMidstOfABatch: a verb that a stall keeps back does not land on the next connection
// when one of its batch was given up meanwhile; on another node it does, and so does the next
// batch.
func TestLostInTheMidstOfABatch(t *testing.T) {
	plan := `partition client=a node=0 at=10µs for=1100µs; stall client=a verb=1 for=2ms`
	each(t, plan, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			write, behind, other := cutInTwo(t, s, ep)
			if !errors.Is(write.Err, rdma.ErrNodeDown) || !errors.Is(behind.Err, rdma.ErrNodeDown) || !other.Swapped() {
				t.Errorf("got %v, %v, and on another node %v", write.Err, behind.Err, other.Err)
			}
			if faa(ep, rdma.At(0, 8)) != 1 { // it was 0
				t.Error("what was behind the lost verb has landed")
			}
		})
	})
}

// TestRestartInTheMidstOfABatch: a verb that a stall keeps back does not land in a node's next life
// when one of its batch was posted in an earlier one, whether that landed or found the node dead.
func TestRestartInTheMidstOfABatch(t *testing.T) {
	const landed, dead = 500 * time.Microsecond, 0
	for _, dies := range []time.Duration{landed, dead} {
		each(t, `stall client=a verb=1 for=2ms`, func(t *testing.T, s *sim.Sim) {
			s.Go("power", func(ep rdma.Endpoint) {
				ep.Sleep(dies)
				s.KillNode(0)
				ep.Sleep(time.Millisecond)
				if err := s.Restart(0); err != nil {
					t.Error(err)
				}
			})
			s.Go("a", func(ep rdma.Endpoint) {
				write, behind, other := cutInTwo(t, s, ep)
				if (write.Err == nil) != (dies == landed) {
					t.Errorf("the first verb: %v", write.Err)
				}
				if !errors.Is(behind.Err, rdma.ErrNodeDown) || !other.Swapped() {
					t.Errorf("got %v, and on another node %v", behind.Err, other.Err)
				}
				if faa(ep, rdma.At(0, 8)) != 1 { // it was 0
					t.Error("the rest of the batch has landed in the next life")
				}
			})
		})
	}
}

// TestGivingUpTakesTheConnectionDown: a later verb does not land when an earlier one was given up,
// even if it would be in time itself.
func TestGivingUpTakesTheConnectionDown(t *testing.T) {
	each(t, `partition client=a node=0 at=10µs for=1ms`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			ep.Sleep(10*time.Microsecond - s.Now())
			first := ep.Batch()
			first.FetchAdd(rdma.At(0, 0), 1)
			ep.Sleep(5 * time.Microsecond)
			ep.Post(first) // its time is over at 1015 µs, and so is the partition's at 1010
			if err := ep.Wait(first, rdma.All, rdma.Forever); err != nil {
				t.Error(err)
			}
		})
	})
	each(t, `partition client=a node=0 at=10µs for=1100µs`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			ep.Sleep(20*time.Microsecond - s.Now())
			first, second, third := ep.Batch(), ep.Batch(), ep.Batch()
			for i, b := range []*rdma.Batch{first, second, third} {
				b.FetchAdd(rdma.At(0, uint64(8*i)), 1)
			}
			ep.Post(first)
			ep.Sleep(500 * time.Microsecond)
			ep.Post(second)
			ep.Wait(first, rdma.All, rdma.Forever)
			ep.Post(third) // on a new connection
			ep.Wait(second, rdma.All, rdma.Forever)
			ep.Wait(third, rdma.All, rdma.Forever)
			if !errors.Is(first.Err(), rdma.ErrNodeDown) || !errors.Is(second.Err(), rdma.ErrNodeDown) ||
				third.Err() != nil {
				t.Errorf("%v; %v; %v", first.Err(), second.Err(), third.Err())
			}
			if faa(ep, 0) != 1 || faa(ep, 8) != 1 || faa(ep, 16) != 2 {
				t.Error("what was given up has landed")
			}
		})
	})
}

func TestFlyingVerbs(t *testing.T) {
	each(t, `fly client=a verb=2 for=80µs; fly client=b at=100µs for=50µs; fly client=d verb=1 for=90µs`,
		func(t *testing.T, s *sim.Sim) {
			landed := func(ep rdma.Endpoint, off uint64) time.Duration {
				for ep.Now() < time.Second {
					b := ep.Batch()
					word := b.FetchAdd(rdma.At(0, off), 0)
					rdma.Do(ep, b, rdma.Forever)
					if word.Result != 0 {
						break
					}
					b.Release()
				}
				return s.Now()
			}
			s.Go("a", func(ep rdma.Endpoint) {
				faa(ep, rdma.At(1, 0))
				b := ep.Batch()
				b.FetchAdd(rdma.At(0, 0), 1) // flies
				b.FetchAdd(rdma.At(0, 8), 1) // behind it
				from := s.Now()
				ep.Post(b)
				ep.Wait(b, rdma.All, rdma.Forever)
				if took := s.Now() - from; took < 80*time.Microsecond || took > 90*time.Microsecond {
					t.Errorf("verbs that fly 80µs take %v", took)
				}
			})
			s.Go("b", func(ep rdma.Endpoint) {
				flew := 0
				for range 40 {
					from := s.Now()
					if took(s, func() { faa(ep, rdma.At(1, 64)) }) >= 50*time.Microsecond {
						flew++
						if from < 100*time.Microsecond || from > 106*time.Microsecond {
							t.Errorf("a verb at %v flies", from)
						}
					}
					ep.Sleep(3 * time.Microsecond)
				}
				if flew != 1 {
					t.Errorf("%d verbs fly, want the first one behind 100µs", flew)
				}
			})
			s.Go("c", func(ep rdma.Endpoint) {
				first, second := landed(ep, 0), landed(ep, 8)
				if first < 80*time.Microsecond || second < first || second > 100*time.Microsecond {
					t.Errorf("landed at %v and %v", first, second)
				}
			})
			s.CrashAt(s.Go("d", func(ep rdma.Endpoint) { faa(ep, rdma.At(0, 128)) }), 1)
			s.Go("e", func(ep rdma.Endpoint) {
				if at := landed(ep, 128); at < 90*time.Microsecond || at > 100*time.Microsecond {
					t.Errorf("a dead client's verb that flies landed at %v", at)
				}
			})
		})
}

// TestALateCompletionHasLanded: others see the verb before its requester knows.
func TestALateCompletionHasLanded(t *testing.T) {
	each(t, `late client=a verb=1 for=60µs`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			if took := took(s, func() {
				faa(ep, rdma.At(1, 16))
			}); took < 60*time.Microsecond || took > 70*time.Microsecond {
				t.Errorf("a verb with a completion that is 60µs late takes %v", took)
			}
		})
		s.Go("b", func(ep rdma.Endpoint) {
			ep.Sleep(10 * time.Microsecond)
			if faa(ep, rdma.At(1, 16)) != 2 {
				t.Error("the verb has not landed in time")
			}
		})
	})
}

func TestCallsFlyAndAreLate(t *testing.T) {
	each(t, `fly client=a verb=1 for=100µs; late client=a verb=2 for=200µs`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			for _, least := range []time.Duration{100 * time.Microsecond, 200 * time.Microsecond, 0} {
				took := took(s, func() { ep.Call(0, new(rdma.Request), rdma.Forever) })
				if took < least || took > least+10*time.Microsecond {
					t.Errorf("a call takes %v, want %v and what it takes anyway", took, least)
				}
			}
		})
	})
}

func TestFaultsHitOnce(t *testing.T) {
	each(t, `late client=a at=100µs for=50µs`, func(t *testing.T, s *sim.Sim) {
		s.Go("a", func(ep rdma.Endpoint) {
			var slow []int
			for i := range 100 {
				if took(s, func() { faa(ep, 0) }) > 50*time.Microsecond {
					slow = append(slow, i)
					if s.Now() < 150*time.Microsecond || s.Now() > 160*time.Microsecond {
						t.Errorf("the first verb behind 100µs completes at %v", s.Now())
					}
				}
			}
			if len(slow) != 1 {
				t.Errorf("completions %v are late, want one", slow)
			}
		})
	})
}

func TestStepFaults(t *testing.T) {
	each(t, `step client=a at=1ms by=-500µs; step client=a verb=1 by=1h; stall client=b verb=1 for=1µs`,
		func(t *testing.T, s *sim.Sim) {
			s.Go("a", func(ep rdma.Endpoint) {
				for _, want := range []time.Duration{0, -500 * time.Microsecond, time.Hour - 500*time.Microsecond} {
					if off := ep.Now() - s.Now(); off < want || off > want+time.Microsecond {
						t.Errorf("at %v the clock is off by %v, want %v", s.Now(), off, want)
					}
					if took := took(s, func() {
						ep.Sleep(time.Millisecond)
					}); took < time.Millisecond || took > time.Millisecond+100 {
						t.Errorf("a sleep of 1 ms takes %v", took)
					}
					if want < 0 {
						if err := ep.Call(0, new(rdma.Request), rdma.Forever); err != nil { // calls count as verbs
							t.Error(err)
						}
					}
				}
			})
			s.Go("b", func(ep rdma.Endpoint) {
				ep.Sleep(3 * time.Millisecond)
				if off := ep.Now() - s.Now(); off != 0 {
					t.Errorf("another client's clock is off by %v", off)
				}
			})
		})
}

func TestFaultsAreInTheTrace(t *testing.T) {
	for name, o := range with(t, `stall client="the client" verb=1 for=1ms; step client=* at=1µs by=1s`) {
		var lines []string
		o.Trace = func(e sim.Event) { lines = append(lines, e.String()) }
		s := open(t, o)
		s.Go("the client", func(ep rdma.Endpoint) { faa(ep, 0) })
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		for _, want := range []string{
			`the client [stall client="the client" verb=1 for=1ms] is hit by a fault`,
			`the client [step client=* at=1µs by=1s] is hit by a fault`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
	}
}
