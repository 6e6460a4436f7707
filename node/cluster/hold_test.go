package cluster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
)

// hold holds the master for a while, in which a node dies, and returns what the keepers did
// meanwhile.
func (w *world) hold(ep rdma.Endpoint, renew bool) (did []cluster.Event, err error) {
	h, err := cluster.Hold(ep, w.s, cluster.Options{Lease: lease})
	if err != nil {
		return nil, err
	}
	before := len(w.events)
	if err := w.s.KillNode(1); err != nil {
		w.t.Error(err)
	}
	for range 12 {
		ep.Sleep(lease)
		if renew {
			if err := h.Renew(); err != nil {
				w.t.Errorf("renew: %v", err)
			}
		}
	}
	did = w.events[before:]
	return did, h.End()
}

// TestHold: keepers mend nothing while the master is held, and everything behind it. A tenure that
// was not renewed says so.
func TestHold(t *testing.T) {
	for seed := range uint64(20) {
		for _, renew := range []bool{true, false} {
			w := begin(t, sim.Hostile(seed), 2)
			w.s.Go(cluster.HoldName, func(ep rdma.Endpoint) {
				ep.Sleep(time.Millisecond)
				switch did, err := w.hold(ep, renew); {
				case renew && (err != nil || len(did) > 0):
					t.Errorf("seed %d: held, and keepers did: %s (%v)", seed, lines(did), err)
				case !renew && (!errors.Is(err, rdma.ErrStale) || len(did) == 0):
					t.Errorf("seed %d: a tenure that ran out: %v, and keepers did: %s", seed, err, lines(did))
				}
			})
			w.end()
			w.whole(1)
		}
	}
}

// TestHoldBehindFailures: a master of which the recoverer failed, with verbs that may be in flight,
// yields to a hold, too.
func TestHoldBehindFailures(t *testing.T) {
	failures := map[string]int{"recover 2": 1}
	w := begin(t, sim.Hostile(4), 0)
	w.s.CrashAt(w.writers[1], 40)
	restarts := 0
	w.keepers = append(w.keepers, w.s.Go("keeper", func(ep rdma.Endpoint) {
		o := cluster.Options{
			Lease: lease, Stop: func() bool { return w.s.Now() > limit },
			Log: func(e cluster.Event) { w.events = append(w.events, e) },
		}
		make := func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			return &failingRecoverer{&fake{w, ep}, failures}, nil
		}
		for err := cluster.Keep(ep, w.s, make, o); err != nil; err = cluster.Keep(ep, w.s, make, o) {
			if restarts++; !errors.Is(err, rdma.ErrRevoked) || restarts > 1 {
				t.Error(err)
				return
			}
			ep.Close()
			if ep, err = w.s.Open("keeper again"); err != nil {
				t.Error(err)
				return
			}
			ep.Sleep(lease)
		}
	}))
	w.s.Go(cluster.HoldName, func(ep rdma.Endpoint) {
		ep.Sleep(4 * time.Millisecond)
		if did, err := w.hold(ep, true); err != nil || len(did) > 0 {
			t.Errorf("held, and the keeper did: %s (%v)", lines(did), err)
		}
		for _, c := range w.s.Clients() {
			if !c.Alive {
				t.Errorf("a dead client is left: %+v", c)
			}
		}
	})
	w.end()
	w.whole(1)
	if restarts != 1 {
		t.Errorf("the keeper began again %d times:\n%s", restarts, lines(w.events))
	}
}

// TestHoldUnmended: if the last master left a busy view, or verbs in flight, the pool is not held
// until a keeper has completed that.
func TestHoldUnmended(t *testing.T) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: 4096, Clients: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open(cluster.HoldName)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	o := cluster.Options{Lease: 20 * time.Millisecond}
	h, err := cluster.Hold(ep, f, o)
	if err != nil || h.End() != nil {
		t.Errorf("an idle pool: %v", err)
	}
	if _, err := cluster.Hold(ep, succeeding{f}, o); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("behind a master that could not be fenced off everywhere: %v", err)
	}
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := cluster.Hold(ep, f, o); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("a busy view: %v", err)
	}
	other, err := f.Open("another")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, ok, err := f.TryMaster(other.Client(), time.Minute); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var master *cluster.OtherMaster
	if _, err := cluster.Hold(ep, f, o); !errors.As(err, &master) || master.Role.Owner != other.Client() {
		t.Errorf("a master that does not resign: %v", err)
	}
}
