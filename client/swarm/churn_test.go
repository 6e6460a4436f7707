package swarm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// cramped is a pool with room for few pairs.
func cramped(nodes, replicas int, apart bool) Params {
	p := Params{Replicas: replicas, Words: 2, Locks: 4, Clients: 64, PairBytes: 64, Apart: apart,
		Regions: nodes, Objects: 24, Values: Buffers{Segments: 1, Each: 700},
		Index: Buffers{Segments: 1, Each: 300}, Buckets: 8, Timeout: 20 * time.Millisecond}
	if apart {
		p.Words, p.Locks = 1, 0
	}
	return p
}

func makeRecoverer(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) }

// churn is clients that insert and delete far more pairs than the pool has room for, while some of
// them crash, stand still, and lose a node.
type churn struct {
	seed      uint64
	params    Params
	nodes     int
	players   int // in all; some at a time
	ops       int // of each
	keys      int
	dies      bool // a node does
	calm      bool // no client crashes
	raw       bool // RAW's pool, of which each player has keys of its own
	options   sim.Options
	events    []cluster.Event
	history   check.History
	epochs    uint64
	swept     int // while there were players
	inserts   int
	answers   map[check.Answer]int
	recoverer cluster.NewRecoverer
}

func drawChurn(seed uint64) *churn {
	rng := rand.New(rand.NewPCG(seed, 21))
	c := &churn{seed: seed, nodes: 3 + int(seed%2), players: 12, ops: 60, keys: 4 + rng.IntN(12), dies: seed%3 == 0,
		answers: map[check.Answer]int{}, recoverer: makeRecoverer}
	c.params = cramped(c.nodes, 3, seed%5 == 4)
	if c.dies { // with regions from which no client takes objects any more
		c.params.Objects *= 2
	}
	c.options = sim.Hostile(seed)
	c.options.Nodes, c.options.Clients, c.options.Handler, c.options.Limit =
		c.nodes, c.params.Clients, node.Serve, 20*time.Second
	c.options.Drift, c.options.ClockOffset = 0, 0
	l, err := newPlan(c.params, c.nodes)
	if err != nil {
		panic(err)
	}
	c.options.Memory = l.bytes
	if seed%4 == 1 {
		for range 2 {
			c.options.Faults = append(c.options.Faults, sim.Fault{Kind: sim.StallFault,
				Client: fmt.Sprintf("player %d", 1+rng.IntN(4)),
				At:     time.Duration(rng.IntN(5000)) * time.Microsecond,
				For:    time.Duration(1+rng.IntN(8)) * time.Millisecond})
		}
	}
	return c
}

// run plays, and returns what is wrong.
func (c *churn) run() (err error) {
	s := sim.New(c.options)
	defer s.Close()
	if err := Make(s, c.params); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(c.seed, 22))
	var recorders []*check.Recorder
	left, playing := c.players, 0
	fail := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	var enter func()
	enter = func() {
		if left == 0 {
			return
		}
		left--
		playing++
		n := c.players - left
		w := s.Go(fmt.Sprintf("player %d", n), func(ep rdma.Endpoint) {
			k, e := OpenStore(ep, StoreOptions{Apart: c.params.Apart, Raw: c.raw, CacheBytes: new(64 << 10)})
			if errors.Is(e, rdma.ErrClosed) {
				return
			}
			if e != nil {
				fail("open: %w", e)
			} else {
				r := check.NewRecorder(n, k, s.Now)
				recorders = append(recorders, r)
				c.play(n, ep, r)
				if e := k.Close(); e != nil && !errors.Is(e, rdma.ErrClosed) {
					fail("close: %w", e)
				}
			}
			playing--
			enter()
		})
		w.WhenCrashed(func() { playing--; enter() })
		if !c.calm && rng.IntN(2) == 0 {
			s.CrashAt(w, 50+rng.Uint64N(3000))
		}
	}
	for range 4 {
		enter()
	}
	if c.dies {
		s.KillNodeAfter(rng.IntN(c.nodes), time.Duration(1+rng.IntN(5))*time.Millisecond)
	}
	s.Go("keeper", func(ep rdma.Endpoint) {
		o := cluster.Options{Lease: 400 * time.Microsecond, Stop: func() bool { return playing == 0 },
			Log: func(e cluster.Event) {
				if c.log(e, playing); e.What == cluster.Failed {
					fail("keeper: %w", e.Err)
				}
			}}
		if e := cluster.Keep(ep, s, c.recoverer, o); e != nil {
			fail("keep: %w", e)
		}
		o.Stop = nil // the keeper's, which has ended
		if _, e := cluster.Once(ep, s, c.recoverer, o); e != nil {
			fail("recover: %w", e)
		}
	})
	if e := s.Run(); e != nil {
		fail("run: %w", e)
	}
	c.epochs = s.View().Epoch
	for _, r := range recorders {
		c.history = append(c.history, r.History()...)
	}
	if err != nil {
		return err
	}
	return c.judge(s)
}

func (c *churn) log(e cluster.Event, playing int) {
	c.events = append(c.events, e)
	if e.What == cluster.Swept && playing > 0 {
		c.swept++
	}
}

func (c *churn) play(n int, ep rdma.Endpoint, r *check.Recorder) {
	rng := ep.Rand()
	for i := range c.ops {
		key := fmt.Appendf(nil, "key-%d", rng.IntN(c.keys))
		if c.raw {
			key = fmt.Appendf(key, " of %d", n)
		}
		value := check.MakeValue(nil, n, i+1, 40)
		switch k := rng.IntN(10); {
		case k < 4:
			if r.Insert(key, value) == nil {
				c.inserts++
			}
		case k < 7:
			r.Delete(key)
		case k < 8:
			r.Update(key, value)
		default:
			r.Get(key)
		}
		if rng.IntN(8) == 0 {
			ep.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
		}
	}
}

// judge looks at the history, and at the pool: nothing is lost, and nothing has two owners.
func (c *churn) judge(f rdma.Fabric) error {
	for i := range c.history {
		op := &c.history[i]
		c.answers[op.Answer]++
		if op.Answer == check.Failed || op.Answer == check.Refused && !c.dies || op.Answer == check.TimedOut {
			return fmt.Errorf("operation failed: %v", op)
		}
	}
	// A node that dies takes its regions' free objects along.
	if refused := c.answers[check.Refused]; refused > len(c.history)/20 {
		return fmt.Errorf("%d of %d operations found no memory", refused, len(c.history))
	}
	if err := check.Linearizable(c.history, check.Options{}); err != nil {
		return err
	}
	r, err := Check(f)
	switch {
	case err != nil:
		return fmt.Errorf("check: %w", err)
	case len(r.Damage)+len(r.Waiting) > 0:
		return fmt.Errorf("check: %s", strings.Join(append(r.Damage, r.Waiting...), "; "))
	}
	for _, fact := range r.Facts {
		if fact.Name == "objects that wait for a sweep" && fact.Count > 0 && !c.dies {
			return fmt.Errorf("%d objects have no owner behind the last sweep", fact.Count)
		}
	}
	return nil
}

// TestChurn inserts and deletes far more pairs than the pool has objects, in virtual time.
func TestChurn(t *testing.T) {
	inserts, epochs := 0, uint64(0)
	answers := map[check.Answer]int{}
	seeds.Each(t, 60, func(seed uint64) error {
		c := drawChurn(seed)
		if err := c.run(); err != nil {
			for _, e := range c.events {
				t.Log(e.At, e)
			}
			return err
		}
		inserts += c.inserts
		epochs += c.epochs
		for a, n := range c.answers {
			answers[a] += n
		}
		return nil
	})
	t.Logf("%d inserts, %d epochs, %v", inserts, epochs, answers)
}

// TestChurnRaw: where clients have keys of their own RAW's answers are right, too, whatever its
// sweeps free, and nothing of a client that stood still lands in another key's object.
func TestChurnRaw(t *testing.T) {
	inserts, epochs := 0, uint64(0)
	count := seeds.Each(t, 40, func(seed uint64) error {
		c := drawChurn(seed)
		c.raw, c.dies, c.ops, c.keys = true, false, 150, 3 // of which 12 players leave half of the objects
		c.params = cramped(c.nodes, 1, false)
		c.params.Words, c.params.Locks = 0, 0
		l, err := newPlan(c.params, c.nodes)
		must(t, err)
		c.options.Memory = l.bytes
		err = c.run()
		inserts += c.inserts
		epochs += c.epochs
		return err
	})
	if epochs < count {
		t.Errorf("only %d epochs in %d runs", epochs, count)
	}
	t.Logf("%d inserts, %d epochs", inserts, epochs)
}

// TestChurnForLong inserts a hundred times as many pairs as the pool has objects.
func TestChurnForLong(t *testing.T) {
	c := drawChurn(2)
	c.params.Objects, c.ops = 8, 1800
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	if objects := c.params.Objects * c.params.Regions; c.inserts < 100*objects {
		t.Errorf("%d inserts, and the pool has %d objects", c.inserts, objects)
	}
	t.Logf("%d inserts in %d objects, %d epochs, %v", c.inserts, c.params.Objects*c.params.Regions, c.epochs, c.answers)
}

// TestChurnWithoutSweeps inserts far more pairs than the pool has objects, in virtual time, where
// verbs are late and clients stand still, but none crashes: deleters drop their entries, and
// objects are used again, without a sweep.
func TestChurnWithoutSweeps(t *testing.T) {
	inserts, objects, epochs := 0, 0, uint64(0)
	seeds.Each(t, 40, func(seed uint64) error {
		c := drawChurn(seed)
		c.calm, c.dies, c.ops = true, false, 150
		// Buffers that fences cut off have no owner, so there are many.
		c.params.Objects, c.params.Values.Each, c.params.Index.Each = 16, 6000, 6000
		l, err := newPlan(c.params, c.nodes)
		must(t, err)
		c.options.Memory = l.bytes
		if err := c.run(); err != nil {
			return err
		}
		if c.swept > 0 {
			return fmt.Errorf("%d sweeps", c.swept)
		}
		inserts, objects, epochs = inserts+c.inserts, objects+c.params.Objects*c.params.Regions, epochs+c.epochs
		return nil
	})
	if inserts < 3*objects {
		t.Errorf("%d inserts in %d objects: this test shows nothing", inserts, objects)
	}
	t.Logf("%d inserts in %d objects, %d epochs", inserts, objects, epochs)
}

var _ client.Store = (*Store)(nil)
