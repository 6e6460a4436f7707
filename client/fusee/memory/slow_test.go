package memory

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// slowTimeout is that of clients of onSlowNode.
const slowTimeout = 20 * time.Millisecond

// onSlowNode runs a client's work with an object of a node that is so slow that it answers nothing
// in an operation's time.
func onSlowNode(t *testing.T, work func(a *Allocator, unit uint64)) {
	t.Helper()
	p := params(slowTimeout)
	const slow, begins = 1, time.Second
	f := sim.New(sim.Options{Nodes: 2, Memory: poolBytes, Clients: p.Clients, Handler: node.Serve,
		Faults: sim.Faults{{Kind: sim.SlowFault, Node: slow, At: begins, For: time.Hour, Factor: 1e6}}})
	t.Cleanup(func() { f.Close() })
	if err := session.Make(f, p); err != nil {
		t.Fatal(err)
	}
	f.Go("worker", func(ep rdma.Endpoint) {
		s, err := session.Open(ep, 0)
		if err != nil {
			t.Error(err)
			return
		}
		region := 0
		for s.Space.Place[region][0].Node != slow {
			region++
		}
		ep.Sleep(begins + time.Millisecond - ep.Now())
		work(New(s), s.Space.Object(node.Block{Region: region}, 0, s.Classes.Units[0]))
	})
	if err := f.Run(); err != nil {
		t.Fatal(err)
	}
}

// An operation waits for frees on a slow node for a part of its time only: it needs nothing else
// of that node.
func TestSlowNodeHoldsFreesUp(t *testing.T) {
	onSlowNode(t, func(a *Allocator, unit uint64) {
		for range maxFlying * freeBatch {
			a.Reclaim.send(freed{unit: unit, tag: anyTag})
		}
		if a.Reclaim.Flying != maxFlying {
			t.Errorf("%d batches in flight, want %d", a.Reclaim.Flying, maxFlying)
		}
		start := a.s.Now()
		for range freeBatch {
			a.Reclaim.send(freed{unit: unit, tag: anyTag})
		}
		if took := a.s.Now() - start; took == 0 || took > slowTimeout/flushShare+time.Millisecond {
			t.Errorf("a full pipe of frees took %v of an operation's %v", took, slowTimeout)
		}
	})
}

// An operation that finds many rested objects of a slow node waits for that part of its time
// once, not for each batch of frees, and not beyond its deadline. The next operation waits again.
func TestManyFreesOfSlowNode(t *testing.T) {
	onSlowNode(t, func(a *Allocator, unit uint64) {
		const share, short = slowTimeout / flushShare, time.Millisecond
		for _, left := range []time.Duration{slowTimeout, slowTimeout, short} { // of an operation's time
			for range 10 * freeBatch {
				a.Reclaim.layTag(unit, 0, anyTag, 0)
			}
			a.s.Sleep(a.Reclaim.Rest + time.Microsecond)
			a.s.Start()
			start := a.s.Now()
			a.s.Clock, a.s.Deadline = start, start+left
			a.tend(0)
			if took, want := a.s.Now()-start, min(share, left); took < want || took > want+want/10 {
				t.Errorf("many frees took %v of the %v that the operation had left, want %v", took, left, want)
			}
		}
	})
}
