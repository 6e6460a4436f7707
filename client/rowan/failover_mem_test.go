package rowan_test

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	keeping "github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
	"github.com/farkv/farkv/workloads/check"
)

// newChanging starts a cluster in memory with a configuration that changes, and its manager. They
// end with the test.
func newChanging(t testing.TB, o kv.Options, options cm.Options) (*real, *shm.Fabric) {
	o = fit(o)
	first, err := newConfig(o, o.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	f, err := shm.NewMem(shm.Geometry{Nodes: o.Nodes, Memory: o.Size(), Clients: 128}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.MTU = mtu
	c := &cluster{o: o, config: first, registers: f, running: make([]*server.Server, o.Nodes)}
	r := &real{cluster: c, t: t, place: &place{clients: f, end: f.Close}, ends: make([]func(), o.Nodes)}
	t.Cleanup(r.end)
	for n := range o.Nodes {
		r.begin(n)
	}
	r.serving.Go(func() {
		ep := r.endpoint(f, "candidate")
		defer ep.Close()
		options.First, options.Hung = first, cmp.Or(options.Hung, time.Hour)
		err := keeping.Keep(ep, f, cm.NewRecoverer(f, options), keeping.Options{Stop: r.over.Load})
		if err != nil {
			t.Error(err)
		}
	})
	return r, f
}

// begin has a server begin, which may be the next one beside its node.
func (r *real) begin(n int) {
	ep := r.endpoint(r.place.clients, fmt.Sprint("server ", n))
	srv, err := server.Open(ep, r.registers, r.o, n)
	if err != nil {
		r.t.Fatal(err)
	}
	r.running[n] = srv
	ended := make(chan struct{})
	r.serving.Go(func() {
		defer close(ended)
		defer ep.Close()
		err := srv.Run(ep)
		if usual := n == 1 && (errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rowan.ErrDamaged)); err != nil &&
			!usual {
			r.t.Error(err)
		}
	})
	r.ends[n] = func() {
		srv.Stop()
		<-ended
	}
}

// await waits for a committed configuration that has something.
func (r *real) await(what string, has func(*shards.Config) bool) *shards.Config {
	r.t.Helper()
	var last *shards.Config
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if at, err := r.registers.Config(); err == nil && at.Version > 0 {
			if c, err := shards.Decode(at.Data); err == nil {
				if last = c; c.Committed && has(c) {
					return c
				}
			}
		}
	}
	r.t.Fatalf("%s: not within a minute; there is %+v", what, last)
	return nil
}

// stored returns the configuration that is in the registers.
func (r *real) stored() *shards.Config {
	r.t.Helper()
	at, err := r.registers.Config()
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := shards.Decode(at.Data)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// TestFailoverMem: a node dies under load, in real time. What clients see is linearizable, all
// shards have their replicas again in the end, and these have the same.
func TestFailoverMem(t *testing.T) { each(t, kv.Kinds(), failoverMem) }

func failoverMem(t *testing.T, k kv.Kind) {
	o := small(k)
	o.Nodes, o.Shards, o.FullAfter = 5, 10, patience/2
	o.Log.Segments, o.Log.Ahead, o.Log.Reserve = 48, 30, 16
	c, f := newChanging(t, o, cm.Options{Period: time.Hour})
	c.keys = 20
	c.await("the first configuration", func(*shards.Config) bool { return true })
	var group sync.WaitGroup
	var killed sync.Once
	for i := range 4 {
		store, ep, end := c.client()
		rec := check.NewRecorder(i, store, ep.Now)
		c.recorders = append(c.recorders, rec)
		group.Go(func() {
			defer end()
			p := plan{worker: i, ops: 700, keys: c.keys, sizes: []int{8, 100, 500, maxValue}, writes: 70}
			c.play(ep, rec, p)
			killed.Do(func() {
				if err := f.KillNode(1); err != nil {
					t.Error(err)
				}
			})
			p.first = p.ops
			c.play(ep, rec, p)
		})
	}
	group.Wait()
	c.config = c.await("the configuration without server 1", func(c *shards.Config) bool {
		for i := range c.Shards {
			if len(c.Shards[i].Backups) != 2 {
				return false
			}
		}
		return c.Member(1) == nil
	})
	c.judge()
	for _, rec := range c.recorders[:4] {
		if h := rec.History(); len(h[len(h)/2:].With(check.Uncertain)) > len(h)/10 {
			t.Errorf("of %d operations behind the death these are uncertain: %v", len(h)/2,
				h[len(h)/2:].With(check.Uncertain))
		}
	}
}
