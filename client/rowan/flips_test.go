package rowan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// flipNamed flips a bit of an entry that a server's index names for a key of which it is the
// primary, and reports whether there is one. The worker runs beside the node: in what it takes no
// segment is freed and used again.
func flipNamed(ep rdma.Endpoint, srv *server.Server, key []byte, r *rand.Rand) bool {
	blocks := srv.Named(key)
	if len(blocks) == 0 {
		return false
	}
	at := blocks[r.IntN(len(blocks))]
	head, err := rdma.ReadWord(ep, "read head", at, time.Second)
	if err != nil {
		return false
	}
	const headers, record = 24, 16
	n := min(headers+int(head>>32&(1<<20-1)), mtu) // of one that is longer, where its key is
	if r.IntN(3) == 0 {
		n = headers + record + len(key)
	}
	word := at.Add(uint64(r.IntN((n+7)/8) * 8))
	was, err := rdma.ReadWord(ep, "read", word, time.Second)
	if err != nil {
		return false
	}
	bit := r.IntN(64)
	if left := n - int(word.Offset()-at.Offset()); left < 8 {
		bit = r.IntN(8 * left)
	}
	b := ep.Batch()
	defer b.Release()
	b.WriteWord(word, was^1<<bit)
	return rdma.Do(ep, b.As("flip"), time.Second) == nil
}

// flips runs a pool in which bits of live entries flip at one node, while clients run.
func flips(k kv.Kind, seed uint64) (flipped, repaired int, err error) {
	r := rand.New(rand.NewPCG(seed, 14))
	opts := small(k)
	opts.Workers, opts.Tombs = 1+r.IntN(2), 5
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	nodes := 3 + r.IntN(3)
	of := shape{nodes: nodes, players: 3, ops: 400, shards: 1 + r.IntN(6), damage: true}
	if nodes == 5 {
		of.period, of.least = time.Millisecond, 8
	}
	p, err := newPool(sim.Options{Seed: seed, MTU: mtu, CountRings: true, MaxEvents: 20e6}, opts, of)
	if err != nil {
		return 0, 0, err
	}
	defer p.s.Close()
	p.damaged, p.keys, p.pause = 1+r.IntN(nodes-1), []int{8, 40}[r.IntN(2)], 50*time.Microsecond
	p.writes = 20 + r.IntN(60)
	last := p.config
	p.seen = func(c *shards.Config) {
		for i := range c.Shards {
			if was, is := last.Shards[i], c.Shards[i]; was.Primary == p.damaged && is.Primary != p.damaged &&
				is.Source == shards.None && c.Member(p.damaged) != nil {
				repaired++
			}
		}
		last = c
	}
	p.s.GoAt(p.damaged, "flips", func(ep rdma.Endpoint) {
		ep.Sleep(2 * time.Millisecond)
		for p.left > 0 && !p.s.Dead(p.damaged) {
			if srv := p.running[p.damaged]; srv != nil &&
				flipNamed(ep, srv, fmt.Appendf(nil, "key-%d", r.IntN(p.keys)), r) {
				flipped++
			}
			ep.Sleep(time.Duration(r.Int64N(int64(300 * time.Microsecond))))
			if _, err := ep.Join(); err != nil {
				return
			}
		}
	})
	return flipped, repaired, p.run()
}

// TestFlips: what clients see is linearizable, and in the end all replicas have the same, while
// bits flip in entries that are served. A server ends if its cleaner meets such an entry.
func TestFlips(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	var flipped, repaired int
	eachSeed(t, 40, 5000, func(k kv.Kind, seed uint64) error {
		f, r, err := flips(k, seed)
		flipped, repaired = flipped+f, repaired+r
		return err
	})
	t.Logf("%d bits flipped, %d replicas were left out", flipped, repaired)
}

// ends runs a pool in which a cleaner of server 1 meets a damaged entry, which clients do not read,
// so that the server ends; not if that entry's segment is not cleaned. A server that hangs would be
// waited for.
func ends(k kv.Kind, seed uint64) (ended bool, err error) {
	r := rand.New(rand.NewPCG(seed, 15))
	opts := small(k)
	opts.Workers = 1 + r.IntN(2)
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	of := shape{nodes: 4 + r.IntN(2), players: 3, ops: 1500, damage: true, waits: true}
	p, err := newPool(sim.Options{Seed: seed, MTU: mtu, CountRings: true, MaxEvents: 20e6}, opts, of)
	if err != nil {
		return false, err
	}
	defer p.s.Close()
	p.damaged, p.writes, p.keys = 1, 80, 40
	const cold = 8
	random := p.play
	p.play = func(ep rdma.Endpoint, rec *check.Recorder, i int) {
		for n := 0; n < cold && i == 0; n++ {
			if err := rec.Insert(fmt.Appendf(nil, "cold-%d", n), check.MakeValue(nil, 90, n+1, 100)); err != nil {
				p.fail("insert what is not read: %w", err)
			}
		}
		random(ep, rec, i)
	}
	flipped := false
	p.s.GoAt(1, "flips", func(ep rdma.Endpoint) {
		for ep.Sleep(2 * time.Millisecond); !flipped && p.left > 0; ep.Sleep(100 * time.Microsecond) {
			flipped = p.running[1] != nil && flipNamed(ep, p.running[1], fmt.Appendf(nil, "cold-%d", r.IntN(cold)), r)
		}
	})
	if err := p.run(); err != nil {
		return false, err
	}
	for _, op := range p.history() {
		if took := op.Return - op.Call; op.Worker < 100 && took > 20*time.Millisecond {
			return false, fmt.Errorf("took %v: %v", took, &op)
		}
	}
	return p.config.Member(1) == nil, nil
}

// TestEnds: when a server ends by itself others serve its shards as soon as when its node dies.
func TestEnds(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	runs, ended := 0, 0
	eachSeed(t, 12, 500, func(k kv.Kind, seed uint64) error {
		did, err := ends(k, seed)
		if runs++; did {
			ended++
		}
		return err
	})
	if t.Logf("in %d of %d runs", ended, runs); ended < runs/2 {
		t.Error("few servers end")
	}
}
