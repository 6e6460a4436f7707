package rowan_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// migrations counts those of a pool.
type migrations struct{ begun, ended, cut int }

// count counts migrations as configurations are stored: what is begun in one term has ended in a
// later one, or was cut short by a death.
func (m *migrations) count() func(*shards.Config) {
	var under map[int]shards.Shard
	return func(c *shards.Config) {
		now := map[int]shards.Shard{}
		for i, s := range c.Shards {
			if s.Source == shards.None {
				continue
			}
			now[i] = s
			if was, ok := under[i]; !ok || was.Primary != s.Primary {
				m.begun++
			}
		}
		for i, was := range under {
			if _, ok := now[i]; ok {
				continue
			}
			if c.Member(was.Source) == nil || c.Member(was.Primary) == nil {
				m.cut++
			} else {
				m.ended++
			}
		}
		under = now
	}
}

// resharding runs a pool in which some keys are hot, others after a while, so that shards move. Now
// and then the source of a migration, its target, a backup, or the manager dies in the midst.
func resharding(k kv.Kind, seed uint64, m *migrations) error {
	busy := 15 * time.Millisecond
	r := rand.New(rand.NewPCG(seed, 12))
	o := sim.Hostile(seed)
	o.MTU, o.CountRings, o.MaxEvents = mtu, seed%2 == 0, 30e6
	o.DMAProb, o.DMAMax = 0.03, 1500*time.Microsecond
	if r.IntN(3) == 0 {
		o.PMem = new(pmem.Testbed())
	}
	opts := small(k)
	opts.Workers, opts.Tombs = 1+r.IntN(2), 4
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	churn := r.IntN(4) == 0
	if churn { // tombstones are dropped, while servers lose shards and get them again
		busy, opts.Log.Segments = 50*time.Millisecond, 60
	}
	p, err := newPool(o, opts, shape{nodes: 5, players: 4, ops: 10000, period: time.Millisecond, least: 8})
	if err != nil {
		return err
	}
	defer p.s.Close()
	p.pause, p.until, p.shift = 50*time.Microsecond, time.Millisecond+busy, 4*time.Millisecond
	p.writes, p.keys = 10+r.IntN(60), []int{12, 40, 100}[r.IntN(3)]
	if churn {
		p.writes, p.keys = 85, 100
	}
	p.seen = m.count()
	victim, after := r.IntN(5), time.Duration(r.Int64N(int64(2*time.Millisecond)))
	p.s.Go("killer", func(ep rdma.Endpoint) {
		c := p.await(ep, func(c *shards.Config) bool { return moving(c) != nil || p.over })
		if c == nil || p.over || victim == 4 {
			return
		}
		s := moving(c)
		ep.Sleep(after)
		switch victim {
		case 0:
			p.kill(s.Source)
		case 1:
			p.kill(s.Primary)
		case 2:
			p.s.CrashAt(p.keepers[0], p.keepers[0].Sent())
		case 3:
			p.kill(s.Backups[0])
		}
	})
	return p.run()
}

// moving returns a shard that migrates; nil: none does.
func moving(c *shards.Config) *shards.Shard {
	for i := range c.Shards {
		if s := &c.Shards[i]; s.Source != shards.None {
			return s
		}
	}
	return nil
}

// rests reports whether no shard moves, and none is copied: all its replicas have the same.
func rests(c *shards.Config) bool {
	copied := func(s shards.Shard) bool { return len(s.Copying) > 0 }
	return moving(c) == nil && !slices.ContainsFunc(c.Shards, copied)
}

func (p *pool) kill(node int) {
	if err := p.s.KillNode(node); err != nil {
		p.fail("kill node %d: %w", node, err)
	}
}

// TestResharding: what clients see is linearizable, and in the end all replicas have the same,
// while shards move, and servers die in the midst.
func TestResharding(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	var m migrations
	eachSeed(t, 30, 3000, func(k kv.Kind, seed uint64) error { return resharding(k, seed, &m) })
	t.Logf("%+v", m)
}

// migration is the first one of a pool.
type migration struct {
	source, target int
	landed         [2][2]uint64 // verbs at source and target, when it is stored and when it has ended
	sent           [2]uint64    // by the manager
}

// moved is a pool in which nothing goes wrong by itself, and some keys are hot.
func moved(k kv.Kind, seed uint64) (*pool, *migration, error) {
	opts := small(k)
	opts.Workers = 1
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	p, err := newPool(sim.Options{Seed: seed, MTU: mtu, CountRings: true, MaxEvents: 20e6}, opts,
		shape{nodes: 5, players: 3, ops: 300, period: time.Millisecond, least: 8})
	if err != nil {
		return nil, nil, err
	}
	p.pause, p.shift, p.keys = 50*time.Microsecond, time.Hour, 40
	m := &migration{source: shards.None}
	note := func(k int) {
		for i, n := range []int{m.source, m.target} {
			m.landed[k][i] = p.s.Landed(n)
		}
		m.sent[k] = p.keepers[0].Sent()
	}
	p.seen = func(c *shards.Config) {
		switch s := moving(c); {
		case s != nil && m.source == shards.None:
			m.source, m.target = s.Source, s.Primary
			note(0)
		case s == nil && m.source != shards.None && c.Committed && m.sent[1] == 0:
			note(1)
		}
	}
	return p, m, nil
}

// TestReshardingSteps: the source or the target of a migration dies at each verb that lands at its
// node from when it is stored until it has ended, and the manager behind each of its own. Nothing
// that was acknowledged is lost.
func TestReshardingSteps(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), reshardingSteps)
}

func reshardingSteps(t *testing.T, k kv.Kind) {
	seed, m := uint64(0), &migration{}
	for m.sent[1] == 0 && seed < 10 { // until the requests of a seed make a shard migrate
		seed++
		p, found, err := moved(k, seed)
		if err != nil {
			t.Fatal(err)
		}
		m, err = found, p.run()
		p.s.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	if m.sent[1] == 0 {
		t.Fatal("no shard migrates")
	}
	t.Logf("%+v", *m)
	runs := uint64(8)
	if k != kv.Rowan {
		runs = 2
	}
	if os.Getenv("FARKV_LONG") == "1" {
		runs = 1000
	}
	each := func(what string, from, to uint64, crash func(*pool, uint64)) {
		step := max(1, (to-from)/runs)
		for verb := from + 1; verb <= to; verb += step {
			p, _, err := moved(k, seed)
			if err != nil {
				t.Fatal(err)
			}
			crash(p, verb)
			err = p.run()
			p.s.Close()
			if err != nil {
				t.Fatalf("%s %d: %v", what, verb, err)
			}
		}
	}
	for i, node := range []int{m.source, m.target} {
		each(fmt.Sprintf("server %d dies behind verb", node), m.landed[0][i], m.landed[1][i],
			func(p *pool, k uint64) { p.s.KillNodeAt(node, k) })
	}
	each("the manager dies behind verb", m.sent[0], m.sent[1], func(p *pool, k uint64) { p.s.CrashAt(p.keepers[0], k) })
}

// TestBalance: the shards of one server get twice the requests that those of others get. Some move,
// until no server has more than 5 % above the mean, and none moves from then on.
func TestBalance(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const (
		nodes, each = 5, 8
		until       = 30 * time.Millisecond
	)
	opts := small(kv.Rowan)
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 60, 30, 16
	p, err := newPool(sim.Options{Seed: 1, MTU: mtu, CountRings: true, MaxEvents: 50e6}, opts,
		shape{nodes: nodes, shards: each, players: 6, period: 2 * time.Millisecond, least: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer p.s.Close()
	first := p.config
	weight := func(shard int) int {
		if first.Shards[shard].Primary == 0 {
			return 6
		}
		return 3
	}
	var keys [][]byte // one of each shard, as often as its weight says
	for shard := range first.Shards {
		key := []byte{}
		for i := 0; len(key) == 0 || first.Find(kv.Hash(key)) != shard; i++ {
			key = fmt.Appendf(nil, "key-%d", i)
		}
		for range weight(shard) {
			keys = append(keys, key)
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	p.play = func(ep rdma.Endpoint, r *check.Recorder, i int) {
		for n := 0; ep.Now() < until; n++ {
			key := keys[(i*len(keys)/6+n)%len(keys)]
			var err error
			if n < len(keys) && i == 0 {
				err = r.Insert(key, check.MakeValue(nil, i, n+1, 100))
			} else {
				_, err = r.Get(key)
			}
			if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) {
				p.fail("client %d: %w", i, err)
			}
		}
	}
	var last time.Duration
	var m migrations
	count := m.count()
	p.seen = func(c *shards.Config) {
		count(c)
		if c.Term > 1 {
			last = p.s.Now()
		}
	}
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	load, sum, worst := make([]int, nodes), 0, 0
	for shard := range p.config.Shards {
		n := weight(shard)
		load[p.config.Shards[shard].Primary] += n
		sum += n
	}
	for _, n := range load {
		worst = max(worst, n)
	}
	t.Logf("%+v, the last at %v of %v; loads %v", m, last, until, load)
	if 100*worst*nodes > 105*sum {
		t.Errorf("loads are %v in the end", load)
	}
	if last > until/2 || m.begun > each {
		t.Errorf("%d shards moved, the last at %v of %v", m.begun, last, until)
	}
}

// TestReshardingMem: shards move under load, in real time. What clients see is linearizable, and in
// the end all replicas have the same.
func TestReshardingMem(t *testing.T) { each(t, kv.Kinds(), reshardingMem) }

func reshardingMem(t *testing.T, k kv.Kind) {
	o := small(k)
	o.Nodes, o.Shards, o.FullAfter = 5, 10, patience/2
	o.Log.Segments, o.Log.Ahead, o.Log.Reserve = 60, 30, 16
	var moves atomic.Int64 // that have ended
	var m migrations
	count := m.count()
	c, f := newChanging(t, o, cm.Options{
		Period: 20 * time.Millisecond, Plan: shards.PlanOptions{Pause: 1, Least: 20},
		Log: func(c *shards.Config) { count(c); moves.Store(int64(m.ended)) },
	})
	c.keys = 40
	c.await("the first configuration", func(*shards.Config) bool { return true })
	var group sync.WaitGroup
	for i := range 4 {
		store, ep, end := c.client()
		rec := check.NewRecorder(i, store, ep.Now)
		c.recorders = append(c.recorders, rec)
		group.Go(func() {
			defer end()
			const ops = 200
			until := time.Now().Add(time.Minute)
			for round := 0; moves.Load() < 2 && time.Now().Before(until); round++ {
				c.play(ep, rec, plan{
					worker: i, ops: ops, first: round * ops, keys: c.keys, sizes: []int{8, 100, 500}, writes: 40,
					shift: 100 * time.Millisecond, pause: 100 * time.Microsecond,
				})
			}
		})
	}
	group.Wait()
	if moves.Load() == 0 {
		t.Error("no shard has moved")
	}
	store, ep, end := c.client()
	last := check.NewRecorder(4, store, ep.Now)
	c.recorders = append(c.recorders, last)
	c.config = c.await("a configuration in which nothing moves",
		func(c *shards.Config) bool { return moving(c) == nil })
	state := c.final(last, c.keys)
	end()
	c.stop()
	c.over.Store(true)
	c.serving.Wait()
	audit := c.endpoint(f, "audit")
	defer audit.Close()
	if err := errors.Join(c.wrong, check.Linearizable(c.history(), check.Options{})); err != nil {
		t.Error(err)
	}
	// The manager may have begun another move right before it stopped. Nothing commits its term any
	// more.
	if c.config = c.stored(); c.config.Committed && rests(c.config) {
		if err := c.audit(audit, state, c.keys); err != nil {
			t.Error(err)
		}
	}
}
