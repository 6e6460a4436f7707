package buffers

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// silenced runs a worker that has had buffers of a segment, and is cut off all nodes from now on,
// for a while. It may use other segments.
func silenced(t *testing.T, away time.Duration, do func(f *sim.Sim, w *Worker)) {
	t.Helper()
	const from = time.Millisecond
	s := &Space{Segments: 4, Buffers: 100, Bytes: 64}
	f := sim.New(sim.Options{Nodes: 2, Memory: (s.Base + s.Size() + 4095) &^ 4095, Handler: node.Serve,
		RetryTimeout: time.Hour, Faults: sim.Faults{{Kind: sim.PartitionFault, Client: "client", Node: sim.AnyNode,
			At: from, For: away}}})
	defer f.Close()
	f.Go("client", func(ep rdma.Endpoint) {
		w := s.Open(ep, 2, timeout)
		for n := range 2 {
			_, _, err := w.Allocate(n, 0)
			must(t, err)
		}
		ep.Sleep(from - ep.Now())
		do(f, w)
	})
	must(t, f.Run())
}

// TestNeededNodeIsAwaited: a step that fails without a node waits for it until the timeout. Other
// steps wait for Patience, also afterwards, and the node is soon asked again.
func TestNeededNodeIsAwaited(t *testing.T) {
	silenced(t, timeout/2, func(f *sim.Sim, w *Worker) {
		patience, slow := w.Patience(), 10*time.Microsecond
		if patience >= timeout/8 {
			t.Fatalf("Patience is %v: this test shows nothing", patience)
		}
		w.SetHedgeDelay(func() time.Duration { return slow })
		for n := range 2 {
			began := f.Now()
			if _, _, err := w.Allocate(n, 1); !errors.Is(err, rdma.ErrTimeout) || f.Now()-began > patience {
				t.Errorf("node %d was waited for %v: %v", n, f.Now()-began, err)
			}
		}
		slow = 0
		w.noteNeed()
		must(t, w.grow(w.list(0, 2)))
		for n := range 2 {
			_, _, err := w.Allocate(n, 1)
			must(t, err)
		}
		if w.Patience() != patience {
			t.Errorf("Patience was %v before the outage, and is %v now", patience, w.Patience())
		}
	})
}

// TestNeededNodesHaveOneTimeout: a step that fails without two nodes gives both up after one
// timeout, and later ones that can do without them ask them again after a multiple of Patience.
func TestNeededNodesHaveOneTimeout(t *testing.T) {
	silenced(t, time.Hour, func(f *sim.Sim, w *Worker) {
		w.SetHedgeDelay(func() time.Duration { return 0 })
		began := f.Now()
		for n := range 2 {
			_, _, err := w.Allocate(n, 1)
			if !errors.Is(err, rdma.ErrTimeout) {
				t.Error(n, err)
			}
			if until := w.silent[n]; until > f.Now()+retryAfterFactor*w.Patience() {
				t.Errorf("node %d is not asked for %v", n, until-f.Now())
			}
		}
		if took := f.Now() - began; took < timeout || took > timeout+w.Patience() {
			t.Errorf("two nodes were waited for %v, and the timeout is %v", took, timeout)
		}
	})
}
