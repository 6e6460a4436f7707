package rtx

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

// scene is a transaction of a client that dies behind one of its verbs, and two
// more clients that meet what is left, one after the other. The second dies in
// the repair, the third in the repair of the repair.
type scene struct {
	kind    string
	seed    uint64
	crashes []uint64 // verbs of each client but the last, which lives
	nodes   int
	options Options
	fly     float64
	adopt   bool // the last one recovers the dead before it does anything else
	late    bool // all are late from their first moment on
}

const flyMost = 300 * time.Microsecond

// scenes are what the first client does.
var scenes = []string{"transfer", "touch", "locked touch", "locked transfer", "make", "drop", "touch with a log",
	"lock and read", "touch listed"}

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
			err := v.Look(b)
			return errors.Join(err, v.Touch(b))
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
		began := k.Now(customer{w, nil})
		err := k.Run(customer{w, nil}, name, f)
		if errors.Is(err, errNothing) {
			err = nil
		}
		longest = max(longest, k.Now(customer{w, nil})-began)
		return err
	}
	err := errors.Join(step(func(v *view) error { return v.Transfer(k.Root(1), k.Root(0), 1) }),
		step(func(v *view) error { return v.Sum() }),
		step(func(v *view) error { return v.Touch(k.List()) }),
		step(func(v *view) error { return v.TouchListed(0) }))
	lease := lease(lockHeld|3<<leaseShift, w.opt.Drift) // of 4 objects at most
	most := lease*time.Duration(len(c.crashes)) + lease/2
	if c.fly > 0 { // it waits for the network, too
		most += 10 * flyMost
	}
	if longest > most && err == nil {
		err = fmt.Errorf("an operation waited for %v, behind %d crashes and leases of %v", longest, len(c.crashes),
			lease)
	}
	return err
}

// play returns how many verbs the last client has sent.
func (c *scene) play() (sent uint64, err error) {
	l, err := NewLayout(Shape{Nodes: c.nodes, Memory: simMemory, Clients: 16, Roots: 3, Objects: 64, Sizes: []int{64},
		Chunk: 2048})
	if err != nil {
		return 0, err
	}
	s := sim.New(sim.Options{Seed: c.seed, Nodes: c.nodes, Memory: simMemory, Clients: 16, Handler: node.Serve,
		Tear: true, Reorder: true, FlyProb: c.fly, FlyMax: flyMost})
	defer s.Close()
	k := newBank(l, 2)
	k.Clock = s.Now
	o := c.options
	if o.Drift == 0 {
		o.Drift = 100 * time.Microsecond
	}
	r := &run{shape: l.Shape, options: o}
	first, err := r.open(s, "first", l)
	if err != nil {
		return 0, err
	}
	err = errors.Join(k.Found(customer{first, nil}), k.Run(customer{first, nil}, "first",
		func(v *view) error { return v.Make(l.Root(0), 5) }), first.Close())
	if err != nil {
		return 0, err
	}
	o.Log = c.kind == "touch with a log"
	if c.late {
		o.Late = 1
	}
	var failed error
	var start func(i int)
	start = func(i int) {
		var w *Worker
		name := fmt.Sprintf("client %d", i)
		worker := s.Go(name, func(rdma.Endpoint) {
			if i == 0 {
				failed = errors.Join(failed, k.Run(customer{w, nil}, name, c.act))
			}
			if i > 0 || len(c.crashes) == 0 {
				if c.adopt && i == len(c.crashes) {
					failed = errors.Join(failed, adoptAll(s, w))
				}
				failed = errors.Join(failed, c.all(k, w, name))
			}
			failed = errors.Join(failed, w.Close())
		})
		var err error
		if w, err = Open(worker.Endpoint(), l, o); err != nil {
			failed = errors.Join(failed, err)
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
	if err := s.Run(); err != nil || failed != nil {
		return sent, errors.Join(err, failed)
	}
	s.Go("end", func(ep rdma.Endpoint) { failed = r.end(s, ep, l, k) })
	return sent, errors.Join(s.Run(), failed)
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
	from := 1 + c.seed%every
	for verb := from; verb <= sent+1; verb += every {
		next := c
		next.crashes = append(append([]uint64(nil), c.crashes...), verb)
		next.seed = c.seed*31 + verb
		if verb > sent { // it comes to its end
			break
		}
		runs += next.enumerate(t, depth-1, every)
	}
	return runs
}

// TestCrashAtEveryVerb: a client dies behind each verb of a transaction, a second
// one behind each verb of what it does then, and a third one likewise. A part of
// the verbs are tried, or all of them with $FARKV_LONG.
func TestCrashAtEveryVerb(t *testing.T) {
	virtual(t)
	every := seeds.Step(1, 8)
	for i, kind := range scenes {
		t.Run(kind, func(t *testing.T) {
			runs := 0
			for _, c := range []scene{{nodes: 2}, {nodes: 2, adopt: true, late: true}, {nodes: 1, fly: 0.1}} {
				c.kind, c.seed = kind, uint64(100*i)
				runs += c.enumerate(t, 2, every)
			}
			c := scene{kind: kind, nodes: 3, fly: 0.05, seed: uint64(i)}
			runs += c.enumerate(t, 3, 3*every)
			t.Logf("%d runs", runs)
		})
	}
}
