package rowan_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// cutBehind is a pool in which servers digest and collect segments while clients insert, update and
// delete. The power of all nodes is cut after a given step of the servers, and returns: see
// sim.CutPowerAt. 0: it is not cut.
func cutBehind(k kv.Kind, step uint64) (*pool, error) {
	const players = 2
	opts := small(k)
	opts.Workers, opts.Tombs = 1, 5
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 40, 24, 10
	device := pmem.Testbed()
	o := sim.Options{Seed: 1, MTU: mtu, CountRings: true, MaxEvents: 20e6, PMem: &device}
	p, err := newPool(o, opts, shape{nodes: servers, players: players, ops: 150})
	if err != nil || step == 0 {
		return p, err
	}
	p.seen, p.left = p.same(), 2*players
	p.s.CutPowerAt(sim.AnyNode, step, sim.AnySurvive(step))
	p.s.Go("power", func(ep rdma.Endpoint) {
		for !p.s.Dead(0) {
			ep.Sleep(10 * time.Microsecond)
		}
		p.powerOff(sim.NoneSurvive) // of nodes, nothing: they have none
		ep.Sleep(time.Millisecond)
		p.play = p.random(20)
		p.powerOn(-1, players)
	})
	return p, nil
}

// TestPowerSteps cuts the power of all nodes behind each step of theirs, a message or a verb that
// lands, from when a first segment is collected until more are: meanwhile operations are under way,
// and entries are digested. All of these steps with FARKV_LONG=1, else a few.
func TestPowerSteps(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		p, err := cutBehind(k, 0)
		if err != nil {
			t.Fatal(err)
		}
		var steps [2]uint64
		p.s.Go("count", func(ep rdma.Endpoint) {
			for i, most := range []uint64{0, 9} {
				for cleaned(p) <= most && !p.over {
					ep.Sleep(20 * time.Microsecond)
				}
				steps[i] = p.s.Steps(sim.AnyNode)
			}
		})
		err = errors.Join(p.run(), p.s.Close())
		if err != nil {
			t.Fatal(err)
		}
		all := steps[1] - steps[0]
		t.Logf("%d steps, behind %d", all, steps[0])
		if cleaned(p) < 10 || all < 100 {
			t.Fatalf("%d segments are cleaned", cleaned(p))
		}
		runs := uint64(20)
		if k != kv.Rowan {
			runs = 4
		}
		if os.Getenv("FARKV_LONG") == "1" {
			runs = all
		}
		for i := range runs {
			step := steps[0] + 1 + i*all/runs
			p, err := cutBehind(k, step)
			if err == nil {
				err = errors.Join(p.run(), p.s.Close())
			}
			if err == nil && p.life != 1 {
				err = errors.New("it is not")
			}
			if err != nil {
				t.Fatalf("the power is cut behind step %d: %v", step, err)
			}
		}
	})
}

// cleaned returns how many segments all servers have cleaned.
func cleaned(p *pool) (n uint64) {
	for _, srv := range p.running {
		if srv != nil {
			n += srv.Stats().Cleaned
		}
	}
	return n
}
