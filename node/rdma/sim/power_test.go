package sim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// persistent returns options of nodes with persistent memory.
func persistent(seed uint64, eADR, ddio bool) sim.Options {
	o, c := sim.Hostile(seed), pmem.Testbed()
	c.EADR, c.DDIO = eADR, ddio
	o.PMem = &c
	return o
}

// run runs one worker. Its errors fail the test.
func run(t testing.TB, s *sim.Sim, f func(ep rdma.Endpoint) error) {
	t.Helper()
	s.Go("worker", func(ep rdma.Endpoint) {
		if err := f(ep); err != nil {
			t.Error(err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

// do does what a batch holds that f fills.
func do(ep rdma.Endpoint, f func(b *rdma.Batch)) error {
	b := ep.Batch()
	defer b.Release()
	f(b)
	return rdma.Do(ep, b, time.Second)
}

// writing is a batch of single words, with READs where the word is 0.
func writing(ep rdma.Endpoint, words ...[2]uint64) error {
	return do(ep, func(b *rdma.Batch) {
		for _, w := range words {
			if w[1] == 0 {
				b.Read(rdma.At(0, w[0]), 8)
			} else {
				b.WriteWord(rdma.At(0, w[0]), w[1])
			}
		}
	})
}

// cycle cuts the power, and brings the node back.
func cycle(t testing.TB, s *sim.Sim, keep sim.Survivors) {
	t.Helper()
	s.CutPower(0, keep)
	if err := s.Restart(0); err != nil {
		t.Fatal(err)
	}
	if n := s.Unflushed(0); n != 0 {
		t.Errorf("%d words are not durable in a node that just started", n)
	}
}

// TestPersistence: what survives a loss of power for certain, in each mode.
func TestPersistence(t *testing.T) {
	write, read := [2]uint64{0, 7}, [2]uint64{512}
	for _, c := range []struct {
		name       string
		eADR, ddio bool
		words      [][2]uint64
		survives   bool
	}{
		{"a WRITE alone", false, false, [][2]uint64{write}, false},
		{"a WRITE with a READ behind it", false, false, [][2]uint64{write, read}, true},
		{"one in caches that survive", true, true, [][2]uint64{write, read}, true},
		{"one on its way to them", true, true, [][2]uint64{write}, false},
		{"one in caches that do not", false, true, [][2]uint64{write, read}, false},
		{"a word that was read", false, false, [][2]uint64{write, {0}}, true},
		{"one that was read in caches that do not", false, true, [][2]uint64{write, {0}}, false},
	} {
		for _, all := range []bool{false, true} {
			s := open(t, persistent(1, c.eADR, c.ddio))
			run(t, s, func(ep rdma.Endpoint) error { return writing(ep, c.words...) })
			keep, want := sim.NoneSurvive, c.survives
			if n := s.Unflushed(0); (n == 0) != c.survives {
				t.Errorf("%s: %d words are not durable", c.name, n)
			}
			if all {
				keep, want = sim.AllSurvive, true
			}
			cycle(t, s, keep)
			if got := load(t, s, rdma.At(0, 0)); (got == 7) != want {
				t.Errorf("%s, all survive %v: the word is %d", c.name, all, got)
			}
		}
	}
}

// TestPersistenceOfOthers: a READ sees to the words of its own connection, and to those that it
// returns. One that is answered by the NIC, or asks for nothing, sees to none.
func TestPersistenceOfOthers(t *testing.T) {
	o := persistent(1, false, false)
	o.Device = []sim.Range{{Node: 0, Offset: 4096, Bytes: 64}}
	s := open(t, o)
	run(t, s, func(ep rdma.Endpoint) error { return writing(ep, [2]uint64{0, 1}, [2]uint64{8, 1}) })
	run(t, s, func(ep rdma.Endpoint) error {
		return do(ep, func(b *rdma.Batch) {
			b.WriteWord(rdma.At(0, 16), 1)
			b.WriteWord(rdma.At(0, 4096), 1)
			b.Read(rdma.At(0, 4096), 8)
			b.Read(rdma.At(0, 64), 0)
		})
	})
	run(t, s, func(ep rdma.Endpoint) error { return writing(ep, [2]uint64{8}, [2]uint64{64}) })
	cycle(t, s, sim.NoneSurvive)
	for i, want := range []uint64{0, 1, 0} {
		if got := load(t, s, rdma.At(0, uint64(8*i))); got != want {
			t.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
	if got := load(t, s, rdma.At(0, 4096)); got != 0 {
		t.Errorf("the NIC's memory has %d when power is back", got)
	}
}

// TestPersistenceOfAtomics: what an atomic found is durable, what it left is not; of the writes of
// a word any first ones survive.
func TestPersistenceOfAtomics(t *testing.T) {
	for k := range 5 {
		s := open(t, persistent(1, false, false))
		run(t, s, func(ep rdma.Endpoint) error {
			faa(ep, rdma.At(0, 0))
			faa(ep, rdma.At(0, 0))
			return nil
		})
		for range 3 {
			run(t, s, func(ep rdma.Endpoint) error { return writing(ep, [2]uint64{8, uint64(ep.Client())}) })
		}
		cycle(t, s, func(i, n, writes int) int {
			if most := []int{1, 3}[i]; n != 2 || writes != most {
				t.Errorf("word %d of %d has %d writes that are not durable, want %d of 2", i, n, writes, most)
			}
			return min(k, writes)
		})
		if got, want := load(t, s, rdma.At(0, 0)), min(uint64(1+k), 2); got != want {
			t.Errorf("%d survive: a sum of two is %d, want %d", k, got, want)
		}
		if got, want := load(t, s, rdma.At(0, 8)), []uint64{0, 2, 3, 4, 4}[k]; got != want {
			t.Errorf("%d survive: the word of client %d, want %d", k, got, want)
		}
	}
}

// TestPersistenceOfManyPages: of many pages nothing is taken for durable that is not.
func TestPersistenceOfManyPages(t *testing.T) {
	const pages = 200
	s := open(t, persistent(1, false, false))
	var many, few [][2]uint64
	for k := range uint64(pages) {
		many = append(many, [2]uint64{4096 * k, k + 1})
		few = append(few, [2]uint64{4096*k + 8, k + 1}, [2]uint64{16})
	}
	run(t, s, func(ep rdma.Endpoint) error { return writing(ep, many...) })
	for range 2 {
		run(t, s, func(ep rdma.Endpoint) error { return writing(ep, few...) })
	}
	if n := s.Unflushed(0); n != pages {
		t.Errorf("%d words are not durable, want %d", n, pages)
	}
	cycle(t, s, sim.NoneSurvive)
	for k := range uint64(pages) {
		if a, b := load(t, s, rdma.At(0, 4096*k)), load(t, s, rdma.At(0, 4096*k+8)); a != 0 || b != k+1 {
			t.Errorf("page %d has %d and %d", k, a, b)
		}
	}
}

// TestOutages: faults take nodes away and bring them back, and what was hosted there begins anew. A
// node that was killed for good, or expelled, stays away.
func TestOutages(t *testing.T) {
	for name, kind := range map[string]sim.FaultKind{"power": sim.PowerFault, "restart": sim.RestartFault} {
		o := persistent(1, false, false)
		o.Nodes = 4
		o.Faults = sim.Faults{
			{Kind: sim.CrashFault, Node: 2, At: 10 * time.Microsecond},
			{Kind: kind, Node: sim.AnyNode, At: time.Millisecond, For: time.Millisecond},
			{Kind: kind, Node: 1, At: 1500 * time.Microsecond, For: 5 * time.Millisecond}, // it is away already
			{Kind: kind, Node: 1, At: 3 * time.Millisecond, For: time.Millisecond},
		}
		s := open(t, o)
		begun := make([]int, o.Nodes)
		for n := range begun {
			if err := s.Host(n, "server", func(ep rdma.Endpoint) {
				begun[n]++
				ep.Sleep(time.Hour)
			}); err != nil {
				t.Fatal(err)
			}
		}
		run(t, s, func(ep rdma.Endpoint) error {
			for seen := uint64(1); ep.Now() < 900*time.Microsecond; seen++ {
				if err := writing(ep, [2]uint64{0, seen}, [2]uint64{64}, [2]uint64{8, seen}); err != nil {
					return err
				}
			}
			ep.Sleep(1500*time.Microsecond - ep.Now())
			if err := writing(ep, [2]uint64{16, 1}); !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("%s: a verb to a node that is away: %v", name, err)
			}
			if _, err := s.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil {
				return err
			}
			err := s.Expel(1, 3)
			ep.Sleep(6 * time.Millisecond)
			return err
		})
		if want := []int{2, 3, 1, 1}; !slices.Equal(begun, want) || s.Restarts() != 3 || !s.Dead(2) || !s.Dead(3) {
			t.Errorf("%s: servers began %d times, want %d; %d restarts", name, begun, want, s.Restarts())
		}
		first, second := load(t, s, rdma.At(0, 0)), load(t, s, rdma.At(0, 8))
		if first == 0 || second > first || kind == sim.RestartFault && second != first {
			t.Errorf("%s: %d and %d are left", name, first, second)
		}
	}
	o := sim.Options{Faults: sim.Faults{{Kind: sim.PowerFault, For: time.Microsecond}}}
	if err := open(t, o).Run(); err == nil || !strings.Contains(err.Error(), "not persistent") {
		t.Errorf("memory that is not persistent: %v", err)
	}
}

// TestPowerCuts cuts the power at each step of a client that writes a record of three words, sees
// it durable, and then a commit word: with the commit word there is the record. Without the READ
// between them the cuts find that out.
func TestPowerCuts(t *testing.T) {
	client := func(seesTo bool) func(ep rdma.Endpoint) error {
		return func(ep rdma.Endpoint) error {
			for number := uint64(1); number <= 3; number++ {
				err := do(ep, func(b *rdma.Batch) {
					b.Write(rdma.At(0, 64), entry(b.Alloc(24), number))
					if seesTo {
						b.Read(rdma.At(0, 512), 8)
					}
				})
				if err == nil {
					err = writing(ep, [2]uint64{0, number}, [2]uint64{512})
				}
				if err != nil {
					return err
				}
				ep.Sleep(time.Microsecond)
			}
			return nil
		}
	}
	// judge runs a client, cuts its node's power at a step, and returns what is wrong with what is
	// left.
	judge := func(seesTo bool, seed, step uint64, keep sim.Survivors) (steps uint64, err error) {
		s := open(t, persistent(seed, false, false))
		defer s.Close()
		if step > 0 {
			s.CutPowerAt(0, step, keep)
		}
		s.Go("client", func(ep rdma.Endpoint) {
			if err := client(seesTo)(ep); err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				t.Error(err)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if step == 0 {
			return s.Steps(0), nil
		}
		if err := s.Restart(0); err != nil {
			t.Fatal(err)
		}
		committed := load(t, s, rdma.At(0, 0))
		for k := range uint64(3) {
			if got := load(t, s, rdma.At(0, 64+8*k)); got < committed || got > committed+1 {
				err = fmt.Errorf("power cut at step %d: record %d is committed, and has %d", step, committed, got)
			}
		}
		return 0, err
	}
	found := 0
	for seed := range uint64(4) {
		for _, seesTo := range []bool{true, false} {
			steps, _ := judge(seesTo, seed, 0, nil)
			if steps < 12 {
				t.Fatalf("the node made %d steps", steps)
			}
			for step := uint64(1); step <= steps; step++ {
				for _, keep := range []sim.Survivors{
					sim.AllSurvive, sim.NoneSurvive, sim.OneSurvives(0), sim.OneSurvives(1), sim.AnySurvive(step),
				} {
					if _, err := judge(seesTo, seed, step, keep); err != nil && seesTo {
						t.Errorf("seed %d: %v", seed, err)
					} else if err != nil {
						found++
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("a record may be missing while its commit word is there, and no cut finds it")
	}
}

// TestPowerCutOfAppend: an entry is durable when its sender is told, and may be there or not before
// that.
func TestPowerCutOfAppend(t *testing.T) {
	outcomes := map[[2]bool]int{} // acknowledged, whole
	for seed := range uint64(30) {
		for step := uint64(1); step <= 8; step++ {
			o := persistent(seed, false, false)
			o.MTU = 256
			s := open(t, o)
			receive(t, s)
			keep := sim.NoneSurvive
			if seed%2 == 0 {
				keep = sim.AnySurvive(seed)
			}
			s.CutPowerAt(0, step, keep)
			acknowledged := false
			s.Go("sender", func(ep rdma.Endpoint) {
				ep.Sleep(10 * time.Microsecond)
				acknowledged = appendEntry(ep, 5, 600) == nil
				ep.Sleep(10 * time.Microsecond)
				if steps := s.Steps(0); steps < step {
					s.CutPower(0, sim.NoneSurvive)
				}
			})
			if err := s.Run(); err != nil {
				t.Fatal(err)
			}
			if err := s.Restart(0); err != nil {
				t.Fatal(err)
			}
			p, words := ringMemory(t, s), 0
			for at := 0; at < 600; at += 8 {
				words += int(binary.LittleEndian.Uint64(p[at:]) / 5)
			}
			whole := words == 600/8
			if acknowledged && !whole || seed%2 == 1 && words > 0 && !whole {
				t.Errorf("seed %d, step %d: acknowledged %v, and %d words are left", seed, step, acknowledged, words)
			}
			outcomes[[2]bool{acknowledged, whole}]++
			s.Close()
		}
	}
	if len(outcomes) != 3 {
		t.Errorf("outcomes (acknowledged, whole): %v", outcomes)
	}
}

// TestPowerCutsOfStores cuts the power while a thread of the node writes two records past its
// caches, one behind the other: what NTStore has returned for is durable, and of the rest any
// words.
func TestPowerCutsOfStores(t *testing.T) {
	outcomes := map[[2]int]bool{}
	for step := uint64(1); step <= 4; step++ {
		for seed := range uint64(10) {
			s := open(t, persistent(seed, false, true))
			s.CutPowerAt(0, step, sim.AnySurvive(seed))
			done := 0
			s.GoAt(0, "thread", func(ep rdma.Endpoint) {
				for k := range 2 {
					s.NTStore(rdma.At(0, uint64(64*k)), entry(make([]byte, 24), 1))
					done++
				}
			})
			if err := s.Run(); err != nil {
				t.Fatal(err)
			}
			if !s.Dead(0) {
				t.Fatalf("the node made %d steps", s.Steps(0))
			}
			if err := s.Restart(0); err != nil {
				t.Fatal(err)
			}
			var words [2]int
			for k := range words {
				for at := range uint64(3) {
					words[k] += int(load(t, s, rdma.At(0, uint64(64*k)+8*at)))
				}
			}
			if words[0] < 3 && (done > 0 || words[1] > 0) || done == 2 {
				t.Errorf("power cut at step %d: %d records are done, and %v words of them there", step, done, words)
			}
			outcomes[words] = true
			s.Close()
		}
	}
	for _, want := range [][2]int{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 1}, {3, 2}, {3, 3}} {
		if !outcomes[want] {
			t.Errorf("never %v words are there", want)
		}
	}
}

// TestPowerCutOfAll cuts the power of all nodes at once, at each step that any of them makes, and
// of one of two.
func TestPowerCutOfAll(t *testing.T) {
	for _, node := range []int{sim.AnyNode, 1} {
		for step := uint64(1); step <= 4; step++ {
			o := persistent(1, false, false)
			o.Nodes = 2
			s := open(t, o)
			s.CutPowerAt(node, step, sim.NoneSurvive)
			var failed [2]error
			s.Go("writer", func(ep rdma.Endpoint) {
				for range 4 {
					for n := range failed {
						if failed[n] == nil {
							failed[n] = do(ep, func(b *rdma.Batch) { b.WriteWord(rdma.At(n, 0), 1) })
						}
					}
				}
			})
			if err := s.Run(); err != nil {
				t.Fatal(err)
			}
			all := node == sim.AnyNode
			if s.Dead(0) != all || !s.Dead(1) || s.Steps(node) != step ||
				s.Steps(sim.AnyNode) != s.Steps(0)+s.Steps(1) {
				t.Errorf("node %d, step %d: dead %v and %v, after %d and %d steps of %d", node,
					step, s.Dead(0), s.Dead(1), s.Steps(0), s.Steps(1), s.Steps(sim.AnyNode))
			}
			for n, err := range failed {
				if err != nil && (!errors.Is(err, rdma.ErrNodeDown) || !s.Dead(n)) {
					t.Errorf("a write to node %d: %v", n, err)
				}
			}
		}
	}
}

// TestRestart: a node that is back has its memory, and nothing else of before: no worker, no ring,
// no verb that was in flight.
func TestRestart(t *testing.T) {
	for _, hardware := range []bool{false, true} {
		o := persistent(3, false, false)
		o.Nodes = 2
		if hardware {
			p, err := sim.LookupProfile("rowan-testbed")
			if err != nil {
				t.Fatal(err)
			}
			o.Hardware = &p.Hardware
		}
		s := open(t, o)
		if err := s.Restart(0); !errors.Is(err, rdma.ErrExists) {
			t.Errorf("a node that is up restarts: %v", err)
		}
		resident := s.GoAt(0, "resident", func(ep rdma.Endpoint) { ep.Sleep(time.Second) })
		beside, err := s.Open("receiver")
		if err != nil {
			t.Fatal(err)
		}
		defer beside.Close()
		r, err := rdma.OpenRing(beside, rdma.RingOptions{Node: 0, Number: 1})
		if err == nil {
			err = r.Post(rdma.Span{Addr: rdma.At(0, ringAt), Len: ringRoom})
		}
		if err != nil {
			t.Fatal(err)
		}
		run(t, s, func(ep rdma.Endpoint) error {
			ep.Sleep(10 * time.Microsecond)
			err := writing(ep, [2]uint64{0, 1}, [2]uint64{8, 1}, [2]uint64{512})
			if err != nil {
				return err
			}
			b := ep.Batch() // in flight when the node dies, and when it is back
			b.WriteWord(rdma.At(0, 8), 2)
			b.Append(rdma.RingAt(0, 1), entry(b.Alloc(64), 9))
			if err := ep.Post(b); err != nil {
				return err
			}
			s.CutPower(sim.AnyNode, sim.AllSurvive)
			if _, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 2}); !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("open a ring on a dead node: %v", err)
			}
			if err := s.Restart(0); err != nil {
				return err
			}
			if err := ep.Wait(b, rdma.All, time.Second); err != nil {
				return err
			}
			for i := range b.Len() {
				if op := b.Op(i); !errors.Is(op.Err, rdma.ErrNodeDown) {
					t.Errorf("%s in flight to a node that was restarted: %v", op.Verb, op.Err)
				}
			}
			b.Release()
			if !resident.Crashed() {
				t.Error("a worker outlives its node")
			}
			if err := appendEntry(ep, 9, 64); !errors.Is(err, rdma.ErrNoRing) {
				t.Errorf("append to a ring of before: %v", err)
			}
			return writing(ep, [2]uint64{16, 3})
		})
		for i, want := range []uint64{1, 1, 3} {
			if got := load(t, s, rdma.At(0, uint64(8*i))); got != want {
				t.Errorf("word %d is %d, want %d", i, got, want)
			}
		}
		if p := ringMemory(t, s); slices.Max(p) != 0 {
			t.Error("an entry landed that was in flight when its node was restarted")
		}
	}
}

// TestRestartOfExpelled: a node that was expelled is not itself any more.
func TestRestartOfExpelled(t *testing.T) {
	s := open(t, persistent(1, false, false))
	run(t, s, func(ep rdma.Endpoint) error { return writing(ep, [2]uint64{0, 7}, [2]uint64{512}) })
	if ok, err := s.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := s.Expel(1, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(0); !errors.Is(err, rdma.ErrStale) || !s.Dead(0) {
		t.Errorf("a node that was expelled is back: %v", err)
	}
}

// TestRestartOfKilled: a node that is killed loses no power: persistent memory has all that it had,
// main memory nothing.
func TestRestartOfKilled(t *testing.T) {
	for _, has := range []bool{false, true} {
		o := persistent(1, false, false)
		want := uint64(7)
		if !has {
			o.PMem, want = nil, 0
		}
		s := open(t, o)
		s.KillNodeAt(0, 1)
		run(t, s, func(ep rdma.Endpoint) error {
			if err := writing(ep, [2]uint64{0, 7}); err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return err
			}
			return s.Restart(0)
		})
		cycle(t, s, sim.NoneSurvive)
		if got := load(t, s, rdma.At(0, 0)); got != want {
			t.Errorf("persistent %v: the word is %d, want %d", has, got, want)
		}
	}
}

// TestSuiteOnPersistentMemory runs the suite on persistent memory: until power is cut it is as main
// memory is.
func TestSuiteOnPersistentMemory(t *testing.T) { suite(t, persistent(2, false, false)) }
