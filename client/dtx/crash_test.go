package dtx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// scene is a transaction of a client that dies behind one of its verbs, and more
// clients. Each of these recovers the dead and then meets what they have left.
// The second dies in the recovery, the third in the recovery of both.
type scene struct {
	kind    string
	seed    uint64
	crashes []uint64 // verbs of each client but the last, which lives
	nodes   int
	fly     float64
	two     bool // another client recovers at the same time
	waits   bool // only that other one recovers
}

const (
	flyMost = 300 * time.Microsecond
	looks   = 100 * time.Microsecond // between two looks for dead clients
)

// scenes are what the first client does.
var scenes = []string{"transfer", "touch", "locked touch", "locked transfer", "make", "drop", "lock and read",
	"touch listed"}

func (c *scene) act(v *view) error {
	a, b := v.Root(0), v.Root(1)
	switch c.kind {
	case "transfer":
		return v.Transfer(a, b, 7)
	case "locked touch", "locked transfer", "lock and read":
		if err := v.Lock(a); err != nil {
			return err
		}
		if c.kind == "locked transfer" {
			return v.Transfer(a, b, 7)
		} else if c.kind == "lock and read" {
			return errors.Join(v.Look(b), v.Touch(b))
		}
		return v.Touch(a)
	case "make":
		return v.Make(a, 7)
	case "drop":
		return v.Drop(a, 0)
	case "touch listed":
		return v.TouchListed(0)
	}
	return v.Touch(a)
}

// all changes everything that there is, one object after the other, and all at once.
func (c *scene) all(k *accounts, w *Worker, name string) error {
	longest := 0 * time.Second
	step := func(f func(v *view) error) error {
		began := k.Now(nil)
		err := k.Run(customer{w, nil}, name, f)
		if errors.Is(err, errNothing) {
			err = nil
		}
		longest = max(longest, k.Now(nil)-began)
		return err
	}
	err := errors.Join(step(func(v *view) error { return v.Transfer(k.Root(1), k.Root(0), 1) }),
		step(func(v *view) error { return v.Sum() }),
		step(func(v *view) error { return v.Touch(k.List()) }),
		step(func(v *view) error { return v.TouchListed(0) }))
	most := 2 * looks * time.Duration(1+len(c.crashes)) // detection and recovery
	if c.fly > 0 {                                      // it waits for the network, too
		most += 10 * flyMost
	}
	if longest > most && err == nil {
		err = fmt.Errorf("an operation waited for %v, behind %d crashes and looks each %v", longest, len(c.crashes),
			looks)
	}
	return err
}

// play returns how many verbs the last client has sent.
func (c *scene) play() (sent uint64, err error) {
	l, err := NewLayout(Shape{Nodes: c.nodes, Memory: 64 << 10, Clients: 24, Roots: 3, Sizes: []int{64}, Writes: 6,
		Chunk: 2048})
	if err != nil {
		return 0, err
	}
	s := sim.New(sim.Options{Seed: c.seed, Nodes: c.nodes, Memory: 64 << 10, Clients: 24, Handler: node.Serve,
		Tear: true, Reorder: true, FlyProb: c.fly, FlyMax: flyMost})
	defer s.Close()
	k := newBank(l, 2)
	k.Clock = s.Now
	o := Options{Timeout: 10 * time.Second}
	r := &run{shape: l.Shape, options: o, s: s, l: l}
	ep, err := s.Open("first")
	if err != nil {
		return 0, err
	}
	first, err := Open(ep, l, o)
	if err != nil {
		return 0, err
	}
	teller := customer{first, nil}
	err = errors.Join(k.Found(teller), k.Run(teller, "first", func(v *view) error { return v.Make(l.Root(0), 5) }),
		first.Close())
	if err != nil {
		return 0, err
	}
	var start func(i int)
	start = func(i int) {
		var w *Worker
		name := fmt.Sprintf("client %d", i)
		worker := s.Go(name, func(rdma.Endpoint) {
			if i == 0 {
				r.fail(k.Run(customer{w, nil}, name, c.act))
			}
			if i > 0 || len(c.crashes) == 0 {
				if !c.waits {
					r.fail(adoptAll(s, w))
				}
				r.fail(c.all(k, w, name))
			}
			r.fail(w.Close())
		})
		r.started = append(r.started, worker)
		var err error
		if w, err = Open(worker.Endpoint(), l, o); err != nil {
			r.fail(err)
		}
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
	if c.two || c.waits {
		r.detect, r.crashed = looks, mostReapers
		r.reaper()
	}
	if err := s.Run(); err != nil || r.failed != nil {
		return sent, errors.Join(err, r.failed)
	}
	s.Go("end", func(ep rdma.Endpoint) { r.fail(r.end(ep, k)) })
	return sent, errors.Join(s.Run(), r.failed)
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

// TestCrashAtEveryVerb: a client dies behind each verb of a transaction, and another behind each
// verb of the recovery and what it does then, and a third: a part of the verbs, or all of them with
// $FARKV_LONG.
func TestCrashAtEveryVerb(t *testing.T) {
	virtual(t)
	every := seeds.Step(1, 12)
	for i, kind := range scenes {
		t.Run(kind, func(t *testing.T) {
			runs := 0
			for _, c := range []scene{{nodes: 2}, {nodes: 2, two: true, fly: 0.1}, {nodes: 1, waits: true}} {
				c.kind, c.seed = kind, uint64(100*i)
				runs += c.enumerate(t, 2, every)
			}
			c := scene{kind: kind, nodes: 3, fly: 0.05, seed: uint64(i)}
			runs += c.enumerate(t, 3, 3*every)
			t.Logf("%d runs", runs)
		})
	}
}

// TestFreedLockIsTakenAtOnce: a client that has released a lock of a dead client
// itself does not pause before it looks again. It once did, for 250 us, here more
// than the scene allows.
func TestFreedLockIsTakenAtOnce(t *testing.T) {
	c := scene{kind: "touch listed", nodes: 1, waits: true, seed: 673884, crashes: []uint64{6, 5}}
	if _, err := c.play(); err != nil {
		t.Fatal(err)
	}
}
