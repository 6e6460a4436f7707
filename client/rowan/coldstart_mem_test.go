package rowan_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
	"github.com/farkv/farkv/workloads/check"
)

// restart ends servers, and has others begin beside their nodes.
func (r *real) restart(nodes ...int) {
	for _, n := range nodes {
		r.ends[n]()
	}
	for _, n := range nodes {
		r.begin(n)
	}
}

// TestRestarts: servers are started anew under load, in real time: one of them, then all. What
// clients see is linearizable, and all replicas have the same in the end.
func TestRestarts(t *testing.T) { each(t, kv.Kinds(), restarts) }

func restarts(t *testing.T, k kv.Kind) {
	o := small(k)
	o.Nodes, o.Shards, o.FullAfter = 4, 8, patience/2
	o.Log.Segments, o.Log.Ahead, o.Log.Reserve = 48, 30, 16
	c, _ := newChanging(t, o, cm.Options{Period: time.Hour})
	c.await("the first configuration", func(*shards.Config) bool { return true })
	c.keys = 20
	var group sync.WaitGroup
	for i := range 4 {
		ep := c.endpoint(c.place.clients, "client")
		store, err := c.open(ep, time.Second) // a server that ends answers nothing, and in memory no connection breaks
		if err != nil {
			t.Fatal(err)
		}
		rec := check.NewRecorder(i, store, ep.Now)
		c.recorders = append(c.recorders, rec)
		group.Go(func() {
			defer ep.Close()
			defer store.Close()
			for round, nodes := range [][]int{nil, {1}, {0, 1, 2, 3}} {
				if i == 0 {
					c.restart(nodes...)
				}
				c.play(ep, rec, plan{
					worker: i, first: 500 * round, ops: 500,
					keys: c.keys, sizes: []int{8, 100, 500, maxValue}, writes: 70,
				})
			}
		})
	}
	group.Wait()
	c.config = c.await("a fifth configuration", func(c *shards.Config) bool { return c.Term == 5 })
	c.judge()
}

// BenchmarkColdStart starts all servers anew beside memory with records of 100 bytes: until their
// indexes have them, and another term has begun. records/s are those of one node, of which each is
// a replica of all.
func BenchmarkColdStart(b *testing.B) {
	const records = 50_000
	o := large(kv.Rowan)
	c, _ := newChanging(b, o, cm.Options{Period: time.Hour})
	c.await("the first configuration", func(*shards.Config) bool { return true })
	s, _, end := c.client()
	defer end()
	value := make([]byte, 100)
	for i := range records {
		if err := s.Insert(fmt.Appendf(nil, "key-%d", i), value); err != nil {
			b.Fatal(err)
		}
	}
	term := uint64(1)
	for b.Loop() {
		c.restart(0, 1, 2)
		term += 2
		c.await("another term", func(c *shards.Config) bool { return c.Term == term })
		for _, err := s.Get([]byte("key-0")); err != nil; _, err = s.Get([]byte("key-0")) {
			if errors.Is(err, client.ErrNotFound) || errors.Is(err, rdma.ErrClosed) {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
