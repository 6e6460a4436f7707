package extents

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// extentSeeds is how many a test tries.
func extentSeeds(n uint64) uint64 {
	if s, err := strconv.ParseUint(os.Getenv("FARKV_SEEDS"), 10, 64); err == nil {
		return s
	}
	return n
}

// TestExtentsAtEveryCrash lets a client die after each of its verbs, while others work, leave,
// and claim free extents. No extent in use is claimed, no reader gets a value of another use than
// the one that its ref names, and no extent is lost.
func TestExtentsAtEveryCrash(t *testing.T) {
	if sum := everyCrash(t, extentSeeds(8), modelParams()); sum.full == 0 {
		t.Error("it was never full")
	}
}

// TestClassesAtEveryCrash is the same with values of all sizes, so that units change their class.
// In the end all units that rows do not name can be of any class.
func TestClassesAtEveryCrash(t *testing.T) {
	if sum := everyCrash(t, extentSeeds(10), classedModelParams()); sum.stats.Carved == 0 || sum.stats.Collided == 0 {
		t.Errorf("no unit changed its class, or no two clients wanted one: %+v", sum.stats)
	}
}

func everyCrash(t *testing.T, seeds uint64, p table.Params) (sum extentModel) {
	alone(t)
	runs := 0
	for seed := uint64(1); seed <= seeds; seed++ {
		play := func(crash uint64) uint64 {
			e := newExtentModel(t, seed, p, sim.Hostile(seed), 3, 15)
			sent := e.run(crash)
			runs++
			sum.stats.Scans += e.stats.Scans
			sum.stats.Handed += e.stats.Handed
			sum.stats.Claims += e.stats.Claims
			sum.stats.Missed += e.stats.Missed
			sum.stats.Rescued += e.stats.Rescued
			sum.stats.Carved += e.stats.Carved
			sum.stats.Collided += e.stats.Collided
			sum.full += e.full
			sum.old += e.old
			if t.Failed() {
				t.Fatalf("seed %d, crash behind verb %d", seed, crash)
			}
			return sent
		}
		for crash := play(0); crash > 0; crash-- {
			play(crash)
		}
	}
	t.Logf("%d runs: %+v, %d times full, %d refs were old", runs, sum.stats, sum.full, sum.old)
	if runs < 400 || sum.stats.Scans == 0 || sum.stats.Missed == 0 || sum.stats.Rescued == 0 || sum.old == 0 {
		t.Error("something never happened")
	}
	return sum
}

// TestClaimsOfMovingKeys: while keys move between their two rows, the claim list of a client that
// is gone is freed again and again. The extents of these keys are never freed.
func TestClaimsOfMovingKeys(t *testing.T) {
	alone(t)
	moves := 0
	for seed := uint64(1); seed <= extentSeeds(40); seed++ {
		e := newExtentModel(t, seed, modelParams(), sim.Hostile(seed), 2, 3)
		first := e.owners[0]
		gone := e.v.Go("settler", func(ep rdma.Endpoint) {
			first.x = openExtents(e.l, ep)
			for _, k := range e.keys {
				must(t, first.put(ep, k, false))
			}
		})
		must(t, e.v.Run())
		over := false
		second := e.owners[1]
		second.w = e.v.Go("mover", func(ep rdma.Endpoint) {
			for ; !over; moves++ {
				if k := e.keys[ep.Rand().IntN(len(e.keys))]; k.at.First != k.at.Second {
					must(t, second.move(ep, k))
				}
			}
		})
		e.v.Go("keeper", func(ep rdma.Endpoint) {
			defer func() { over = true }()
			for turn := range 60 {
				want := 0
				if turn == 0 {
					want = e.l.SlabExtents - len(e.keys)
				}
				n, err := openExtents(e.l, ep).Leave(0, gone.Client())
				if err != nil && !errors.Is(err, errBusyRows) || err == nil && n != want {
					e.fail("freed %d extents, want %d: %v", n, want, err)
					return
				}
				if err != nil && turn == 0 {
					return
				}
			}
		})
		must(t, e.v.Run())
		e.v.Close()
		if t.Failed() {
			t.FailNow()
		}
	}
	if moves < 1000 {
		t.Errorf("%d moves", moves)
	}
}
