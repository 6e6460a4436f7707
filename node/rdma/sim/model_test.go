package sim_test

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// testbed is FUSEE's, with whatever else may happen.
func testbed(t testing.TB, seed uint64) sim.Options {
	t.Helper()
	p, err := sim.LookupProfile("fusee-testbed")
	if err != nil {
		t.Fatal(err)
	}
	return p.Options(seed, 2)
}

func TestReorderingOnHardware(t *testing.T) {
	o := testbed(t, 1)
	h := *o.Hardware
	h.AtomicMops, h.AtomicWordMops = 0, 0 // else the unit keeps the two CASes of one word further apart than PCIe
	o.Hardware = &h
	if reads, atomics := passes(t, o); reads < 50 || atomics < 50 || reads > 900 || atomics > 900 {
		t.Errorf("%d of 1000 READs and %d CASes were passed", reads, atomics)
	}
	o.Reorder = false
	if reads, atomics := passes(t, o); reads != 0 || atomics != 0 {
		t.Errorf("%d READs and %d CASes were passed without Reorder", reads, atomics)
	}
}

// TestReorderingTakesNoTime: when a READ lands is drawn, when its answer is there is not.
func TestReorderingTakesNoTime(t *testing.T) {
	o := testbed(t, 1)
	one := func(b *rdma.Batch) { b.Read(rdma.At(0, 0), 64) }
	for seed := range uint64(20) {
		o.Seed, o.Reorder = seed, true
		with := idle(t, o, one)
		o.Reorder = false
		if without := idle(t, o, one); with != without {
			t.Errorf("seed %d: a READ takes %v, and %v in order", seed, with, without)
		}
	}
}

// TestAReadBehindAWrite: it arrives in the very nanosecond in which the WRITE before it lands, and
// finds it.
func TestAReadBehindAWrite(t *testing.T) {
	for gap := range 40 { // between landings of WRITEs; verbs arrive every 10 ns
		h := sim.Hardware{Propagation: 500, ClientMops: 100, PCIeGbps: 64 / float64(gap+1)}
		s := open(t, machines(h))
		s.Go("client", func(ep rdma.Endpoint) {
			b := ep.Batch()
			p := b.Alloc(8)
			copy(p, "written!")
			b.Write(rdma.At(0, 64), p)
			b.Write(rdma.At(0, 0), p)
			found := b.Read(rdma.At(0, 0), 8)
			if err := rdma.Do(ep, b, rdma.Forever); err != nil || string(found.Buf) != "written!" {
				t.Errorf("%d ns apart: a READ behind a WRITE finds %q (%v)", gap+1, found.Buf, err)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnswersComeInOrder: a WRITE's does not overtake that of a READ posted before it on the same
// connection, though the READ waits for memory.
func TestAnswersComeInOrder(t *testing.T) {
	s := open(t, machines(sim.Hardware{Propagation: 500, PCIe: 300}))
	s.Go("client", func(ep rdma.Endpoint) {
		b := ep.Batch()
		b.Read(rdma.At(0, 0), 8)
		b.Write(rdma.At(0, 64), b.Alloc(8))
		b.Write(rdma.At(1, 64), b.Alloc(8))
		ep.Post(b)
		if err := ep.Wait(b, 1, rdma.Forever); err != nil || b.Completed(0) || b.Completed(1) || !b.Completed(2) {
			t.Errorf("at first %v, %v, %v are complete", b.Completed(0), b.Completed(1), b.Completed(2))
		}
		if err := ep.Wait(b, 2, rdma.Forever); err != nil || !b.Completed(0) {
			t.Errorf("the READ is not the second to complete (%v)", err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestTearingOnHardware(t *testing.T) {
	o := testbed(t, 1)
	if mixed, _ := torn(t, o); mixed != 0 {
		t.Errorf("%d READs are torn on a profile", mixed)
	}
	o.Tear = true
	if mixed, disordered := torn(t, o); mixed < 50 || disordered < 10 {
		t.Errorf("of 900 READs %d are torn, %d of them at several words", mixed, disordered)
	}
}

func TestRetransmission(t *testing.T) {
	const timeout = time.Millisecond
	h := sim.Hardware{Propagation: 500, Loss: 0.1, RetransmitTimeout: timeout}
	o := machines(h)
	s := open(t, o)
	var late, lateTwice, disordered int
	s.Go("client", func(ep rdma.Endpoint) {
		for i := range uint64(1000) {
			b := ep.Batch()
			b.CompareSwap(rdma.At(0, 0), 2*i, 2*i+1)
			second := b.CompareSwap(rdma.At(0, 0), 2*i+1, 2*i+2)
			before := ep.Now()
			if err := rdma.Do(ep, b, rdma.Forever); err != nil {
				t.Error(err)
			}
			if !second.Swapped() {
				disordered++
			}
			switch took := ep.Now() - before; {
			case took >= 2*timeout:
				lateTwice++
			case took >= timeout:
				late++
			case took != 1000:
				t.Errorf("nothing was lost, but it took %v", took)
			}
			b.Release()
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if disordered > 0 {
		t.Errorf("%d messages passed a lost one on their connection", disordered)
	}
	if late+lateTwice < 280 || late+lateTwice > 410 || lateTwice < 5 { // of four messages one or more is lost: 34 %
		t.Errorf("%d of 1000 round trips met a loss, %d met two", late, lateTwice)
	}
}

// everything has on what there is.
func everything(t testing.TB, seed uint64) sim.Options {
	o := sim.Hostile(seed)
	p := testbed(t, seed)
	h := *p.Hardware
	h.Loss, h.RetransmitTimeout = 0.01, 50*time.Microsecond
	o.Hardware, o.Nodes, o.Handler = &h, 2, adder
	o.Drift, o.ClockOffset = 100, time.Millisecond
	o.Device = []sim.Range{{Node: 1, Offset: 0, Bytes: 64}}
	var err error
	o.Faults, err = sim.ParseFaults(`stall client="worker 0" verb=11 for=30µs; crash client="worker 1" verb=60; ` +
		`partition client="worker 2" node=1 at=20µs for=40µs; slow node=0 factor=3 at=30µs for=50µs; ` +
		`fly client="worker 3" verb=9 for=70µs; late client="worker 3" at=10µs for=30µs; ` +
		`step client=* at=50µs by=-1ms; ` +
		`crash node=1 at=150µs`)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// traceOn returns the trace of busy workers, a line an event.
func traceOn(t testing.TB, o sim.Options, workers ...int) []string {
	var lines []string
	o.Trace = func(e sim.Event) { lines = append(lines, e.String()) }
	s := open(t, o)
	for _, i := range workers {
		s.Go(fmt.Sprint("worker ", i), busy)
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestSameSeedSameRunWithEverything(t *testing.T) {
	hash := func(seed uint64) uint64 {
		h := fnv.New64a()
		fmt.Fprint(h, traceOn(t, everything(t, seed), 0, 1, 2, 3, 4))
		return h.Sum64()
	}
	for seed := range uint64(10) {
		if a, b := hash(seed), hash(seed); a != b {
			t.Errorf("two runs of seed %d differ: %#x, %#x", seed, a, b)
		}
	}
	if hash(1) == hash(2) {
		t.Error("seeds 1 and 2 are the same run")
	}
}

// of returns a worker's lines, and its tasks' are not among them. What an atomic or a READ found
// may differ.
func of(lines []string, worker string) []string {
	var own []string
	for _, l := range lines {
		if strings.Contains(l, "  "+worker+" ") {
			l, _, _ = strings.Cut(l, ", was")
			own = append(own, l)
		}
	}
	return own
}

// TestDroppingAClientLeavesTheOthersLuck: on machines without queues, a worker's verbs meet the
// same fate at the same time, whichever other workers there are.
func TestDroppingAClientLeavesTheOthersLuck(t *testing.T) {
	o := everything(t, 5)
	o.Hardware = &sim.Hardware{Propagation: 700, PCIe: 300, Loss: 0.05, RetransmitTimeout: 50 * time.Microsecond}
	all, some := traceOn(t, o, 0, 1, 2, 3, 4), traceOn(t, o, 2, 3, 4)
	for _, w := range []string{"worker 2", "worker 3", "worker 4"} {
		if a, b := of(all, w), of(some, w); len(a) < 50 || !slices.Equal(a, b) {
			t.Errorf("%s: %d and %d events", w, len(a), len(b))
		}
	}
}

// TestDroppingAFaultLeavesTheOthersLuck: a fault changes nothing for workers that it does not hit.
func TestDroppingAFaultLeavesTheOthersLuck(t *testing.T) {
	o := everything(t, 6)
	o.Hardware = &sim.Hardware{Propagation: 700, PCIe: 300, Loss: 0.05, RetransmitTimeout: 50 * time.Microsecond}
	all := traceOn(t, o, 0, 1, 2, 3, 4)
	o.Faults = o.Faults[3:] // without those of workers 0, 1 and 2
	some := traceOn(t, o, 0, 1, 2, 3, 4)
	for i, w := range []string{"worker 0", "worker 1", "worker 2", "worker 3", "worker 4"} {
		if a, b := of(all, w), of(some, w); len(a) < 50 || slices.Equal(a, b) != (i >= 3) {
			t.Errorf("%s: %d and %d events, the same: %v", w, len(a), len(b), slices.Equal(a, b))
		}
	}
}
