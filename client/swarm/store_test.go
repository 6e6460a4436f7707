package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// small is a pool that is quickly made.
func small(nodes, replicas int, apart bool) Params {
	p := Params{Replicas: replicas, Words: 4, Locks: 16, Clients: 64, PairBytes: 64 + 1000, Apart: apart,
		Regions: 2 * nodes, Objects: 4800 / (2 * nodes), Values: Buffers{Segments: 2, Each: 12_000},
		Index: Buffers{Segments: 2, Each: 2000}, Buckets: 600, Timeout: 3 * time.Second}
	if apart {
		p.Words, p.Locks = 1, 0
	}
	return p
}

func harness(nodes int, p Params, o StoreOptions) storetest.Harness {
	l, err := newPlan(p, nodes)
	if err != nil {
		panic(err)
	}
	o.Apart = p.Apart
	return storetest.Harness{
		Nodes: nodes, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		Format:    func(f rdma.Fabric) error { return Make(f, p) },
		Open:      func(ep rdma.Endpoint) (client.Store, error) { return OpenStore(ep, o) },
		Check:     Check,
		Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		MaxKey:    64, MaxValue: 1000,
	}
}

func TestStore(t *testing.T) {
	for _, c := range []struct {
		nodes, replicas int
		apart           bool
	}{{3, 3, false}, {3, 3, true}, {1, 1, false}} {
		p := small(c.nodes, c.replicas, c.apart)
		name := fmt.Sprintf("%s, %d nodes, %d replicas", formatName(false, c.apart), c.nodes, c.replicas)
		t.Run(name, func(t *testing.T) {
			h := harness(c.nodes, p, StoreOptions{CacheBytes: new(64 << 10)})
			h.Alike = c.apart || c.replicas == 1
			storetest.Run(t, h)
		})
	}
}

func storePool(t testing.TB, nodes int, p Params) *shm.Fabric {
	t.Helper()
	l, err := newPlan(p, nodes)
	must(t, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: l.bytes, Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, Make(f, p))
	return f
}

func storeOn(t testing.TB, f rdma.Fabric, o StoreOptions) *Store {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	s, err := OpenStore(ep, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		ep.Close()
	})
	return s
}
