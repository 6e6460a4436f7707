package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// TestNoDowntime: a node dies, silently, while workers get and update pairs whose locations they have cached. No operation
// fails. None takes much longer than the timer by which a slow node is told, which is some trips, though the dead node's verbs
// hang for a second; and all but the one that meets the dead node first take as long as before.
func TestNoDowntime(t *testing.T) {
	const (
		workers, keys, ops = 4, 6, 200
		trip               = 2 * 2 * time.Microsecond // the longest
		most               = 60                       // trips that an operation may take
	)
	for _, apart := range []bool{false, true} {
		var longest, calm time.Duration
		for seed := uint64(1); seed <= seeds(30); seed++ {
			dead := int(seed % 3)
			p := small(3, 3, apart)
			l, err := newPlan(p, 3)
			must(t, err)
			s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve, MinLatency: 500,
				MaxLatency: trip / 2, Tear: true, Reorder: true, NodeTimeout: time.Second})
			must(t, Make(s, p))
			died := time.Duration(0)
			slow := 0
			for w := range workers {
				s.Go(fmt.Sprint("worker ", w), func(ep rdma.Endpoint) {
					k, err := OpenStore(ep, StoreOptions{Apart: apart})
					if err != nil {
						panic(err)
					}
					key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n%keys) }
					if w == 0 {
						for n := range keys {
							must(t, k.Insert(key(n), check.MakeValue(nil, w, n+1, 100)))
						}
						ep.Sleep(time.Millisecond) // others have cached them
						s.KillNodeAfter(dead, 100*time.Microsecond)
						died = s.Now() + 100*time.Microsecond
					} else {
						ep.Sleep(500 * time.Microsecond)
						for n := range keys {
							if _, err := k.Get(key(n)); err != nil {
								t.Errorf("seed %d: %v", seed, err)
							}
						}
						ep.Sleep(time.Millisecond)
					}
					for n := range ops {
						began := s.Now()
						if n%2 == 0 {
							err = k.Update(key(n*7+w), check.MakeValue(nil, w, keys+n+1, 100))
						} else {
							_, err = k.Get(key(n*5 + w))
						}
						if err != nil {
							t.Errorf("seed %d, node %d died at %v: %v, at %v", seed, dead, died, err, s.Now())
						}
						took := s.Now() - began
						if began < died && s.Now() < died {
							calm = max(calm, took)
							continue
						}
						longest = max(longest, took)
						if took > k.c.quorum.Slow() {
							slow++
						}
						if took > most*trip {
							t.Errorf("seed %d, node %d died: an operation took %v, the timer is %v", seed, dead, took, k.c.quorum.Slow())
						}
					}
				})
			}
			must(t, s.Run())
			s.Close()
			t.Log(seed, slow, s.Now())
		}
		t.Logf("%s: the longest operation took %v before a node died, and %v (%.1f trips) behind it", formatName(apart), calm, longest, float64(longest)/float64(trip))
	}
}
