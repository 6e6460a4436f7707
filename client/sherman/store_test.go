package sherman

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
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

// pool is one that is to be made.
type pool struct {
	Params
	format string
	nodes  int
}

func (p pool) make(f rdma.Fabric) error { return Make(f, p.format, p.Params) }

func sized(s Shape) pool {
	p, _, err := Size(s)
	if err != nil {
		panic(err)
	}
	return pool{p, s.Format, s.Nodes}
}

// both runs a test for each library of transactions.
func both(t *testing.T, f func(t *testing.T, format string)) {
	for _, format := range Formats {
		t.Run(format, func(t *testing.T) { f(t, format) })
	}
}

// small is a tree of nodes for few keys, so that it has levels soon.
func small(format string, nodes, records, values int) pool {
	return sized(Shape{Format: format, Nodes: nodes, Records: uint64(records), NodeBytes: 512, KeyBytes: 32,
		ValueBytes: values, Clients: 64, Timeout: 20 * time.Second})
}

func harness(p pool, o Options) storetest.Harness {
	return storetest.Harness{
		Nodes: p.nodes, Memory: p.Memory, Clients: p.Clients, Handler: node.Serve,
		Format:    p.make,
		Open:      func(ep rdma.Endpoint) (client.Store, error) { return Open(ep, o) },
		Check:     Check,
		Recoverer: NewRecoverer,
		MaxKey:    p.KeyBytes, MaxValue: p.ValueBytes, MinSeeds: 50,
	}
}

// TestStore is what every store must pass.
func TestStore(t *testing.T) {
	for _, c := range []struct {
		name, format string
		nodes        int
		o            Options
	}{
		{"1 node", RTX, 1, Options{}}, {"3 nodes, no cache", RTX, 3, Options{CacheBytes: new(0)}},
		{"DTX", DTX, 2, Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := harness(small(c.format, c.nodes, 5000, 1000), c.o)
			h.Alike = c.nodes == 3
			if c.format == DTX { // a killed process has no master that recovers its clients
				h.Impatient = func(ep rdma.Endpoint) (client.Store, error) {
					// Operations end after half of it. That is far more than nine
					// workers wait for each other under the race detector.
					return Open(ep, Options{Timeout: time.Second})
				}
			}
			storetest.Run(t, h)
		})
	}
}

// memPool makes a pool of memory of this process.
func memPool(t testing.TB, p pool) rdma.Fabric {
	t.Helper()
	f, err := shm.NewMem(shm.Geometry{Nodes: p.nodes, Memory: p.Memory, Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, p.make(f))
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

// checkedLive is checked beside clients that do nothing.
func checkedLive(t testing.TB, f rdma.Fabric, keys int) {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Unchecked) > 0 || r.Facts[0].Count != uint64(keys) {
		t.Errorf("want %d keys: %+v", keys, r)
	}
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
