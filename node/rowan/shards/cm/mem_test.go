package cm_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// eager is a store that has copied all at once.
type eager struct {
	node  int
	terms atomic.Pointer[shards.Config]
}

func (s *eager) Adopt(c *shards.Config) error {
	s.terms.Store(c)
	return nil
}

func (s *eager) Quiet() bool { return true }

func (s *eager) Report() (r cm.Report) {
	c := s.terms.Load()
	for i := range c.Shards {
		for _, n := range c.Shards[i].Copying {
			if n == s.node {
				r.Copied = append(r.Copied, i)
			}
		}
	}
	return r
}

// TestMem runs two candidates and four servers in real time: a node dies, and the other servers
// have all of its shards.
func TestMem(t *testing.T) {
	const nodes = 4
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: 1 << 16, Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	var all sync.WaitGroup
	start := func(run func(ep rdma.Endpoint) error) {
		all.Go(func() {
			for {
				ep, err := f.Open("worker")
				if err == nil {
					err = run(ep)
					ep.Close()
				}
				if errors.Is(err, rdma.ErrRevoked) { // a candidate that was slow begins again
					continue
				}
				if err != nil {
					t.Error(err)
				}
				return
			}
		})
	}
	defer func() {
		over.Store(true)
		all.Wait()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	stores := make([]*eager, nodes)
	for node := range nodes {
		stores[node] = &eager{node: node}
		start(func(ep rdma.Endpoint) error { return serve(ep, f, stores[node], &over) })
	}
	first, err := shards.New([]int{0, 1, 2, 3}, 12, 3)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		start(func(ep rdma.Endpoint) error { return keep(ep, f, first, &over) })
	}
	await := func(what string, ok func(c *shards.Config) bool) {
		t.Helper()
		for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			well := true
			for node, s := range stores {
				c := s.terms.Load()
				well = well && c != nil && c.Committed && (c.Member(node) == nil || ok(c))
			}
			if well {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%s: not within a minute", what)
			}
		}
	}
	await("the first configuration", func(c *shards.Config) bool { return c.Term == 1 })
	if err := f.KillNode(1); err != nil {
		t.Fatal(err)
	}
	stores = append(stores[:1], stores[2:]...)
	await("the configuration without server 1", func(c *shards.Config) bool {
		if c.Member(1) != nil || len(c.Members) != nodes-1 {
			return false
		}
		for i := range c.Shards {
			if len(c.Shards[i].Backups) != 2 {
				return false
			}
		}
		return true
	})
}

// keep is a candidate.
func keep(ep rdma.Endpoint, f rdma.Fabric, first *shards.Config, over *atomic.Bool) error {
	recoverer := cm.NewRecoverer(f, cm.Options{First: first, Hung: time.Hour})
	return cluster.Keep(ep, f, recoverer, cluster.Options{Stop: over.Load})
}

// serve is a server's control task. That of a node that died ends.
func serve(ep rdma.Endpoint, f rdma.Configs, store *eager, over *atomic.Bool) error {
	p, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: store.node, Number: 1}})
	if err != nil {
		return err
	}
	server := cm.NewServer(ep, f, store.node, store)
	for !over.Load() {
		r, err := p.Next(time.Millisecond)
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		if err = nil; r != nil {
			err = server.Handle(r)
		}
		if err = errors.Join(err, server.Step()); err != nil && !errors.Is(err, rdma.ErrStale) {
			return err
		}
	}
	return nil
}
