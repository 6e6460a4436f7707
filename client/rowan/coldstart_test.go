package rowan_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// powerOff cuts the power of all nodes and of the managers.
func (p *pool) powerOff(keep sim.Survivors) {
	p.life++

	for _, w := range p.keepers {
		p.s.CrashAt(w, w.Sent()) // before it does anything
	}
	p.keepers = nil
	p.s.CutPower(sim.AnyNode, keep)
}

// powerOn brings all nodes back, but for those that the pool went on without, and one that is
// broken; and has managers and clients begin.
func (p *pool) powerOn(broken, players int) {
	p.hangs = 0
	for n := range p.o.Nodes {
		if n == broken {
			continue
		}
		if err := p.s.Restart(n); err == nil {
			p.s.GoAt(n, fmt.Sprint("server ", n), func(ep rdma.Endpoint) {
				if n == p.damaged && n > 0 && p.terms > 0 { // a pool that is being made waits for all
					p.flip(ep, n)
				}
				p.serve(ep, n)
			})
		} else if !errors.Is(err, rdma.ErrStale) {
			p.fail("node %d: %w", n, err)
		}
	}

	p.start(players)
}

// flip flips bits of a node's memory: in words, tables, and what was ever written.
func (p *pool) flip(ep rdma.Endpoint, node int) {
	r := p.flips
	b := ep.Batch()
	defer b.Release()
	for range 1 + r.IntN(1<<r.IntN(6)) {
		size := p.o.Size()
		if r.IntN(3) == 0 {
			size -= uint64(p.o.Log.Segments) * uint64(p.o.Log.SegmentBytes) // what is ahead of segments
		}
		for range 50 {
			at := rdma.At(node, r.Uint64N(size)&^7)
			word, err := rdma.ReadWord(ep, "read", at, time.Second)
			if err == nil && word != 0 {
				b.WriteWord(at, word^1<<r.IntN(64))
				p.flipped++
				break
			}
		}
	}
	_ = rdma.Do(ep, b.As("flip"), time.Second) // unless the power is cut before
}

// same sees that replicas are the same which are compared.
func (p *pool) same() func(*shards.Config) {
	last := p.config
	return func(c *shards.Config) {
		if last.Compare && !c.Compare && fmt.Sprint(last.Shards) != fmt.Sprint(c.Shards) {
			p.fail("in term %d replicas differ: shards were %+v, and are %+v", c.Term, last.Shards, c.Shards)
		}
		last = c
	}
}

// coldStart runs a pool and cuts its power, up to three times, at any point, also during recovery.
// With damage bits flip in the memory of one node, and no node dies.
func coldStart(k kv.Kind, seed uint64, damage bool) (flipped int, err error) {
	const players = 3
	r := rand.New(rand.NewPCG(seed, 12))
	o := sim.Hostile(seed)
	o.MTU, o.CountRings, o.MaxEvents, o.PMem = mtu, seed%2 == 0, 20e6, new(pmem.Testbed())
	o.DMAProb, o.DMAMax = 0.03, 1500*time.Microsecond
	opts := small(k)
	opts.Workers, opts.Tombs = 1+r.IntN(2), 5
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	cuts, nodes := 1+r.IntN(3), 3+r.IntN(3)
	of := shape{nodes: nodes, players: players, ops: 50 + r.IntN(400), damage: damage}
	moves := nodes == 5 && r.IntN(2) == 0
	if moves {
		of.period, of.least = time.Millisecond, 8
	}
	p, err := newPool(o, opts, of)
	if err != nil {
		return 0, err
	}
	defer p.s.Close()
	p.seen = p.same()
	if damage {
		p.seen, p.damaged, p.flips = nil, 1+r.IntN(nodes-1), rand.New(rand.NewPCG(seed, 13))
	}
	p.left, p.pause = players*(1+cuts), time.Duration(r.IntN(2))*50*time.Microsecond
	if r.IntN(2) == 0 {
		p.keys = 50
	}
	if moves { // servers lose shards and get them again
		p.shift, p.keys, p.writes = 4*time.Millisecond, []int{12, 40, 100}[r.IntN(3)], 10+r.IntN(75)
	}
	if nodes > 3 && r.IntN(3) == 0 && !damage {
		p.troubled = 20 * time.Millisecond
		p.s.KillNodeAfter(r.IntN(nodes), time.Duration(r.Int64N(int64(p.troubled))))
	}
	p.s.Go("power", func(ep rdma.Endpoint) {
		broken := -1
		for cut := range cuts {
			most := []time.Duration{time.Millisecond, 6 * time.Millisecond, 30 * time.Millisecond}[r.IntN(3)]
			ep.Sleep(100*time.Microsecond + time.Duration(r.Int64N(int64(most))))
			p.powerOff(sim.AnySurvive(r.Uint64()))
			ep.Sleep(time.Millisecond)
			if broken < 0 && nodes > 3 && r.IntN(4) == 0 && !damage {
				broken = r.IntN(nodes)
			}
			if cut == cuts-1 && r.IntN(2) == 0 { // what was under way is not written again
				p.play = p.random(3)
			}
			p.powerOn(broken, players)
		}
	})
	return p.flipped, p.run()
}

// TestColdStart: what clients see is linearizable, and in the end all replicas have the same, while
// the power of all nodes is cut and comes back.
func TestColdStart(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	eachSeed(t, 40, 5000, func(k kv.Kind, seed uint64) error {
		_, err := coldStart(k, seed, false)
		return err
	})
}

// TestDamage is the same while bits flip in the memory of one node after a power cut: what it has
// lost is copied from other replicas, or it is left out.
func TestDamage(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	all := 0
	eachSeed(t, 20, 5000, func(k kv.Kind, seed uint64) error {
		flipped, err := coldStart(k, seed, true)
		all += flipped
		return err
	})
	t.Logf("%d bits flipped", all)
}
