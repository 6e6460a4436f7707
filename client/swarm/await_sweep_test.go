package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// alone runs a client of a pool that has no master.
func alone(t *testing.T, do func(s *sim.Sim, k *Store, timeout time.Duration)) {
	t.Helper()
	p := small(3, 3, false)
	l, err := newPlan(p, 3)
	must(t, err)
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	must(t, Make(s, p))
	s.Go("client", func(ep rdma.Endpoint) {
		k, err := OpenStore(&cutOff{Endpoint: ep}, StoreOptions{})
		must(t, err)
		ep.Sleep(10 * time.Second)
		do(s, k, p.Timeout)
	})
	must(t, s.Run())
}

// awaitSweep fails an operation, which began at a time, for lack of memory, and returns how long it
// waited for a sweep.
func awaitSweep(t *testing.T, s *sim.Sim, k *Store, began time.Duration) time.Duration {
	t.Helper()
	now, of := s.Now(), tries{began: began}
	if k.again(&of, client.ErrFull) {
		t.Error("a sweep has begun without a master")
	}
	return s.Now() - now
}

// TestGetAwaitsSweep: a GET that needs memory waits for a sweep for a timeout, as a write does.
// None begins, and then the client does not wait again.
func TestGetAwaitsSweep(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		if took := awaitSweep(t, s, k, 0); took < timeout {
			t.Errorf("a GET waited for %v, want %v", took, timeout)
		}
		if took := awaitSweep(t, s, k, s.Now()); took != 0 {
			t.Errorf("the next INSERT waited for %v in a pool without a master", took)
		}
	})
}

// TestShortWaitShowsNoLackOfMaster: an operation finds no memory when its timeout is nearly over.
// The next operation waits for a sweep all the same.
func TestShortWaitShowsNoLackOfMaster(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		if took := awaitSweep(t, s, k, s.Now()-timeout+time.Millisecond); took > timeout/2 {
			t.Errorf("an operation with a millisecond left waited for %v", took)
		}
		if took := awaitSweep(t, s, k, s.Now()); took < timeout {
			t.Errorf("the next operation waited for %v, want %v", took, timeout)
		}
	})
}

// cutOff cannot join the view while it is away.
type cutOff struct {
	rdma.Endpoint
	away   bool
	sweeps func(v *rdma.View) // nil: no master sweeps
}

func (c *cutOff) Join() (rdma.View, error) {
	if c.away {
		return rdma.View{}, rdma.ErrUnreachable
	}
	v, err := c.Endpoint.Join()
	if c.sweeps != nil {
		c.sweeps(&v)
	}
	return v, err
}

// TestLongSweepIsWaitedFor: a sweep that has begun is waited for to its end, though it takes
// several timeouts.
func TestLongSweepIsWaitedFor(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		began := s.Now()
		k.ep.(*cutOff).sweeps = func(v *rdma.View) {
			v.Epoch++
			v.Busy = s.Now() < began+5*timeout
		}
		of := tries{began: began}
		if took := s.Now() - began; !k.again(&of, client.ErrFull) {
			t.Errorf("got no other try after %v, want one", took)
		}
		if took := s.Now() - began; took < 5*timeout {
			t.Errorf("got another try after %v, want it behind the sweep, after %v", took, 5*timeout)
		}
	})
}

// TestFailedJoinShowsNoLackOfMaster: a client that cannot join the view while it waits for a sweep
// does not conclude that there is no master.
func TestFailedJoinShowsNoLackOfMaster(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		c := k.ep.(*cutOff)
		c.away = true
		awaitSweep(t, s, k, s.Now())
		c.away = false
		if took := awaitSweep(t, s, k, s.Now()); took < timeout {
			t.Errorf("the next operation waited for %v, want %v", took, timeout)
		}
	})
}

// TestSweepUnderWayIsNotAskedFor: a client that finds no memory under a busy view waits for the end
// of the sweep, and causes no other one. If it finds none afterwards it asks.
func TestSweepUnderWayIsNotAskedFor(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		began := s.Now()
		k.ep.(*cutOff).sweeps = func(v *rdma.View) {
			v.Epoch++
			v.Busy = s.Now() < began+3*timeout
		}
		must(t, k.member.Join())
		of := tries{began: began}
		if !k.again(&of, client.ErrFull) {
			t.Errorf("got no other try after %v, want one", s.Now()-began)
		}
		wantAsked(t, k, 0)
		if k.again(&of, client.ErrFull) {
			t.Error("got another try without a sweep")
		}
		wantAsked(t, k, buffers.AskSweep)
	})
}

// wantAsked expects that clients have asked each node for so much since the last sweep, and begins
// another one.
func wantAsked(t *testing.T, k *Store, want uint64) {
	t.Helper()
	sweeper := k.plan.values.Sweeper(k.ep, k.nodes, k.Timeout)
	for n := range k.nodes {
		if got, err := sweeper.Asked(n); err != nil || got != want {
			t.Errorf("node %d was asked for %#b (%v), want %#b", n, got, err, want)
		}
		must(t, sweeper.Begin(n, k.member.Epoch))
	}
}

// TestLeftObjectsAreSwept: a client has dropped more entries than it may retire objects at a time.
// While there are retired objects it asks for epochs, and once for a sweep, which finds the rest.
func TestLeftObjectsAreSwept(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		k.ep.(*cutOff).sweeps = func(v *rdma.View) { v.Epoch = k.member.Epoch + 1 }
		for _, left := range []uint64{0, buffers.AskSweep, 0} {
			for i := uint64(1); i <= retiringBatches+left; i++ {
				k.retire([]uint64{i}, 1)
			}
			of := tries{began: s.Now()}
			if !k.again(&of, errYoung) {
				t.Error("no epoch has begun")
			}
			wantAsked(t, k, buffers.AskFence|left)
		}
	})
}

// TestRestingKeeperGrantsEpochs: a client has waited for a sweep in vain, since the keeper rests
// between two. An operation that needs only an epoch asks for one, and gets it.
func TestRestingKeeperGrantsEpochs(t *testing.T) {
	alone(t, func(s *sim.Sim, k *Store, timeout time.Duration) {
		awaitSweep(t, s, k, s.Now())
		k.ep.(*cutOff).sweeps = func(v *rdma.View) { v.Epoch++ }
		of := tries{began: s.Now()}
		if !k.again(&of, errYoung) {
			t.Error("an operation that needs an epoch fails, since no sweep has begun lately")
		}
	})
}

// TestLeakedAmongRetired: all objects are garbage, except one that is retired for long. An INSERT
// waits for that one in vain, and has the master sweep: soon the next INSERT succeeds.
func TestLeakedAmongRetired(t *testing.T) {
	p := small(3, 3, false)
	p.Regions, p.Objects, p.Buckets, p.Timeout = 3, 8, 16, 20*time.Millisecond
	l, err := newPlan(p, 3)
	must(t, err)
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	must(t, Make(s, p))
	done, sweeps := false, 0
	s.Go("keeper", func(ep rdma.Endpoint) {
		must(t, cluster.Keep(ep, s, makeRecoverer, cluster.Options{Lease: 400 * time.Microsecond,
			Stop: func() bool { return done },
			Log: func(e cluster.Event) {
				if e.What == cluster.Swept {
					sweeps++
				}
			}}))
	})
	s.Go("client", func(ep rdma.Endpoint) {
		defer func() { done = true }()
		k, err := OpenStore(ep, StoreOptions{})
		must(t, err)
		ep.Sleep(10 * time.Millisecond) // the keeper has nothing to do any more
		var last uint64
		for err == nil {
			if err = k.draw(); err == nil {
				last, k.objects.location = k.objects.location, 0
			}
		}
		wantError(t, err, client.ErrFull)
		k.retire([]uint64{last}, 1<<40)
		before := sweeps
		wantError(t, k.Insert([]byte("key"), []byte("value")), client.ErrFull)
		if sweeps != before {
			t.Error("the first INSERT waited for a sweep: this test shows nothing")
		}
		must(t, k.Insert([]byte("key"), []byte("value")))
		must(t, k.Close())
	})
	must(t, s.Run())
}
