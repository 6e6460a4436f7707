package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// TestCrashAtEveryVerb lets a writer, and then each memory node, die after each verb of a run in
// which three clients meet. No client waits for a dead one, and what a dead client left half done
// is read by all clients or by none.
func TestCrashAtEveryVerb(t *testing.T) {
	var total Stats
	storetest.CrashAtEveryVerb(t, func(seed uint64, faults ...sim.Fault) (sent, landed []uint64, err error) {
		r := draw(seed, 3)
		r.workers, r.shape.Writers, r.shape.Words, r.shape.Locks = 3, 3, 1+int(seed)%3, 2+int(seed)%2
		r.nodes, r.options.Nodes, r.keys, r.ops, r.options.Faults = 3, 3, 1, 4, faults
		err = r.play(&total)
		return r.sent, r.landed, err
	})
	t.Logf("%+v", total)
}

// TestSilentNodeIsNotAwaited: a node that dies silently costs one operation the timer, and later
// ones nothing: no gap is longer than a few timers, though verbs to the node hang for a second. A
// read of what a dead client left half done does not wait.
func TestSilentNodeIsNotAwaited(t *testing.T) {
	const ops = 60
	l, err := NewLayout(Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 100})
	must(t, err)
	for dead := range 3 {
		for seed := uint64(1); seed <= 20; seed++ {
			a := newArena(l, 3, 1, 1000)
			s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: a.memory(), Tear: true, Reorder: true,
				NodeTimeout: time.Second})
			s.KillNodeAfter(dead, 50*time.Microsecond)
			done, slow, over := 0, 0, false
			for w := range 2 {
				client := s.Go("client", func(ep rdma.Endpoint) {
					k, err := a.open(ep, Options{Writer: w})
					if err != nil {
						panic(err)
					}
					for n := range ops {
						began := s.Now()
						if n%2 == 0 {
							err = k.Write(&k.keys[0], check.MakeValue(nil, w, n+1, 100))
						} else {
							_, err = k.Read(&k.keys[0])
						}
						if over { // the dead client is unwound
							return
						}
						if err != nil {
							t.Errorf("seed %d, node %d dies: operation %d: %v", seed, dead, n, err)
						}
						done++
						took := s.Now() - began
						if took > k.quorum.Slow() {
							slow++
						}
						if took > 8*k.quorum.Slow() {
							t.Errorf("seed %d, node %d dies: an operation took %v, and the timer is %v", seed, dead,
								took, k.quorum.Slow())
						}
					}
				})
				if w == 1 {
					s.CrashAt(client, 40+seed)
				}
			}
			must(t, s.Run())
			over = true
			if slow > ops/6 || done < ops {
				t.Errorf("seed %d, node %d dies: %d of %d operations took longer than the timer", seed, dead, slow,
					done)
			}
			s.Close()
		}
	}
}

// TestSlowMajority: nodes that are all slower than the timer are waited for, and not asked again
// and again.
func TestSlowMajority(t *testing.T) {
	for seed := uint64(1); seed <= seeds.Few(15); seed++ {
		r := draw(seed, 3)
		r.nodes, r.options.Nodes, r.slow, r.options.Faults = 3, 3, 0, nil
		for n := range 3 {
			r.options.Faults = append(r.options.Faults, sim.Fault{Kind: sim.SlowFault, Node: n, At: 1,
				For: time.Second, Factor: 100})
		}
		var total Stats
		if err := r.play(&total); err != nil {
			t.Fatalf("seed %d: %v (%+v)", seed, err, total)
		}
	}
}
