package quorum

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// words are the first ones of so many nodes.
func words(nodes int) (at []rdma.Addr) {
	for n := range nodes {
		at = append(at, rdma.At(n, 0))
	}
	return at
}

func readWord(at []rdma.Addr) func(b *rdma.Batch, r int) error {
	return func(b *rdma.Batch, r int) error {
		b.Read(at[r], 8)
		return nil
	}
}

func done(int, *rdma.Batch, Chain) Verdict { return Done }

// TestTimerFollows: over a slow network the timer soon is such that the common case is no more than
// that, and a dead node does not drive it up.
func TestTimerFollows(t *testing.T) {
	for _, way := range []time.Duration{time.Microsecond, 50 * time.Microsecond, 500 * time.Microsecond} {
		s := sim.New(sim.Options{Nodes: 3, Memory: 4096, MinLatency: way, MaxLatency: way, NodeTimeout: time.Second})
		s.Go("client", func(ep rdma.Endpoint) {
			q, at := New(ep, Options{Attempts: 1}), words(3)
			defer q.Release()
			step := func(times int) {
				for range times {
					must(t, q.Gather("step", at, 0, All(3), 2, readWord(at), done))
				}
			}
			step(200)
			before := q.Stats().Widened
			step(200)
			want := min(max(slowTrips*2*way, leastSlow), mostSlow)
			if q.Slow() < want || q.Slow() > 3*want/2 || q.Stats().Widened != before {
				t.Errorf("%v each way: the timer is %v, want %v; %d steps were too slow", way, q.Slow(), want,
					q.Stats().Widened-before)
			}
			must(t, s.KillNode(0))
			step(2000)
			if q.Slow() > 2*want {
				t.Errorf("%v each way, a node is dead: the timer is %v, was %v", way, q.Slow(), want)
			}
		})
		must(t, s.Run())
		s.Close()
	}
}
