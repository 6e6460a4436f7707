package dtx

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestDetection: a master that looks for dead clients each Detection, as long as rTX's leases, lets
// those that wait for a lock go on within that, and some trips.
func TestDetection(t *testing.T) {
	virtual(t)
	l, err := NewLayout(Shape{Nodes: 2, Memory: 1 << 20, Clients: 8, Roots: 1, Sizes: []int{64}})
	must(t, err)
	longest := time.Duration(0)
	for n := range 20 {
		s := sim.New(sim.Options{Seed: uint64(n), Nodes: 2, Memory: 1 << 20, Clients: 8, Handler: node.Serve})
		a := l.Root(0)
		over := false
		s.Go("master", func(ep rdma.Endpoint) {
			recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep, l, Options{}) }
			o := cluster.Options{Lease: 4 * Detection, Tick: Detection, Stop: func() bool { return over }}
			must(t, cluster.Keep(ep, s, recoverer, o))
		})
		died := 20*time.Millisecond + time.Duration(n)*Detection/20
		dead := s.Go("dead", func(ep rdma.Endpoint) {
			w, err := Open(ep, l, Options{})
			must(t, err)
			must(t, set(w, "old", a))
			_ = w.Run(func(tx *Tx) error {
				err := tx.Lock(a)
				ep.Sleep(time.Hour)
				return err
			})
		})
		s.CrashAfter(dead, died)
		s.Go("waits", func(ep rdma.Endpoint) {
			w, err := Open(ep, l, Options{})
			must(t, err)
			ep.Sleep(died - ep.Now())
			must(t, set(w, "new", a))
			longest = max(longest, ep.Now()-died)
			wantData(t, w, "[new]", a)
			over = true
		})
		must(t, s.Run())
		must(t, s.Close())
	}
	if most := Detection + 500*time.Microsecond; longest > most || longest < Detection/2 {
		t.Errorf("a client waited for %v, want %v at most", longest, most)
	}
	t.Logf("%v at most", longest)
}
