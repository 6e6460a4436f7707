package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestTimerFollows: over a slow network the timer soon is such that the common case is no more than that, and a dead node
// does not drive it up.
func TestTimerFollows(t *testing.T) {
	for _, way := range []time.Duration{time.Microsecond, 50 * time.Microsecond, 500 * time.Microsecond} {
		l, err := NewLayout(Shape{Replicas: 3, Words: 1, Locks: 1, Writers: 1, MaxValue: 8})
		must(t, err)
		a := newArena(l, 3, 1, 10_000)
		s := sim.New(sim.Options{Nodes: 3, Memory: a.memory(), MinLatency: way, MaxLatency: way, NodeTimeout: time.Second})
		s.Go("client", func(ep rdma.Endpoint) {
			x, err := a.open(ep, Options{})
			must(t, err)
			defer x.Close()
			rest := func(ops int) {
				for range ops {
					must(t, x.Write(&x.keys[0], []byte("value")))
				}
			}
			rest(200)
			before := x.Stats().Widened
			rest(200)
			want := min(max(slowTrips*2*way, leastSlow), mostSlow)
			if x.timer.slow < want || x.timer.slow > 3*want/2 || x.Stats().Widened != before {
				t.Errorf("%v each way: the timer is %v, want %v; %d steps were too slow", way, x.timer.slow, want, x.Stats().Widened-before)
			}
			must(t, s.KillNode(0))
			rest(2000)
			if x.timer.slow > 2*want {
				t.Errorf("%v each way, a node is dead: the timer is %v, was %v", way, x.timer.slow, want)
			}
		})
		must(t, s.Run())
		s.Close()
	}
}
