package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// inline is a pool with values that lie in their rows. It is made quickly.
func inlinePool(shards int) table.Params {
	return table.Params{Shards: shards, Rows: 600 / shards, Entries: 8, KeyBytes: 63, InlineBytes: 200,
		ExtentBytes: 200,
		F:           2.3, RowsPerLock: 16, LockWords: 2,
		Clients: 64, Timeout: 20 * time.Second}
}

// extentPool is a pool of few slabs. All values but the shortest lie in extents.
func extentPool(shards int) table.Params {
	p := inlinePool(shards)
	p.InlineBytes, p.ExtentBytes, p.SlabExtents, p.Classes = 16, 1000, 16, 5
	p.Slabs = 5000 / 16 / shards
	return p
}

func harness(nodes int, p table.Params, o session.Options) storetest.Harness {
	p.Tickets = 16
	l, err := table.New(p, nodes)
	if err != nil {
		panic(err)
	}
	return storetest.Harness{
		Nodes: nodes, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve,
		Format: func(f rdma.Fabric) error {
			p := p
			if _, ok := f.(*sim.Sim); ok { // a small pool, which is checked quickly, with locks in several words
				p.Rows, p.RowsPerLock, p.LockWords, p.Slabs = 40, 1, 2, min(p.Slabs, 40)
			}
			return Make(f, p)
		},
		OpenOn: func(f rdma.Fabric, ep rdma.Endpoint) (client.Store, error) {
			o := o
			o.Pool = f
			if _, ok := f.(*sim.Sim); ok {
				o.Failure = 5 * time.Millisecond // far more than an operation takes there
			}
			return Open(ep, o)
		},
		Check:     Check,
		Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		MaxKey:    p.KeyBytes, MaxValue: p.ExtentBytes, MinSeeds: 50,
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		nodes int
		p     table.Params
	}{{"inline, 1 node, 1 shard", 1, inlinePool(1)}, {"extents, 2 nodes, 5 shards", 2, extentPool(5)}} {
		t.Run(c.name, func(t *testing.T) {
			// Busy machines and cut connections stop workers for a while. They must not be fenced
			// off for that.
			h := harness(c.nodes, c.p, session.Options{Failure: 3 * time.Second})
			h.Alike = c.nodes == 1 // with extents they share more memory
			storetest.Run(t, h)
		})
	}
}

func memPool(t testing.TB, nodes int, p table.Params) *shm.Fabric {
	t.Helper()
	l, err := table.New(p, nodes)
	must(t, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: l.Bytes, Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, Make(f, p))
	return f
}

func storeOn(t testing.TB, f rdma.Fabric, o session.Options) *Store {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	if o.Pool == nil {
		o.Pool = f
	}
	s, err := Open(ep, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		ep.Close()
	})
	return s
}

// TestNodeGone: when a node is gone, its shards are gone, and the others are whole. Workers that
// did nothing on it close without an error, and Check leaves its shards out.
func TestNodeGone(t *testing.T) {
	f := memPool(t, 2, extentPool(2))
	s := storeOn(t, f, session.Options{Timeout: time.Second})
	var there [][]byte
	for i := range 40 {
		key := fmt.Appendf(nil, "key %d", i)
		if s.session.Table.Place(key).Shard == 0 {
			must(t, s.Insert(key, make([]byte, 500)))
			there = append(there, key)
		}
	}
	idle := storeOn(t, f, session.Options{Timeout: time.Second})
	must(t, f.KillNode(1))
	late := storeOn(t, f, session.Options{Timeout: time.Second})
	for _, w := range []*Store{s, idle, late} { // which close without an error
		for _, key := range there {
			if _, err := w.Get(key); err != nil {
				t.Error(err)
			}
		}
	}
	must(t, late.Update(there[0], there[0]))
	r, err := Check(f)
	if err != nil || len(r.Damage) > 0 || r.Facts[0].Count != uint64(len(there)) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestClaimsOutOfReach: Close returns an error if the worker has extents claimed on a node that
// does not answer, so that the worker is recovered.
func TestClaimsOutOfReach(t *testing.T) {
	f := memPool(t, 2, extentPool(2))
	ep, err := f.Open("worker")
	must(t, err)
	defer ep.Close()
	s, err := Open(ep, session.Options{Pool: f, Timeout: time.Second})
	must(t, err)
	for i := range 10 { // in both shards
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), make([]byte, 500)))
	}
	must(t, f.KillNode(1))
	if err := s.Close(); !errors.Is(err, client.ErrUncertain) {
		t.Errorf("it closes, and says %v", err)
	}
}
