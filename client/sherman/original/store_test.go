package original

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/storetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want an error wrapping %v", err, want)
	}
}

// small is a tree of nodes for few keys, so that it has levels soon, and with few locks, so that
// nodes share them.
func small(nodes, records, values int) Params {
	p, _, err := Size(Shape{
		Nodes: nodes, Records: uint64(records), NodeBytes: 512, KeyBytes: 32, ValueBytes: values, Clients: 64,
		Locks: 64, Timeout: 2 * time.Second,
	})
	if err != nil {
		panic(err)
	}
	return p
}

func memoryOf(p Params, nodes int) uint64 {
	l, err := newLayout(p, nodes)
	if err != nil {
		panic(err)
	}
	return l.bytes
}

func harness(nodes int, p Params, o Options) storetest.Harness {
	return storetest.Harness{
		Nodes: nodes, Memory: memoryOf(p, nodes), Clients: p.Clients, Handler: node.Serve,
		Format:    func(f rdma.Fabric) error { return Make(f, p) },
		Open:      func(ep rdma.Endpoint) (client.Store, error) { return Open(ep, o) },
		Check:     Check,
		Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		MaxKey:    p.KeyBytes, MaxValue: p.ValueBytes, MinSeeds: 50,
	}
}

// TestStore is what every store must pass.
func TestStore(t *testing.T) {
	for _, c := range []struct {
		name   string
		nodes  int
		values int
		o      Options
	}{{"1 node", 1, 1000, Options{}}, {"3 nodes, no cache", 3, 1000, Options{CacheBytes: new(0)}}} {
		t.Run(c.name, func(t *testing.T) {
			h := harness(c.nodes, small(c.nodes, 5000, c.values), c.o)
			h.Alike = c.nodes > 1
			storetest.Run(t, h)
		})
	}
}

// memPool makes a pool of memory of this process.
func memPool(t testing.TB, nodes int, p Params) rdma.Fabric {
	t.Helper()
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: memoryOf(p, nodes), Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, Make(f, p))
	return f
}

func storeOn(t testing.TB, f rdma.Fabric, o Options) *Store {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	s, err := Open(ep, o)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, ep.Close())
	})
	return s
}

// checked expects a pool that is as it should be, with so many pairs.
func checked(t testing.TB, f rdma.Fabric, keys int) map[string]uint64 {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	facts := map[string]uint64{}
	for _, u := range r.Facts {
		facts[u.Name] = u.Count
	}
	if len(r.Damage) > 0 || len(r.Waiting) > 0 || len(r.Unchecked) > 0 || facts["keys"] != uint64(keys) {
		t.Errorf("want %d keys: %+v", keys, r)
	}
	return facts
}
