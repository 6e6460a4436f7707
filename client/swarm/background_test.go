package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestBackgroundIsBounded: a client with too much background work in flight leaves tuples unmarked,
// and readers find their values all the same, and mark them.
func TestBackgroundIsBounded(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 8})
	must(t, err)
	a := newArena(l, 4, 1, 100) // node 3 has no replica
	s := sim.New(sim.Options{Nodes: 4, Memory: a.memory(),
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: 3, Factor: 1000, For: time.Second}}})
	defer s.Close()
	s.Go("client", func(ep rdma.Endpoint) {
		x, err := a.open(ep, Options{})
		must(t, err)
		defer x.Close()
		for range backgroundBatches {
			b := ep.Batch()
			b.Read(rdma.At(3, 0), 8)
			must(t, ep.Post(b))
			x.pending = append(x.pending, b)
		}
		must(t, x.Write(&x.keys[0], []byte("value")))
		if n := x.Stats().Unmarked; n != 1 {
			t.Errorf("%d tuples were left unmarked, want 1", n)
		}
		y, err := a.open(ep, Options{Writer: 1})
		must(t, err)
		defer y.Close()
		for n := range 2 {
			if v, err := y.Read(&y.keys[0]); err != nil || string(v) != "value" || y.Stats().Locks != 1 ||
				y.Stats().Iterations != 2 {
				t.Errorf("read %d: %q, %v, %+v", n, v, err, y.Stats())
			}
			ep.Sleep(100 * time.Microsecond)
		}
	})
	must(t, s.Run())
}
