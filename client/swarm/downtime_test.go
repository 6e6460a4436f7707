package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

const (
	longestTrip = 2 * 2 * time.Microsecond
	// mostTrips bounds the trips of an operation that meets a dead node: the timer that detects
	// the node fires a few times, for a step, and for buffers. Verbs to the node hang for a
	// second, and a lease is as long as thousands of trips.
	mostTrips = 160
)

// TestNoDowntime: a node dies, silently, while workers get and update pairs of which they have
// cached the locations. No operation fails, and none takes longer than some trips; nor does one
// of a worker that never had a buffer on the node.
func TestNoDowntime(t *testing.T) {
	for _, apart := range []bool{false, true} {
		var calm, longest time.Duration
		for seed := uint64(1); seed <= seeds.Few(20); seed++ {
			before, behind := loseNode(t, seed, apart)
			calm, longest = max(calm, before), max(longest, behind)
			if behind > mostTrips*longestTrip {
				t.Errorf("seed %d: an operation took %v", seed, behind)
			}
		}
		t.Logf("%s: the longest operation took %v (%.1f trips) before a node died, and %v (%.1f trips) behind it",
			formatName(false, apart), calm, float64(calm)/float64(longestTrip), longest,
			float64(longest)/float64(longestTrip))
		if longest <= calm {
			t.Error("no operation met the dead node")
		}
	}
}

// loseNode lets a node die in the midst of a run, and returns how long the longest operation took
// before that and behind it.
func loseNode(t *testing.T, seed uint64, apart bool) (before, behind time.Duration) {
	const workers, keys, ops = 4, 6, 200
	p := small(3, 3, apart)
	l, err := newPlan(p, 3)
	must(t, err)
	s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve,
		MinLatency: 500, MaxLatency: longestTrip / 2, Tear: true, Reorder: true, NodeTimeout: time.Second})
	defer s.Close()
	must(t, Make(s, p))
	const met, dies = 2 * time.Millisecond, 2*time.Millisecond + 100*time.Microsecond
	s.KillNodeAfter(int(seed%3), dies)
	key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n%keys) }
	for w := range workers {
		s.Go(fmt.Sprint("worker ", w), func(ep rdma.Endpoint) {
			k, err := OpenStore(ep, StoreOptions{Apart: apart})
			must(t, err)
			for n := range keys {
				if w == 0 {
					must(t, k.Insert(key(n), check.MakeValue(nil, w, n+1, 100)))
				} else {
					ep.Sleep(met/2 - s.Now()) // behind the inserts
					_, err := k.Get(key(n))
					must(t, err)
				}
			}
			ep.Sleep(met - s.Now())
			for n := range ops {
				began, err := s.Now(), error(nil)
				if n%2 == 0 {
					err = k.Update(key(n*7+w), check.MakeValue(nil, w, keys+n+1, 100))
				} else {
					_, err = k.Get(key(n*5 + w))
				}
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				if took := s.Now() - began; s.Now() < dies {
					before = max(before, took)
				} else {
					behind = max(behind, took)
				}
			}
		})
	}
	must(t, s.Run())
	return before, behind
}
