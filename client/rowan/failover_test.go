package rowan_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	keeping "github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

const lease = 400 * time.Microsecond

// pool is a cluster in virtual time with servers that die.
type pool struct {
	*cluster
	s       *sim.Sim
	spare   bool // the last node is one
	keepers []*sim.Worker
	players []*sim.Worker
	left    int // players
	life    int // how often the power was cut
	options cm.Options
	hangs   int // the node of a server that hangs; 0: none does
	damaged int // the node with memory in which bits flip, above 0; 0: none
	flipped int // bits
	flips   *rand.Rand
	over    bool
	failed  error                  // what a keeper reported last
	terms   int                    // that were committed
	seen    func(c *shards.Config) // is told of each configuration that is stored; nil: nothing is

	play func(ep rdma.Endpoint, r *check.Recorder, i int) // what clients do

	pause, until, shift time.Duration // of clients: see plan
	troubled            time.Duration // behind which nothing goes wrong
	writes              int
}

// shape is what a pool is to be.
type shape struct {
	nodes        int
	spare        bool // the last node is one
	shards       int  // a member; 2 by default
	players, ops int  // clients, and how many operations each does
	// Loads are evened out from period to period, if servers have so much in one; 0: they are not.
	period time.Duration
	least  uint64
	damage bool // bits flip in memory: otherwise the manager takes no replica for a damaged one
	waits  bool // the manager waits for servers that hang
}

// newPool makes a pool.
func newPool(o sim.Options, opts kv.Options, of shape) (*pool, error) {
	nodes, members := of.nodes, of.nodes
	if of.spare {
		members--
	}
	opts.Nodes, opts.Shards = nodes, cmp.Or(of.shards, 2)*members
	opts = fit(opts)
	first, err := newConfig(opts, members)
	if err != nil {
		return nil, err
	}
	o.Nodes, o.Memory = nodes, opts.Size()
	p := &pool{s: sim.New(o), spare: of.spare, left: of.players, writes: 60}
	p.play = p.random(of.ops)
	p.cluster = &cluster{o: opts, config: first, registers: p.s, running: make([]*server.Server, nodes), keys: 8,
		damage: of.damage}
	for n := range nodes {
		p.s.GoAt(n, fmt.Sprint("server ", n), func(ep rdma.Endpoint) { p.serve(ep, n) })
	}
	p.options = cm.Options{First: first, Patience: 2 * lease, Hung: 5 * time.Millisecond, Gather: -1,
		Intact: !of.damage, Log: func(c *shards.Config) {
			if c.Committed {
				p.terms++
			}
			if p.seen != nil {
				p.seen(c)
			}
		}}
	if of.waits {
		p.options.Hung = time.Hour
	}
	p.options.Period, p.options.Plan = cmp.Or(of.period, time.Hour), shards.PlanOptions{Pause: 1, Least: of.least}
	if of.spare {
		p.options.Spares = []int{nodes - 1}
	}
	p.start(of.players)
	return p, nil
}

// start starts managers and clients.
func (p *pool) start(players int) {
	for i := range 2 {
		p.keepers = append(p.keepers, p.s.Go(fmt.Sprint("candidate ", i), p.candidate(p.options)))
	}
	for i := range players {
		w := p.s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			p.client(ep, 10*p.life+i)
			p.end()
		})
		w.WhenCrashed(p.end)
		p.players = append(p.players, w)
	}
}

func (p *pool) serve(ep rdma.Endpoint, n int) {
	srv, err := server.Open(ep, p.s, p.o, n)
	if err == nil {
		p.running[n] = srv
		err = srv.Run(ep)
	}
	if n == p.damaged && n > 0 && errors.Is(err, rowan.ErrDamaged) {
		p.hangs = n
		return
	}
	if err != nil && !errors.Is(err, rdma.ErrClosed) && !p.s.Dead(n) {
		p.fail("server %d: %w", n, err)
	}
}

// candidate keeps the pool. One that was fenced off begins again.
func (p *pool) candidate(o cm.Options) func(rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		err := keeping.Keep(ep, p.s, cm.NewRecoverer(p.s, o), keeping.Options{
			Lease: lease, Stop: func() bool { return p.over },
			Log: func(e keeping.Event) {
				if e.What == keeping.Failed {
					p.failed = e.Err
				}
			},
		})
		switch {
		case errors.Is(err, rdma.ErrRevoked):
			p.keepers = append(p.keepers, p.s.Go("candidate again", p.candidate(o)))
		case err != nil:
			p.fail("candidate: %w", err)
		}
	}
}

// await waits for a configuration that has something; nil: it does not come.
func (p *pool) await(ep rdma.Endpoint, has func(*shards.Config) bool) *shards.Config {
	for range 2000 {
		if at, err := p.s.Config(); err == nil && at.Version > 0 {
			if c, err := shards.Decode(at.Data); err == nil && has(c) {
				return c
			}
		}
		ep.Sleep(100 * time.Microsecond)
	}
	return nil
}

func (p *pool) client(ep rdma.Endpoint, i int) {
	if p.await(ep, func(c *shards.Config) bool { return c.Committed }) == nil {
		p.fail("client %d: no configuration is committed: %v", i, p.failed)
		return
	}
	life := p.life
	store, err := p.open(ep, 50*time.Millisecond)
	if err != nil {
		if p.life == life {
			p.fail("client %d: %w", i, err)
		}
		return
	}
	r := check.NewRecorder(i, store, ep.Now)
	p.recorders = append(p.recorders, r)
	p.play(ep, r, i)
	store.Close()
}

// random has clients do random operations.
func (p *pool) random(ops int) func(rdma.Endpoint, *check.Recorder, int) {
	return func(ep rdma.Endpoint, r *check.Recorder, i int) {
		life := p.life
		p.cluster.play(ep, r, plan{
			over:   func() bool { return p.life != life },
			worker: i, ops: ops, keys: p.keys, sizes: []int{8, 60, 150, 300, 900, maxValue}, writes: p.writes,
			pause: p.pause, until: p.until, shift: p.shift,
		})
	}
}

// end is called for each client that has ended. When all have, a last one sees that all goes well
// again.
func (p *pool) end() {
	if p.left--; p.left > 0 {
		return
	}
	p.s.Go("last", func(ep rdma.Endpoint) {
		defer p.stop()
		defer func() { p.over = true }()
		if err := p.last(ep); err != nil {
			p.fail("last client: %w", err)
		}
	})
}

// calm reports whether a configuration has all that it may come to have, and no member is dead.
func (p *pool) calm(c *shards.Config) bool {
	for _, m := range c.Members {
		if p.s.Dead(m.Node) || m.Node == p.hangs && p.hangs > 0 {
			return false
		}
	}
	for i := range c.Shards {
		s := &c.Shards[i]
		if len(s.Copying) > 0 || s.Source != shards.None || s.Lost() ||
			len(s.Replicas()) < min(c.Replication, len(c.Members)) {
			return false
		}
	}
	return c.Committed
}

// last sees that writes go on, and reads what there is, in a configuration that lasts.
func (p *pool) last(ep rdma.Endpoint) error {
	store, err := p.open(ep, time.Second)
	if err != nil {
		return err
	}
	defer store.Close()
	if p.shift > 0 {
		store = slow{store, ep}
	}
	r := check.NewRecorder(100, store, ep.Now)
	p.recorders = append(p.recorders, r)
	ep.Sleep(max(p.until, p.troubled, ep.Now()) - ep.Now()) // what may go wrong has
tries:
	for try := range 10 {
		ep.Sleep(5 * time.Millisecond)
		c := p.await(ep, p.calm)
		if c == nil {
			at, _ := p.s.Config()
			c, err := shards.Decode(at.Data)
			return fmt.Errorf("the pool does not come to rest: %+v, %v; %v", c, err, p.failed)
		}
		for i := range 2 * len(c.Shards) {
			key, value := fmt.Appendf(nil, "other-%d-%d", try, i), check.MakeValue(nil, 100, 100*try+i+1, 100)
			err := r.Insert(key, value)
			if errors.Is(err, client.ErrUncertain) {
				continue tries // a server died since the client read the configuration
			}
			if err != nil && !errors.Is(err, client.ErrFull) {
				return err
			}
		}
		p.config, p.state = c, p.final(r, p.keys)
		ep.Sleep(5 * time.Millisecond)
		if last := p.await(ep, p.calm); last != nil && last.Term == c.Term {
			return nil
		}
	}
	return errors.New("the pool does not come to rest")
}

// slow is a client that does too little for shards to move.
type slow struct {
	client.Store
	ep rdma.Endpoint
}

func (s slow) Get(key []byte) ([]byte, error) {
	s.ep.Sleep(100 * time.Microsecond)
	return s.Store.Get(key)
}

func (s slow) Insert(key, value []byte) error {
	s.ep.Sleep(100 * time.Microsecond)
	return s.Store.Insert(key, value)
}

// run runs the pool, and judges what clients saw, and what replicas have.
func (p *pool) run() error {
	if err := p.s.Run(); err != nil {
		return errors.Join(p.wrong, err, p.failed)
	}
	if p.wrong != nil {
		return p.wrong
	}
	if err := check.Linearizable(p.history(), check.Options{}); err != nil {
		return err
	}
	ep, err := p.s.Open("audit")
	if err != nil {
		return err
	}
	defer ep.Close()
	return p.audit(ep, p.state, p.keys)
}

// failover runs a pool in which servers, managers and clients die, hang, stand still and are cut
// off.
func failover(k kv.Kind, seed uint64) error {
	const troubled = 10 * time.Millisecond
	r := rand.New(rand.NewPCG(seed, 11))
	when := func() time.Duration { return time.Millisecond + time.Duration(r.Int64N(int64(troubled))) }
	o := sim.Hostile(seed)
	o.MTU, o.CountRings, o.MaxEvents = mtu, seed%2 == 0, 20e6
	o.DMAProb, o.DMAMax = 0.03, 1500*time.Microsecond
	if r.IntN(3) == 0 {
		o.PMem = new(pmem.Testbed())
	}
	nodes := 4 + r.IntN(2)
	server := func(n int) string { return fmt.Sprint("server ", n) }
	if r.IntN(3) == 0 {
		n := r.IntN(nodes)
		o.Faults = append(o.Faults,
			sim.Fault{Kind: sim.StallFault, Client: server(n), At: when(), For: 3 * lease},
			sim.Fault{Kind: sim.StallFault, Client: "candidate 1", At: when(), For: 3 * lease},
			sim.Fault{Kind: sim.PartitionFault, Client: server((n + 1) % nodes), Node: n, At: when(), For: 2 * lease})
	}
	kills, hangs := 1+r.IntN(4)/3, 0 // of three replicas
	if r.IntN(8) == 0 {
		kills, hangs = 1, 2
		o.Faults = append(o.Faults, sim.Fault{Kind: sim.StallFault, Client: server(hangs), At: when(),
			For: time.Second})
	}
	opts := small(k)
	opts.Workers = 1 + r.IntN(2)
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	p, err := newPool(o, opts, shape{nodes: nodes, spare: r.IntN(5) == 0, players: 4, ops: 2000})
	if err != nil {
		return err
	}
	defer p.s.Close()
	p.pause, p.until, p.hangs = 50*time.Microsecond, time.Millisecond+troubled, hangs
	if r.IntN(2) == 0 {
		p.keys = 50 // of which few are written again
	}
	for i := range kills {
		p.s.KillNodeAfter((r.IntN(nodes)+2*i)%nodes, when())
	}
	if r.IntN(3) == 0 {
		p.s.CrashAt(p.keepers[0], 1+r.Uint64N(400))
	}
	if r.IntN(6) == 0 {
		p.s.CrashAt(p.players[3], 20+r.Uint64N(200))
	}
	return p.run()
}

// TestFailover: what clients see is linearizable, and in the end all replicas have the same, while
// servers die, and whatever else goes wrong.
func TestFailover(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	eachSeed(t, 40, 5000, failover)
}

// steps is a pool in which nothing goes wrong by itself but that node 1 dies.
func steps(k kv.Kind, faults ...sim.Fault) (*pool, error) {
	opts := small(k)
	opts.Workers = 1
	opts.Log.Segments, opts.Log.Ahead, opts.Log.Reserve = 48, 30, 16
	p, err := newPool(sim.Options{Seed: 1, MTU: mtu, CountRings: true, MaxEvents: 20e6, Faults: faults}, opts,
		shape{nodes: 5, players: 3, ops: 300})
	if err == nil {
		p.pause = 50 * time.Microsecond
		p.s.KillNodeAfter(1, 2*time.Millisecond)
	}
	return p, err
}

// TestGone: a client that waits for the answer of a server that died does not wait for its whole
// timeout.
func TestGone(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	waited := 0
	for at := 4 * time.Millisecond; at < 12*time.Millisecond; at += time.Millisecond {
		p, err := steps(kv.Rowan, sim.Fault{
			Kind: sim.StallFault, Client: "server 2", At: at, For: 100 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		p.s.KillNodeAfter(2, at+2*time.Millisecond)
		err = p.run()
		p.s.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range p.history().With(check.Uncertain) {
			waited++
			if took := op.Return - op.Call; took > 20*time.Millisecond {
				t.Errorf("took %v: %v", took, &op)
			}
		}
	}
	if waited == 0 {
		t.Error("no write was in flight to the server that died")
	}
}

// TestFailoverSteps: another server dies at each verb that lands at its node from when the first
// one is dead until the pool is at rest again, and the manager behind each of its own.
func TestFailoverSteps(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), failoverSteps)
}

func failoverSteps(t *testing.T, k kv.Kind) {
	var landed, sent [2]uint64
	p, err := steps(k)
	if err != nil {
		t.Fatal(err)
	}
	p.s.Go("count", func(ep rdma.Endpoint) {
		ep.Sleep(2 * time.Millisecond)
		landed[0], sent[0] = p.s.Landed(2), p.keepers[0].Sent()
		p.await(ep, func(c *shards.Config) bool { return c.Member(1) == nil && p.calm(c) })
		landed[1], sent[1] = p.s.Landed(2), p.keepers[0].Sent()
	})
	err = p.run()
	p.s.Close()
	if err != nil {
		t.Fatal(err)
	}
	runs := uint64(8)
	if k != kv.Rowan {
		runs = 2
	}
	if os.Getenv("FARKV_LONG") == "1" {
		runs = 1000
	}
	t.Logf("verbs at server 2: %v; of the manager: %v", landed, sent)
	each := func(what string, of [2]uint64, crash func(*pool, uint64)) {
		step := max(1, (of[1]-of[0])/runs)
		for verb := of[0] + 1; verb <= of[1]; verb += step {
			p, err := steps(k)
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
	each("server 2 dies behind verb", landed, func(p *pool, k uint64) { p.s.KillNodeAt(2, k) })
	each("the manager dies behind verb", sent, func(p *pool, k uint64) { p.s.CrashAt(p.keepers[0], k) })
}
