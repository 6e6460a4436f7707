package cluster_test

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// attendant is a recoverer with a mailbox, in which it waits for longer than a tenure.
type attendant struct {
	*fake
	box   rdma.Mailbox
	calls int
	gone  int // nodes that were gone in the last call
}

func (a *attendant) Attend(v rdma.View) (more bool, err error) {
	a.calls++
	if v.Busy {
		a.t.Errorf("it is called in view %+v", v)
	}
	if a.calls <= 2 {
		return false, errors.New("it cannot attend")
	}
	a.gone = len(v.Members) - len(alive(v))
	for err == nil { // as long as there is a verb that completed
		err = a.box.Await(3 * lease)
	}
	if !errors.Is(err, rdma.ErrTimeout) {
		return false, err
	}
	return a.calls%2 == 0, nil
}

func (a *attendant) Waits() bool { return false }

// TestAttend: a recoverer attends to its store in each tick of an idle view, in one tenure however
// long it waits, and its failures keep the keeper from nothing.
func TestAttend(t *testing.T) {
	w := begin(t, sim.Options{Seed: 1}, 0)
	var a *attendant
	keep := func(ep rdma.Endpoint) {
		err := cluster.Keep(ep, w.s, func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
			if err != nil {
				return nil, err
			}
			a = &attendant{fake: &fake{w, ep}, box: box}
			return a, nil
		}, cluster.Options{
			Lease: lease, Stop: func() bool { return w.s.Now() > 3*limit },
			Log: func(e cluster.Event) { w.events = append(w.events, e) },
		})
		if err != nil {
			t.Error(err)
		}
	}
	w.s.Go("keeper 1", keep)
	w.s.Go("keeper 2", keep)
	w.s.KillNodeAfter(1, limit)
	w.end()
	w.whole(1)
	elected, failed := 0, 0
	for _, e := range w.events {
		switch e.What {
		case cluster.Elected:
			elected++
		case cluster.Failed:
			failed++
		}
	}
	if elected != 1 || failed != 2 || a.gone != 1 {
		t.Errorf("%d masters were elected, %d failures reported, and %d nodes gone in the end:\n%s", elected, failed,
			a.gone,
			lines(w.events))
	}
}

// patient is an attendant with work that is continued elsewhere: it waits until it was called six
// times, and fails once.
type patient struct {
	*fake
	calls int
}

func (p *patient) Attend(rdma.View) (more bool, err error) {
	if p.calls++; p.calls == 9 {
		return false, errors.New("it cannot attend")
	}
	return p.calls == 1, nil
}

func (p *patient) Waits() bool { return p.calls != 6 }

// TestOnceWaits: what a recoverer began elsewhere has ended when Once returns, unless the recoverer
// fails.
func TestOnceWaits(t *testing.T) {
	w := begin(t, sim.Options{Seed: 1}, 0)
	var p *patient
	w.s.Go("operator", func(ep rdma.Endpoint) {
		for _, calls := range []int{6, 9} {
			did, err := cluster.Once(ep, w.s, func(ep rdma.Endpoint) (cluster.Recoverer, error) {
				if p == nil {
					p = &patient{fake: &fake{w, ep}}
				}
				return p, nil
			}, cluster.Options{Lease: lease})
			failed := len(did) > 0 && did[len(did)-1].What == cluster.Failed
			if err != nil || p.calls != calls || failed != (calls == 9) {
				t.Errorf("it was called %d times, want %d: %v\n%s", p.calls, calls, err, lines(did))
			}
		}
	})
	w.end()
}
