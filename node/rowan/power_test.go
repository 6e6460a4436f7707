package rowan_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tiny is a log in which a few entries use each segment several times. A segment has room for three
// blocks.
var tiny = rowan.Options{
	Ring: 2, Segments: 9, SegmentBytes: 3 * mtu, Ahead: 5, Sources: sources, Credit: noCredit, Secret: secret,
}

// outage is a loss of power behind a step of the node, with what survives it.
type outage struct {
	step uint64
	keep sim.Survivors
}

// outages runs a world without any crash, but with losses of power, after each of which the node
// comes back, and so does a receiver. Senders live. It returns how many steps the node made, and
// what went wrong.
func outages(seed uint64, ddio bool, cuts ...outage) (steps uint64, err error) {
	o, device, log, entries := sim.Hostile(seed), pmem.Testbed(), tiny, 8
	if o.RingStreams = hasStreams(seed); o.RingStreams {
		log, entries = streamed(log), 24
	}
	device.DDIO = ddio
	o.MTU, o.CountRings, o.Memory, o.PMem = mtu, seed%2 == 0, log.Size(), &device
	w := newWorld(o, log, entries)
	w.pause = 150 * time.Microsecond
	defer w.s.Close()
	for _, c := range cuts {
		w.s.CutPowerAt(0, c.step, c.keep)
	}
	w.startReceiver()
	for source := range sources {
		w.s.Go(fmt.Sprint("sender ", source), w.send(source))
	}
	if err := w.s.Run(); err != nil {
		return 0, err
	}
	steps = w.s.Steps(0)
	if err := w.judge(); err != nil {
		return 0, fmt.Errorf("seed %d, power cut %v: %w", seed, cuts, err)
	}
	if len(cuts) == 0 && len(w.gone) == 0 {
		err = fmt.Errorf("seed %d: no segment is used again", seed)
	}
	return steps, err
}

// noneOf leaves what is durable, and notes how many words are not.
func noneOf(words *int) sim.Survivors {
	return func(_, n, _ int) int {
		*words = n
		return 0
	}
}

// allBut leaves everything but what was not durable of a word.
func allBut(word int) sim.Survivors {
	return func(i, _, writes int) int {
		if i == word {
			return 0
		}
		return writes
	}
}

// TestPowerCuts cuts the power behind each step of a node, with each of several subsets of the
// words that are not durable left: what was acknowledged is there, whole, in its order and its
// place, and nothing else than what was appended. With $FARKV_LONG each of the words alone is left,
// and lost.
func TestPowerCuts(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	first, n := seeds(3, 10)
	runs, words, all := 0, 0, 0
	for seed := first; seed < first+n; seed++ {
		run := func(cuts ...outage) uint64 {
			runs++
			steps, err := outages(seed, false, cuts...)
			if err != nil {
				t.Fatal(err)
			}
			return steps
		}
		steps := run()
		all += int(steps)
		for step := uint64(1); step <= steps; step++ {
			volatile := 0
			run(outage{step, noneOf(&volatile)})
			words += volatile
			if volatile == 0 {
				continue
			}
			run(outage{step, sim.AllSurvive})
			run(outage{step, sim.AnySurvive(step)})
			// a segment's state, if that is among them: the table is first in memory
			run(outage{step, sim.OneSurvives(0)})
			run(outage{step, allBut(int(step) % volatile)})
			for k := range volatile {
				if os.Getenv("FARKV_LONG") == "1" {
					run(outage{step, sim.OneSurvives(k)})
					run(outage{step, allBut(k)})
				}
			}
		}
		for step := 5 + seed%7; step <= steps; step += steps / 4 { // and again while the receiver recovers
			for again := step + 1; again < step+40; again++ {
				run(outage{step, sim.AnySurvive(step)}, outage{again, sim.NoneSurvive})
				run(outage{step, sim.NoneSurvive}, outage{again, sim.AnySurvive(again)})
			}
		}
	}
	t.Logf("%d runs: %d steps, with %d words not durable behind them", runs, all, words)
}

// TestPowerCutsAndCrashes cuts the power up to four times in a run, beside everything else that
// goes wrong in TestCrashes.
func TestPowerCutsAndCrashes(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	first, n := seeds(80, 5000)
	for seed := first; seed < first+n; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		var cuts []outage
		for range 1 + r.IntN(4) {
			cuts = append(cuts, outage{1 + r.Uint64N(1500), sim.AnySurvive(r.Uint64())})
		}
		if err := crashes(seed, cuts...); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestPowerCutsWithDDIO has DMA go to caches that are lost with the power: a READ does not help
// what is acknowledged.
func TestPowerCutsWithDDIO(t *testing.T) {
	steps, err := outages(1, true)
	if err != nil {
		t.Fatal(err)
	}
	for step := uint64(1); step <= steps; step++ {
		if _, err := outages(1, true, outage{step, sim.NoneSurvive}); err != nil {
			return
		}
	}
	t.Errorf("nothing is lost by any of %d power cuts", steps)
}
