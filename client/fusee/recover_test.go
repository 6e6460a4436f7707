package fusee

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestCrashes is TestContention with deaths: clients, nodes and masters die while a few workers
// contend for a few keys. Other clients are declared dead and are only slow, and keepers mend the
// pool meanwhile. Afterwards nothing may be lost, wrong, or leaked.
func TestCrashes(t *testing.T) {
	for _, r := range []struct {
		nodes, spares, index, data int
		central, tight, grows      bool
	}{
		{1, 0, 1, 1, false, false, false}, {3, 1, 2, 2, false, false, false}, {3, 0, 3, 2, false, false, false},
		{4, 1, 3, 3, false, false, false}, {6, 1, 5, 3, false, false, false}, {4, 1, 2, 3, true, false, false},
		{1, 0, 1, 1, false, true, false}, {4, 1, 3, 2, false, true, false},
		{1, 0, 1, 1, false, false, true}, {4, 1, 3, 2, false, false, true},
	} {
		name := fmt.Sprintf("%d index replicas, %d of data", r.index, r.data)
		if r.central {
			name += ", node-centric"
		}
		if r.tight {
			name += ", full"
		}
		if r.grows {
			name += ", growing"
		}
		t.Run(name, func(t *testing.T) {
			var seen tally
			count := seeds.Each(t, 100, func(seed uint64) error {
				c := newCrashes(seed, r.nodes, r.spares, r.index, r.data, r.central, &seen)
				if r.tight {
					c.tighten()
				}
				if r.grows {
					c.crowd()
				}
				return c.run()
			})
			t.Logf("%+v", seen)
			if count >= 30 && (seen.clients == 0 || seen.masters == 0 || seen.slow == 0 ||
				r.index > 1 && seen.nodes == 0) {
				t.Error("no client dies: this test shows nothing")
			}
			if count >= 30 && r.tight && (seen.converted == 0 || seen.lent == 0) {
				t.Error("no block changes its size class, or none is lent: this test shows nothing")
			}
			if r.grows && uint64(seen.grown) < count {
				t.Error("the index hardly grows: this test shows nothing")
			}
		})
	}
}

// tally counts what happened in a number of runs.
type tally struct{ clients, nodes, masters, slow, recovered, restored, uncertain, converted, lent, grown int }

// crashes is one run.
type crashes struct {
	*sim.Sim
	rng       *rand.Rand
	o         sim.Options
	p         layout.Params
	ops, keys int
	mix       [4]int
	size      int
	tight     bool // pairs have all sizes, in a pool of few blocks
	working   int  // workers that live and have something to do
	recorders []*check.Recorder
	errs      []error
	seen      *tally
}

func newCrashes(seed uint64, nodes, spares, index, data int, central bool, seen *tally) *crashes {
	rng := rand.New(rand.NewPCG(seed, 11))
	c := &crashes{rng: rng, seen: seen, o: sim.Hostile(seed)}
	c.p = layout.Params{NodeCentric: central, IndexReplicas: index, DataReplicas: data, Subtables: 2, Groups: 2,
		Regions: 2*nodes + 3, Spares: spares,
		RegionBytes: 32 << 10, BlockBytes: 4 << 10, Clients: 24, Timeout: 50 * time.Millisecond,
		TagBits: race.MaxTagBits}
	l, err := layout.New(c.p, nodes, 1<<40)
	if err != nil {
		panic(err)
	}
	c.o.Nodes, c.o.Memory, c.o.Clients, c.o.Handler = nodes, l.Bytes, c.p.Clients, node.Serve
	c.o.FlyProb = []float64{0, 0.02, 0.2}[rng.IntN(3)]
	c.o.MaxLatency = []time.Duration{2, 10, 50}[rng.IntN(3)] * time.Microsecond
	c.working, c.ops, c.keys, c.mix = 2+rng.IntN(4), 5+rng.IntN(30), 1+rng.IntN(4), mixes[rng.IntN(len(mixes))]
	c.size = []int{0, 900}[rng.IntN(2)]
	c.recorders = make([]*check.Recorder, c.working)
	if os.Getenv("FARKV_TRACE") != "" { // of one seed
		c.o.Trace = func(e sim.Event) { fmt.Println(e) }
	}
	return c
}

// tighten makes the pool one of few blocks, of which each client could use one of each class, and
// gives pairs all sizes.
func (c *crashes) tighten() {
	c.tight, c.ops = true, 30+c.rng.IntN(90)
	c.p.Regions, c.p.Timeout = 1+c.rng.IntN(2), 25*time.Millisecond
	c.p.RegionBytes = uint64(2+c.rng.IntN(8))*c.p.BlockBytes + 4096
	l, err := layout.New(c.p, c.o.Nodes, 1<<40)
	if err != nil {
		panic(err)
	}
	c.o.Memory = l.Bytes
}

// crowd begins with an index for fewer keys than there are, and has most of them inserted.
func (c *crashes) crowd() {
	c.ops, c.keys, c.mix, c.size = 40+c.rng.IntN(80), 90, [4]int{3, 5, 1, 1}, 0
	c.p.Subtables, c.p.MaxSubtables, c.p.Regions = 1, 5, 12*c.o.Nodes
	l, err := layout.New(c.p, c.o.Nodes, 1<<40)
	if err != nil {
		panic(err)
	}
	c.o.Memory = l.Bytes
}

func (c *crashes) run() error {
	c.Sim = sim.New(c.o)
	defer c.Close()
	if err := session.Make(c, c.p); err != nil {
		return err
	}
	workers := c.working
	for w := range workers {
		x := c.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) { c.work(ep, w) })
		x.WhenCrashed(func() { c.working-- })
		if c.rng.IntN(3) == 0 {
			c.seen.clients++
			c.CrashAt(x, uint64(5+c.rng.IntN(c.ops*8)))
		}
	}
	if c.p.IndexReplicas > 1 && c.p.DataReplicas > 1 && c.rng.IntN(2) == 0 {
		c.seen.nodes++
		c.KillNodeAfter(c.rng.IntN(c.o.Nodes-c.p.Spares), c.moment())
	}
	if c.rng.IntN(4) == 0 {
		c.seen.slow++
		victim, after := rdma.ClientID(2+c.rng.IntN(workers)), c.moment()
		c.Go("accuser", func(ep rdma.Endpoint) {
			ep.Sleep(after)
			c.fail(c.Revoke(victim))
		})
	}
	for n := range 2 {
		c.keeper(n, c.rng.IntN(3) == 0)
	}
	if err := c.Run(); err != nil {
		return err
	}
	if err := c.recoverAll(); err != nil {
		return err
	}
	return c.judge()
}

// moment draws a time at which something happens, from the time that operations take.
func (c *crashes) moment() time.Duration {
	return time.Duration(c.rng.IntN(c.ops*10)) * c.o.MaxLatency
}

func (c *crashes) fail(err error) {
	if err != nil && !errors.Is(err, rdma.ErrRevoked) { // declared dead: others go on
		c.errs = append(c.errs, err)
	}
}

func (c *crashes) work(ep rdma.Endpoint, w int) {
	defer func() { c.working-- }()
	o := thrifty(Options{CacheThreshold: new(0.9)})
	if c.p.MaxSubtables > 0 {
		o.Splits = 0.05
	}
	s, err := Open(ep, o)
	if err != nil {
		c.fail(err)
		return
	}
	r := check.NewRecorder(w, s, ep.Now)
	c.recorders[w] = r
	for i := range c.ops {
		size := c.size
		if c.tight {
			size = ep.Rand().IntN(3 << 10)
		}
		meet(r, ep.Rand(), c.mix, c.keys, check.MakeValue(nil, w, i+1, size))
		if h := r.History(); h[len(h)-1].Answer == check.Failed {
			break // fenced off, or judge finds it
		}
	}
	c.seen.converted += int(s.Stats().Converted)
	c.seen.lent += int(s.Stats().Lent)
	err = s.Close()
	if errors.Is(err, client.ErrUncertain) { // as client.Leave: its identity stays, until it is dead
		err = c.Revoke(ep.Client())
	}
	c.fail(err)
}

// keeper starts one. When it dies another one takes its place.
func (c *crashes) keeper(n int, dies bool) {
	x := c.Go(fmt.Sprintf("keeper %d", n), func(ep rdma.Endpoint) {
		c.fail(cluster.Keep(ep, c, recoverer, cluster.Options{
			Lease: time.Millisecond, Stop: func() bool { return c.working == 0 }, Log: c.count,
		}))
	})
	if dies {
		c.seen.masters++
		c.CrashAt(x, uint64(10+c.rng.IntN(250)))
		x.WhenCrashed(func() { c.keeper(n, c.rng.IntN(2) == 0) })
	}
}

func recoverer(ep rdma.Endpoint) (cluster.Recoverer, error) { return recovery.NewRecoverer(ep) }

func (c *crashes) count(e cluster.Event) {
	switch e.What {
	case cluster.Recovered:
		c.seen.recovered++
	case cluster.Restored:
		c.seen.restored++
	case cluster.Mended:
		if e.Report != "" {
			c.seen.grown++
		}
	case cluster.Failed:
		c.errs = append(c.errs, e.Err)
	}
}

// recoverAll is `farkv recover` at the end, when the last fault has come.
func (c *crashes) recoverAll() error {
	c.Go("recover", func(ep rdma.Endpoint) {
		ep.Sleep(50 * time.Millisecond)
		_, err := cluster.Once(ep, c, recoverer, cluster.Options{Lease: time.Millisecond, Log: c.count})
		c.fail(err)
	})
	if err := c.Run(); err != nil {
		return err
	}
	for _, x := range c.Clients() {
		return fmt.Errorf("client %v is left", x)
	}
	return errors.Join(c.errs...)
}

func (c *crashes) judge() error {
	var h check.History
	for _, r := range c.recorders {
		if r != nil {
			h = append(h, r.History()...)
		}
	}
	c.seen.uncertain += len(h.With(check.Uncertain))
	bad := slices.DeleteFunc(h.With(check.Failed, check.Refused), func(o check.Op) bool {
		return strings.Contains(o.Err, rdma.ErrRevoked.Error()) || c.tight && o.Answer == check.Refused
	})
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d operations failed, the first is: %v", len(bad), len(h), &bad[0])
	}
	if c.o.Trace != nil {
		for i := range h {
			fmt.Println(h[i].Call, h[i].Return, &h[i], h[i].Err)
		}
	}
	if err := check.Linearizable(h, check.Options{}); err != nil {
		return err
	}
	r, err := Check(c)
	if c.p.NodeCentric { // an object that a node handed out, to a client that died before it wrote it, is lost
		r.Damage = slices.DeleteFunc(r.Damage, func(d string) bool { return strings.Contains(d, "are leaked") })
	}
	if err == nil && len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("check found damage: %q %q", r.Damage, r.Waiting)
	}
	return err
}
