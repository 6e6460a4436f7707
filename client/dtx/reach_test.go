package dtx

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// TestCloseOutOfReach: a worker closes while a node is out of reach for a moment, or the pool's
// view changes, at any step of that. It gives back its chunks all the same.
func TestCloseOutOfReach(t *testing.T) {
	for _, step := range []rdma.Step{stepReadTable, stepFreeChunk} {
		for _, stale := range []bool{false, true} {
			f, l := pool(t, Shape{Nodes: 2})
			ep, err := f.Open("worker")
			must(t, err)
			h := &hooked{ep, map[rdma.Step]func(){}}
			end := &replaceable{h}
			w := open(t, end, l, Options{})
			_, err = create(w, "some")
			must(t, err)
			if stale {
				h.before[step] = func() {
					e := f.View().Epoch
					if ok, err := f.Advance(rdma.State{Epoch: e}, rdma.State{Epoch: e + 1}); !ok || err != nil {
						t.Fatal(ok, err)
					}
					must(t, f.Fence(e+1))
				}
			} else {
				end.Endpoint = fault.New(ep, fault.Fault{Step: step, Err: rdma.ErrNodeDown})
			}
			if err := errors.Join(w.Close(), ep.Close()); err != nil {
				t.Errorf("a worker that closes, at step %q, with a new view: %v: %v", step, stale, err)
			}
			other := worker(t, f, l, Options{})
			u, err := other.Check(func(c rdma.ClientID) bool { return c == other.id })
			if err != nil || u.Owned != 0 {
				t.Errorf("leaked: %+v, %v", u, err)
			}
		}
	}
}

// TestCloseWithoutView: a worker that closes has a lock to release. For a moment it reaches neither
// the lock's node nor a majority that knows the view.
func TestCloseWithoutView(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2})
	ep, err := f.Open("worker")
	must(t, err)
	away := fault.Fault{Step: stepFreeLock, Err: rdma.ErrNodeDown}
	blind := &viewless{Endpoint: fault.New(fault.New(ep, away), away)} // for two tries
	w := open(t, blind, l, Options{})
	at := l.log(w.id).Add(claimAt)
	w.pendingReleases = []swap{{at, 1, 2}} // which finds that it was released
	blind.joins = 3
	if err := errors.Join(w.Close(), ep.Close()); err != nil {
		t.Errorf("a worker that closes: %v", err)
	}
}

// viewless is an endpoint that cannot join the pool's view some times.
type viewless struct {
	rdma.Endpoint
	joins int
}

func (e *viewless) Join() (rdma.View, error) {
	if e.joins > 0 {
		e.joins--
		return rdma.View{}, rdma.ErrUnreachable
	}
	return e.Endpoint.Join()
}

// TestAwayForLonger: a node is out of reach for several tries, from the WRITE of a log on. The
// transaction goes on when the node is back.
func TestAwayForLonger(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2})
	ep, err := f.Open("worker")
	must(t, err)
	end := &replaceable{ep}
	w := open(t, end, l, Options{})
	a, err := create(w, "old")
	must(t, err)
	end.Endpoint = fault.New(ep, fault.Fault{Step: stepLog, Err: rdma.ErrNodeDown})
	for range 3 {
		end.Endpoint = fault.New(end.Endpoint, fault.Fault{Step: stepReadLog, Err: rdma.ErrNodeDown})
	}
	if err := set(w, "new", a); err != nil {
		t.Errorf("a transaction ends in %v", err)
	}
	wantData(t, w, "[new]", a)
	must(t, w.Close())
}
