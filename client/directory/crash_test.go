package directory

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// TestCrashAtEveryVerb lets a client, and then each memory node, die behind each verb of a run in
// which three clients meet. No client waits for a dead one, and what a dead client left half done
// is there for all clients or for none.
func TestCrashAtEveryVerb(t *testing.T) {
	var total tally
	storetest.CrashAtEveryVerb(t, func(seed uint64, faults ...sim.Fault) (sent, landed []uint64, err error) {
		r := draw(seed, 3)
		r.workers, r.shape.Nodes, r.options.Nodes, r.shape.Buckets, r.keys, r.ops, r.writes = 3, 3, 3, 1, 2, 4, 8
		r.options.Faults, r.crashes = faults, len(faults) > 0
		err = r.play(&total)
		return r.sent, r.landed, err
	})
	t.Logf("%+v", total)
}

// TestChangeOfTheDead lets a client die behind each verb of one change. The next lookup finds the
// change or finds it absent, and every later lookup finds the same, though any one node is dead by
// then. The client that the dead client's change blocks settles it.
func TestChangeOfTheDead(t *testing.T) {
	const hash = 1 << 63
	done, undone := 0, 0
	for verb := uint64(1); ; verb++ {
		ended := false
		for dead := range 4 { // no node, or one of three
			l, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: 1})
			must(t, err)
			a := newArena(l, 100)
			s := sim.New(sim.Options{Seed: verb, Nodes: 3, Memory: a.memory(), Tear: true, Reorder: true,
				NodeTimeout: time.Second})
			w := s.Go("dead", func(ep rdma.Endpoint) {
				c := Open(ep, l, a, Options{})
				ended = put(c, hash, 1) == nil && put(c, hash, 2) == nil // of the dead, all fails in the end
			})
			s.CrashAt(w, 8+verb) // behind its first change
			must(t, s.Run())
			for r, name := range []string{"first", "second"} {
				if r == 1 && dead < 3 {
					must(t, s.KillNode(dead))
				}
				s.Go(name, func(ep rdma.Endpoint) {
					c := Open(ep, l, a, Options{})
					began := s.Now()
					found, err := c.Lookup(hash)
					must(t, err)
					took, slow := s.Now()-began, c.quorum.Slow()
					if n := len(found); n == 0 || n > 2 || n == 1 && ended {
						t.Errorf("verb %d: %d entries, and the change ended: %v", verb, n, ended)
					} else if r == 0 && n == 2 {
						done++
					} else if r == 0 {
						undone++
					} else if again := len(a.last); n != again {
						t.Errorf("verb %d, node %d dies: %d entries, and then %d", verb, dead, again, n)
					}
					if took > 20*slow {
						t.Errorf("verb %d: a lookup took %v", verb, took)
					}
					a.last = append(a.last[:0], found...)
					c.Close()
				})
				must(t, s.Run())
			}
			s.Close()
		}
		if ended {
			break
		}
	}
	if done < 4 || undone < 4 {
		t.Errorf("of a dead client's changes %d were done, and %d not", done, undone)
	}
}

// TestSilentNodeIsNotAwaited: a node that dies silently costs clients that meet in one bucket some
// timers, though its verbs hang for a second.
func TestSilentNodeIsNotAwaited(t *testing.T) {
	const ops = 60
	for dead := range 3 {
		for seed := uint64(1); seed <= 20; seed++ {
			l, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: 1})
			must(t, err)
			a := newArena(l, 500)
			s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: a.memory(), Tear: true, Reorder: true,
				NodeTimeout: time.Second})
			s.KillNodeAfter(dead, 50*time.Microsecond)
			slow := 0
			for w := range 2 {
				s.Go("client", func(ep rdma.Endpoint) {
					x := &index{Client: Open(ep, l, a, Options{}), worker: w, buckets: 1}
					for n := range ops {
						began := s.Now()
						key := fmt.Appendf(nil, "key-%d", 2*w)
						if n%3 == 0 {
							err = x.Insert(key, make([]byte, 8))
						} else if n%3 == 1 {
							_, err = x.Get(key)
						} else {
							err = x.Delete(key)
						}
						must(t, err)
						took := s.Now() - began
						if took > 2*x.quorum.Slow() {
							slow++
						}
						if took > 60*x.quorum.Slow() {
							t.Errorf("seed %d, node %d dies: an operation took %v, and the timer is %v", seed, dead,
								took, x.quorum.Slow())
						}
					}
				})
			}
			must(t, s.Run())
			if slow > ops/3 {
				t.Errorf("seed %d, node %d dies: %d of %d operations took long", seed, dead, slow, 2*ops)
			}
			s.Close()
		}
	}
}

// TestSlowMajority: nodes that are all slower than the timer are waited for.
func TestSlowMajority(t *testing.T) {
	for seed := uint64(1); seed <= seeds.Few(15); seed++ {
		r := draw(seed, 3)
		r.shape.Nodes, r.options.Nodes, r.slow, r.options.Faults, r.crashes = 3, 3, 0, nil, false
		for n := range 3 {
			r.options.Faults = append(r.options.Faults, sim.Fault{Kind: sim.SlowFault, Node: n, At: 1,
				For: time.Second, Factor: 100})
		}
		var total tally
		if err := r.play(&total); err != nil {
			t.Fatalf("seed %d: %v (%+v)", seed, err, total)
		}
	}
}

// TestMajorityDead: without a majority nothing is answered; a change that was sent is uncertain,
// and others have no effect.
func TestMajorityDead(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 3, Replicas: 3, Buckets: 1}, 100)
	c := worker(t, f, a, Options{Timeout: 500 * time.Millisecond})
	must(t, put(c, 1, 1))
	must(t, f.KillNode(0))
	must(t, put(c, 1, 2))
	must(t, f.KillNode(1))
	_, err := c.Lookup(1)
	wantError(t, err, rdma.ErrNodeDown)
	err = put(c, 1, 3)
	wantError(t, err, rdma.ErrNodeDown)
	if errors.Is(err, client.ErrUncertain) {
		t.Errorf("nothing was sent: %v", err)
	}
}

// TestNodesDieUnderAChange: what was sent may have taken effect.
func TestNodesDieUnderAChange(t *testing.T) {
	f, a := pool(t, Shape{Nodes: 3, Replicas: 3, Buckets: 1}, 100)
	c, before := hooked(t, f, a, Options{Timeout: 500 * time.Millisecond})
	must(t, put(c, 1, 1))
	before[stepAccept] = func() {
		must(t, f.KillNode(0))
		must(t, f.KillNode(1))
	}
	wantError(t, put(c, 1, 2), client.ErrUncertain)
}
