package quorum

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestFenced: a step that is fenced off joins once and goes on. A replica that answered is not
// asked again. Of one that did not the question before counts for nothing, whether the fence cut it
// off or its answer came behind it.
func TestFenced(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault sim.Fault // of what replica 1 is asked first
	}{
		{"cut off", sim.Fault{Kind: sim.FlyFault, Client: "client", Verb: 2, For: 50 * time.Microsecond}},
		{"answered behind the fence", sim.Fault{Kind: sim.LateFault, Client: "client", Verb: 2,
			For: 30 * time.Microsecond}},
	} {
		s := sim.New(sim.Options{Nodes: 3, Memory: 4096, MinLatency: time.Microsecond, MaxLatency: time.Microsecond,
			Faults: sim.Faults{c.fault}})
		s.Go("master", func(ep rdma.Endpoint) {
			ep.Sleep(5 * time.Microsecond)
			ok, err := s.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true})
			must(t, err)
			if !ok {
				t.Error("there is another master")
			}
			must(t, s.Fence(1))
		})
		s.Go("client", func(ep rdma.Endpoint) {
			q, at := New(ep, Options{Slow: 10 * time.Microsecond, Timeout: time.Millisecond, Attempts: 1}), words(3)
			defer q.Release()
			joined := 0
			q.Rejoin = func() error {
				joined++
				ep.Sleep(100 * time.Microsecond) // until all that was in flight has landed
				_, err := ep.Join()
				return err
			}
			var asked, answered [3]int
			err := q.Gather("step", at, 0, All(3), 2, func(b *rdma.Batch, r int) error {
				asked[r]++
				b.FetchAdd(at[r], 1)
				return nil
			}, func(r int, b *rdma.Batch, ch Chain) Verdict {
				if answered[r]++; r == 1 && b != q.flights[q.n-1].b {
					t.Errorf("%s: an answer of before the fence is looked at", c.name)
				}
				return Done
			})
			if err != nil || joined != 1 || asked != [3]int{1, 2, 2} || answered != [3]int{1, 1, 0} {
				t.Errorf("%s: %v; joined %d times, asked %v, answered %v", c.name, err, joined, asked, answered)
			}
		})
		must(t, s.Run())
		s.Close()
	}
}
