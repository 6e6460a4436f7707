package rowan_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// simulate runs a cluster in virtual time, and clients until they have ended.
func (c *cluster) simulate(o sim.Options, clients ...func(ep rdma.Endpoint)) (*sim.Sim, []*sim.Worker) {
	o.Nodes, o.Memory = servers, c.o.Size()
	s := sim.New(o)
	left := len(clients)
	for n := range servers {
		s.GoAt(n, fmt.Sprint("server ", n), func(ep rdma.Endpoint) {
			srv, err := server.Open(ep, c.configs(), c.o, n)
			if err == nil {
				c.running[n] = srv
				err = srv.Run(ep)
			}
			if err != nil && !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, rdma.ErrNodeDown) {
				c.fail("server %d: %w", n, err)
			}
		})
	}
	var workers []*sim.Worker
	last := func(ep rdma.Endpoint) {
		defer c.stop()
		if s.Dead(0) {
			return
		}
		ep.Sleep(10 * time.Millisecond) // what clients left is over
		store, err := c.open(ep, time.Second)
		if err != nil {
			c.fail("last client: %w", err)
			return
		}
		r := check.NewRecorder(len(clients), store, ep.Now)
		c.recorders = append(c.recorders, r)
		c.state = c.final(r, c.keys)
		store.Close()
	}
	end := func() {
		if left--; left == 0 {
			s.Go("last", last)
		}
	}
	for i, f := range clients {
		w := s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			ep.Sleep(100 * time.Microsecond)
			f(ep)
			end()
		})
		w.WhenCrashed(end)
		workers = append(workers, w)
	}
	return s, workers
}

// hostile returns the options of a run.
func hostile(k kv.Kind, seed uint64) (sim.Options, kv.Options) {
	o := sim.Hostile(seed)
	o.MTU, o.CountRings, o.MaxEvents = mtu, seed%2 == 0, 5e6
	o.DMAProb, o.DMAMax = 0.03, 1500*time.Microsecond
	if seed%3 == 0 {
		o.PMem = new(pmem.Testbed())
	}
	if seed%5 == 1 { // answers are lost
		at := time.Duration(1+seed%7) * 500 * time.Microsecond
		o.Faults = sim.Faults{{Kind: sim.PartitionFault, Client: "client 4", At: at, For: 70 * time.Millisecond}}
	}
	opts := small(k)
	opts.Workers, opts.Cleaners, opts.Tombs = 1+int(seed%2), 1+int(seed/4%2), 5
	if o.RingStreams = seed%7 == 2; o.RingStreams {
		n := rdma.RingStreams(mtu)
		opts.Log.Streams, opts.Log.Segments, opts.Log.Ahead = n, opts.Log.Segments+3*n, opts.Log.Ahead+3*n
	}
	return o, opts
}

// newHostile returns a cluster for a run. Clients share a few keys, or have some of many at a time:
// then the tombstones of those that they have left are dropped.
func newHostile(k kv.Kind, seed uint64) (*cluster, sim.Options, error) {
	o, opts := hostile(k, seed)
	c, err := newCluster(opts)
	if c.keys = 8; seed%4 < 2 {
		c.keys, c.roll = 120, 12
	}
	return c, o, err
}

// clients returns what the clients of a run do.
func (c *cluster) clients(n, ops int) (all []func(ep rdma.Endpoint)) {
	for i := range n {
		all = append(all, func(ep rdma.Endpoint) {
			store, err := c.open(ep, 50*time.Millisecond)
			if err != nil {
				c.fail("client %d: %w", i, err)
				return
			}
			r := check.NewRecorder(i, store, ep.Now)
			c.recorders = append(c.recorders, r)
			c.play(ep, r, plan{
				worker: i, ops: ops, keys: c.keys, roll: c.roll, sizes: []int{8, 60, 150, 300, 900,
					maxValue}, writes: 75,
			})
			store.Close()
		})
	}
	return all
}

// histories runs clients, some of which crash, and judges what they saw.
func histories(k kv.Kind, seed uint64) error {
	c, o, err := newHostile(k, seed)
	if err != nil {
		return err
	}
	s, workers := c.simulate(o, c.clients(5, 250)...)
	defer s.Close()
	for i := range int(seed % 3) {
		s.CrashAt(workers[i], 20+seed*uint64(7+i)%200)
	}
	if err := s.Run(); err != nil {
		return errors.Join(c.wrong, err)
	}
	if c.wrong != nil {
		return c.wrong
	}
	if err := c.outlast(s, seed); err != nil {
		return err
	}
	h := c.history()
	if n := len(h.With(check.OK)); n < 200 {
		return fmt.Errorf("of %d operations %d are answered", len(h), n)
	}
	return check.Linearizable(h, check.Options{})
}

// outlast audits what is in memory when the servers have stopped, and if that is persistent, behind
// a loss of power.
func (c *cluster) outlast(s *sim.Sim, seed uint64) error {
	if s.PMem(0) != nil {
		s.CutPower(sim.AnyNode, sim.AnySurvive(seed))
		for n := range servers {
			if err := s.Restart(n); err != nil {
				return err
			}
		}
	}
	ep, err := s.Open("audit")
	if err != nil {
		return err
	}
	defer ep.Close()
	return c.audit(ep, c.state, c.keys)
}

// powerCut cuts the power of all nodes at once in the midst of a run. What each replica has is then
// what a reader may see behind it all, and so is what some have together: so each has all that was
// acknowledged, and nothing that was not written, or was deleted, is there.
func powerCut(k kv.Kind, seed uint64) error {
	c, o, err := newHostile(k, seed)
	if err != nil {
		return err
	}
	o.PMem = new(pmem.Testbed())
	s, _ := c.simulate(o, c.clients(5, 150)...)
	defer s.Close()
	s.CutPowerAt(sim.AnyNode, 2000+seed*7919%30_000, sim.AnySurvive(seed))
	if err := s.Run(); err != nil {
		return errors.Join(c.wrong, err)
	}
	if !s.Dead(0) {
		return c.wrong // it was over before
	}
	for n := range servers {
		if err := s.Restart(n); err != nil {
			return err
		}
	}
	ep, err := s.Open("audit")
	if err != nil {
		return err
	}
	defer ep.Close()
	for _, nodes := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}} {
		found, err := c.newest(ep, nodes...)
		if err != nil {
			return err
		}
		h := c.history()
		for i := range c.keys {
			key := fmt.Sprintf("key-%d", i)
			op := check.Op{
				Worker: 99, Seq: i, Kind: check.Get, Key: []byte(key), Call: s.Now(), Return: s.Now(),
				Answer: check.NotFound,
			}
			if value, ok := found[key]; ok {
				op.Answer, op.Value = check.OK, check.Identify(value)
			}
			h = append(h, op)
		}
		if err := check.Linearizable(h, check.Options{}); err != nil {
			return fmt.Errorf("nodes %d: %w", nodes, err)
		}
	}
	return nil
}

// TestPowerCut: see powerCut.
func TestPowerCut(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	eachSeed(t, 60, 2000, powerCut)
}

// TestHistories: what clients see is linearizable, while others crash, segments are cleaned, and
// entries have several blocks, which tear and come late.
func TestHistories(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	eachSeed(t, 48, 1000, histories)
}

// TestCrowd: more clients than a server has buffers for are all answered in time. Where servers
// send each other messages, these find buffers, too.
func TestCrowd(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		o := small(k)
		o.Workers, o.FullAfter, o.Log.Segments = 1, time.Second, 60 // room for all keys at their largest
		c, err := newCluster(o)
		if err != nil {
			t.Fatal(err)
		}
		c.keys = 100
		seed, _ := chosen(1, 1)
		s, _ := c.simulate(sim.Options{Seed: 1 + seed, MTU: mtu, CountRings: true}, c.clients(60, 30)...)
		defer s.Close()
		if err := errors.Join(s.Run(), c.wrong); err != nil {
			t.Fatal(err)
		}
		h := c.history()
		if n := len(h.With(check.Uncertain)) + len(h.With(check.TimedOut)); n > 0 {
			t.Errorf("of %d operations %d are not answered", len(h), n)
		}
	})
}

// alone runs what one client does in a cluster, in virtual time.
func (c *cluster) alone(t *testing.T, o sim.Options, do func(ep rdma.Endpoint) error) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	s, _ := c.simulate(o, func(ep rdma.Endpoint) {
		if err := do(ep); err != nil {
			c.fail("%w", err)
		}
	})
	defer s.Close()
	if err := errors.Join(s.Run(), c.wrong); err != nil {
		t.Fatal(err)
	}
}

// TestSlowAnswers: a GET of which each answer comes later than Ask is answered all the same.
func TestSlowAnswers(t *testing.T) {
	c, err := newCluster(small(kv.Rowan))
	if err != nil {
		t.Fatal(err)
	}
	c.alone(t, sim.Options{Seed: 1, MTU: mtu, CountRings: true}, func(ep rdma.Endpoint) error {
		o := rowan.Options{Servers: c.o, Timeout: patience, Ask: time.Nanosecond}
		store, err := rowan.New(ep, c.configs(), o)
		if err == nil {
			err = store.Insert([]byte("key"), []byte("value"))
		}
		if err == nil {
			_, err = store.Get([]byte("key"))
		}
		return err
	})
}

// inLaterTerm are registers that take their time, and then have a later term.
type inLaterTerm struct {
	cluster *cluster
	ep      rdma.Endpoint
	slow    bool
}

func (r *inLaterTerm) Config() (rdma.Config, error) {
	config := *r.cluster.config
	if r.slow {
		r.ep.Sleep(10 * time.Millisecond)
		config.Term++
	}
	return fixed{data: config.Encode()}.Config()
}

// TestAnsweredMeanwhile: the answer to a write that has come while the client read of a later term
// counts.
func TestAnsweredMeanwhile(t *testing.T) {
	c, err := newCluster(small(kv.Rowan))
	if err != nil {
		t.Fatal(err)
	}
	c.alone(t, sim.Options{Seed: 1, MTU: mtu, CountRings: true}, func(ep rdma.Endpoint) error {
		configs := &inLaterTerm{c, ep, false}
		store, err := rowan.New(ep, configs, rowan.Options{Servers: c.o, Timeout: patience, Ask: time.Nanosecond})
		for _, slow := range []bool{false, true} { // with the first one servers begin
			if configs.slow = slow; err == nil {
				err = store.Insert(fmt.Append(nil, slow), []byte("value"))
			}
		}
		return err
	})
}
