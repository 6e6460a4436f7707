package quorum

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
)

func worker(t *testing.T, nodes, attempts int) (*shm.Fabric, *Quorum, []rdma.Addr) {
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: 4096, Clients: 4}, nil)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	for n := range nodes {
		must(t, f.Commit(n, 0, f.Size()))
	}
	ep, err := f.Open(t.Name())
	must(t, err)
	q := New(still{ep}, Options{Attempts: attempts})
	t.Cleanup(func() {
		q.Release()
		ep.Close()
	})
	return f, &q, words(nodes)
}

// still is an endpoint of which the clock stands still: what is slow stays so, however long the
// machine lets the test wait.
type still struct{ rdma.Endpoint }

func (still) Now() time.Duration { return time.Second }

// TestVerdicts: a replica that never counts is made up for by the others, as long as there are
// enough; one that is asked again counts when it does, and not for ever.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name  string
		judge func(r, asked int) Verdict
		want  error
		done  Mask
		asked [5]int
	}{
		{"a mere majority", func(r, asked int) Verdict { return Done }, nil, 0b01110, [5]int{0, 1, 1, 1, 0}},
		{"one refuses", func(r, asked int) Verdict {
			if r == 2 {
				return Never
			}
			return Done
		}, nil, 0b11011, [5]int{1, 1, 1, 1, 1}},
		{"three refuse", func(r, asked int) Verdict {
			if r < 3 {
				return Never
			}
			return Done
		}, ErrRefused, 0b11000, [5]int{1, 1, 1, 1, 1}},
		{"one counts at last", func(r, asked int) Verdict {
			if r == 2 && asked < 3 {
				return Again
			}
			return Done
		}, nil, 0b01110, [5]int{0, 1, 3, 1, 0}},
		{"three never count", func(r, asked int) Verdict {
			if r < 3 {
				return Again
			}
			return Done
		}, ErrAttempts, 0b11000, [5]int{4, 4, 4, 1, 1}},
	} {
		_, q, at := worker(t, 5, 4)
		var asked [5]int
		err := q.Gather("step", at, 1, All(5), 3, func(b *rdma.Batch, r int) error {
			asked[r]++
			return readWord(at)(b, r)
		}, func(r int, _ *rdma.Batch, _ Chain) Verdict { return c.judge(r, asked[r]) })
		if !errors.Is(err, c.want) || q.Done() != c.done || asked != c.asked {
			t.Errorf("%s: %v; %05b are done after %v, want %05b after %v", c.name, err, q.Done(), asked, c.done,
				c.asked)
		}
	}
}

// TestShun: a node that failed is asked last in the steps behind.
func TestShun(t *testing.T) {
	f, q, at := worker(t, 3, 4)
	must(t, f.KillNode(0))
	for step := range 3 {
		must(t, q.Gather("step", at, 0, All(3), 2, readWord(at), done))
		if q.Done() != 0b110 || q.Stats().Widened != 1 || !q.IsSlow(0) || q.IsSlow(1) {
			t.Errorf("step %d: %03b answered, %+v", step, q.Done(), q.Stats())
		}
	}
}

// TestRejoinsWhenFull: a step that asked a replica many times before a fence cuts it off goes on;
// and however often fences do, what was read stays.
func TestRejoinsWhenFull(t *testing.T) {
	for before := range 12 {
		_, q, at := worker(t, 3, 100)
		joined, asked := 0, 0
		q.Rejoin = func() error {
			joined++
			return nil
		}
		var first *rdma.Batch
		must(t, q.Gather("step", at, 0, All(3), 2, func(b *rdma.Batch, r int) error {
			if r == 1 {
				if asked++; asked > before && joined < 12 {
					return rdma.ErrStale
				}
			}
			return readWord(at)(b, r)
		}, func(r int, b *rdma.Batch, ch Chain) Verdict {
			if r == 0 {
				first = b
				return Done
			}
			if asked <= before {
				return Again
			}
			return Done
		}))
		if q.Done() != 0b011 || joined != 12 {
			t.Errorf("fenced off behind %d questions: %03b are done, and %d times joined", before, q.Done(), joined)
		}
		kept := slices.ContainsFunc(q.flights[:q.n], func(f flight) bool { return f.b == first })
		if before < len(q.flights)-1 && !kept {
			t.Errorf("fenced off behind %d questions: what was read was given back", before)
		}
	}
}

// TestAskFails: a replica that cannot be asked, since its node is dead, is one that failed; any
// other failure ends the step, and tells which replicas were asked in vain.
func TestAskFails(t *testing.T) {
	_, q, at := worker(t, 5, 4)
	for bad := range 5 {
		err := q.Gather("step", at, bad, All(5), 3, func(b *rdma.Batch, r int) error {
			if r == bad {
				return fmt.Errorf("replica %d: %w", r, rdma.ErrNodeDown)
			}
			return readWord(at)(b, r)
		}, done)
		if err != nil || q.Done().Len() < 3 || q.Done().Has(bad) || !q.IsSlow(bad) {
			t.Errorf("replica %d cannot be asked: %v; %05b are done", bad, err, q.Done())
		}
	}
	_, q, at = worker(t, 3, 4)
	if err := q.Gather("step", at, 0, All(3), 2, func(*rdma.Batch, int) error { return rdma.ErrNodeDown },
		done); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("no replica can be asked: %v", err)
	}
	_, q, at = worker(t, 3, 4)
	full := errors.New("full")
	err := q.Gather("step", at, 0, All(3), 2, func(b *rdma.Batch, r int) error {
		if r == 1 {
			return full
		}
		return readWord(at)(b, r)
	}, done)
	if !errors.Is(err, full) || q.Unsent() != 0b011 || q.Flying() != 0 || q.Posted() {
		t.Errorf("replica 1 has no room: %v; %03b were asked in vain, %03b are in flight", err, q.Unsent(), q.Flying())
	}
}

// TestUnsent: a replica of which the whole chain had no effect was asked in vain, also when others
// were asked behind it. One of which a verb may have landed was not.
func TestUnsent(t *testing.T) {
	down := rdma.NoEffect(rdma.ErrNodeDown)
	for _, c := range []struct {
		write, cas error
		want       Mask
	}{{down, down, 0b001}, {rdma.ErrNodeDown, down, 0}, {down, rdma.ErrNodeDown, 0}, {nil, down, 0}} {
		_, q, at := worker(t, 3, 4)
		var faults []fault.Fault
		for i, err := range []error{c.write, c.cas} {
			if err != nil {
				faults = append(faults, fault.Fault{At: uint64(i + 1), Err: err})
			}
		}
		q.ep = fault.New(q.ep, faults...)
		err := q.Gather("step", at, 0, All(3), 2, func(b *rdma.Batch, r int) error {
			b.Write(at[r].Add(8), b.Alloc(8))
			b.CompareSwap(at[r], 0, 1)
			return nil
		}, done)
		if err != nil || q.Unsent() != c.want || q.Done() != 0b110 {
			t.Errorf("a WRITE and a CAS that end with %v and %v: %v; %03b were asked in vain, %03b are done", c.write,
				c.cas, err, q.Unsent(), q.Done())
		}
	}
}

// TestUnresolved: what was in flight when a step ended is looked at once, when it is complete;
// beyond the bound it is dropped.
func TestUnresolved(t *testing.T) {
	s := sim.New(sim.Options{Nodes: 3, Memory: 4096,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: 0, Factor: 1000, For: time.Second}}})
	defer s.Close()
	s.Go("client", func(ep rdma.Endpoint) {
		const steps = maxUnresolved + 3
		at := words(3)
		var kept Unresolved
		looked := map[uint64]int{}
		look := func(tag uint64, b *rdma.Batch, ch Chain) {
			if looked[tag]++; ch.Replica != 0 || b.Op(ch.First).Err != nil || !b.Completed(ch.First) {
				t.Errorf("step %d: a chain of replica %d: %v", tag, ch.Replica, b.Op(ch.First).Err)
			}
		}
		for n := range uint64(steps) {
			q := New(ep, Options{Slow: 10 * time.Microsecond, Attempts: 1}) // which knows of no slow node
			must(t, q.Gather("step", at, 0, All(3), 2, readWord(at), done))
			if q.Flying() != 0b001 {
				t.Errorf("step %d: %03b are in flight", n, q.Flying())
			}
			kept.Keep(&q, n)
			kept.Keep(&q, n) // there is nothing left
			if kept.Settle(look); len(looked) > 0 {
				t.Error("what is in flight is looked at")
			}
			q.Release()
		}
		kept.Wait(ep, time.Second)
		kept.Settle(look)
		kept.Settle(look)
		for tag, n := range looked {
			if n != 1 {
				t.Errorf("step %d's chain was looked at %d times", tag, n)
			}
		}
		if kept.Len() != 0 || len(looked)+int(kept.Dropped) != steps || kept.Dropped != 3 {
			t.Errorf("%d chains were looked at, %d dropped, %d are kept", len(looked), kept.Dropped, kept.Len())
		}
	})
	must(t, s.Run())
}

// TestNotPostedIsNotUnresolved: a batch that was not posted never completes, and is not waited for.
func TestNotPostedIsNotUnresolved(t *testing.T) {
	s := sim.New(sim.Options{Nodes: 5, Memory: 4096,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: 0, Factor: 1000, For: time.Second}}})
	defer s.Close()
	s.Go("client", func(ep rdma.Endpoint) {
		q, at, full := New(ep, Options{Slow: 10 * time.Microsecond, Attempts: 1}), words(5), errors.New("full")
		err := q.Gather("step", at, 0, All(5), 3, func(b *rdma.Batch, r int) error {
			if r == 4 {
				return full
			}
			return readWord(at)(b, r)
		}, done)
		if !errors.Is(err, full) || q.Flying() != 0b001 {
			t.Errorf("%v; %03b are in flight", err, q.Flying())
		}
		var kept Unresolved
		if kept.Keep(&q, 0); kept.Len() != 1 {
			t.Errorf("%d batches are in flight", kept.Len())
		}
		q.Release()
		kept.Wait(ep, time.Second)
		if kept.Settle(func(uint64, *rdma.Batch, Chain) {}); kept.Len() != 0 {
			t.Errorf("%d batches are in flight when all is over", kept.Len())
		}
	})
	must(t, s.Run())
}
