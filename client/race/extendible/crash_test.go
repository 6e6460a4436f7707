package extendible

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// scene is a client that dies behind one of its verbs, and more clients that meet
// what it has left, one after the other. The second dies in the repair, the third
// in the repair of the repair.
type scene struct {
	kind    string
	seed    uint64
	crashes []uint64 // verbs of each client but the last, which lives
	nodes   int
	fly     float64
	beside  bool // a client that lives works beside them
}

const (
	sceneKeys = 6
	flyMost   = 300 * time.Microsecond
	sceneRace = 200 * time.Microsecond // lease
)

// scenes are what the first client does.
var scenes = []string{"split", "insert", "update", "delete", "split and write"}

func (c *scene) act(s *Store, r *check.Recorder, w int) error {
	absent, there := key(sceneKeys), key(1)
	switch c.kind {
	case "insert":
		r.Insert(absent, check.MakeValue(nil, w, 1, 16))
	case "update":
		r.Update(there, check.MakeValue(nil, w, 1, 16))
	case "delete":
		r.Delete(there)
	case "split and write":
		if err := s.split(); err != nil {
			return err
		}
		r.Delete(there)
		r.Insert(there, check.MakeValue(nil, w, 1, 16))
		r.Update(there, check.MakeValue(nil, w, 2, 16))
	default:
		return s.split()
	}
	return nil
}

// all tries each key, and splits a subtable. No operation waits for longer than a lease for each of
// the dead, and each of the rehashes that those may have begun.
func (c *scene) all(s *Store, r *check.Recorder, w int) error {
	for i := range sceneKeys + 1 {
		k := key(i)
		r.Get(k)
		r.Update(k, check.MakeValue(nil, w, 100+10*i, 16))
		r.Insert(k, check.MakeValue(nil, w, 101+10*i, 16))
		if i%2 == 0 {
			r.Delete(k)
			r.Insert(k, check.MakeValue(nil, w, 102+10*i, 16))
		}
		if i == 2 {
			if err := s.split(); err != nil {
				return err
			}
		}
	}
	return nil
}

// play returns how many verbs the last client has sent.
func (c *scene) play() (sent uint64, err error) {
	const memory = 1 << 20
	s := sim.New(sim.Options{Seed: c.seed, Nodes: c.nodes, Memory: memory, Clients: 16, Handler: node.Serve, Tear: true,
		Reorder: true, FlyProb: c.fly, FlyMax: flyMost})
	defer s.Close()
	p := Params{Groups: 2, Slots: 2, PairBytes: 64, Depth: 8, Clients: 16, Timeout: 5 * time.Second, Lease: sceneRace}
	if err := Make(s, RTX, p); err != nil {
		return 0, err
	}
	var failed error
	var recorders []*check.Recorder
	fail := func(err error) { failed = errors.Join(failed, err) }
	work := func(name string, f func(st *Store, r *check.Recorder, w int) error) *sim.Worker {
		w := len(recorders)
		recorders = append(recorders, nil)
		return s.Go(name, func(ep rdma.Endpoint) {
			st, err := Open(ep, Options{})
			if err != nil {
				fail(err)
				return
			}
			r := check.NewRecorder(w, st, ep.Now)
			recorders[w] = r
			fail(f(st, r, w))
			fail(st.Close())
		})
	}
	work("founder", func(_ *Store, r *check.Recorder, w int) error {
		for i := range sceneKeys {
			r.Insert(key(i), check.MakeValue(nil, w, i+1, 16))
		}
		return nil
	})
	if err := errors.Join(s.Run(), failed); err != nil {
		return 0, err
	}
	var start func(i int)
	start = func(i int) {
		worker := work(fmt.Sprintf("client %d", i), func(st *Store, r *check.Recorder, w int) error {
			if i == 0 {
				if err := c.act(st, r, w); err != nil {
					return err
				}
			}
			if i > 0 || len(c.crashes) == 0 {
				return c.all(st, r, w)
			}
			return nil
		})
		if i < len(c.crashes) {
			s.CrashAt(worker, c.crashes[i])
			worker.WhenCrashed(func() { start(i + 1) })
			return
		}
		s.Go("watch", func(ep rdma.Endpoint) { // what the last one has sent is known in its end
			for !worker.Finished() {
				ep.Sleep(time.Microsecond)
			}
			sent = worker.Sent()
		})
	}
	start(0)
	if c.beside {
		work("beside", c.all)
	}
	if err := errors.Join(s.Run(), failed); err != nil {
		return sent, err
	}
	var history check.History
	for _, r := range recorders {
		if r != nil {
			history = append(history, r.History()...)
		}
	}
	return sent, errors.Join(c.judge(history), c.end(s))
}

// judge expects answers that fit together, and none later than leases allow.
func (c *scene) judge(h check.History) error {
	if wrong := h.With(check.Failed, check.Refused, check.TimedOut, check.Uncertain); len(wrong) > 0 {
		return fmt.Errorf("%d operations failed, the first is %s", len(wrong), &wrong[0])
	}
	lease := sceneRace + 100*time.Microsecond // a rehash's, as its code rounds it up
	most := time.Duration(1+len(c.crashes))*lease + 500*time.Microsecond
	if c.fly > 0 {
		most += 20 * flyMost
	}
	for i := range h {
		if o := &h[i]; o.Return != check.Never && o.Return-o.Call > most {
			return fmt.Errorf("waited for %v, at most %v: %s", o.Return-o.Call, most, o)
		}
	}
	return check.Linearizable(h, check.Options{})
}

// end recovers the dead, and checks that nothing is left of them.
func (c *scene) end(s *sim.Sim) error {
	var failed error
	s.Go("master", func(ep rdma.Endpoint) {
		m, err := NewRecoverer(ep)
		if err != nil {
			failed = err
			return
		}
		for _, dead := range s.Clients() {
			if dead.Alive {
				continue
			}
			failed = errors.Join(failed, s.RevokeLife(dead), m.Recover(rdma.View{}, dead.ID), s.Forget(dead))
		}
		failed = errors.Join(failed, m.s.Close())
	})
	if err := errors.Join(s.Run(), failed); err != nil {
		return err
	}
	r, err := Check(s)
	if err == nil && len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("check finds %v, %v", r.Damage, r.Waiting)
	}
	return err
}

// enumerate lets one client more die, behind each verb that it would send. depth
// is how many clients die after it each time.
func (c scene) enumerate(t *testing.T, depth int, every uint64) (runs int) {
	t.Helper()
	c.seed++
	sent, err := c.play()
	runs++
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	if depth == 0 {
		return runs
	}
	for verb := 1 + c.seed%every; verb <= sent; verb += every {
		next := c
		next.crashes = append(append([]uint64(nil), c.crashes...), verb)
		next.seed = c.seed*31 + verb
		runs += next.enumerate(t, depth-1, every)
	}
	return runs
}

// TestRehashCrashes: a client dies behind each verb of a rehash, of an operation, or of what it
// does behind that, and another behind verbs of what it does then. With $FARKV_LONG all of these,
// too.
func TestRehashCrashes(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	every := seeds.Step(10, 90)
	for i, kind := range scenes {
		t.Run(kind, func(t *testing.T) {
			runs := 0
			for _, c := range []scene{{nodes: 1}, {nodes: 2, beside: true}, {nodes: 2, fly: 0.05}} {
				c.kind, c.seed = kind, uint64(100*i)
				runs += c.enumerate(t, 1, 1)
				runs += c.enumerate(t, 2, every)
			}
			t.Logf("%d runs", runs)
		})
	}
}
