package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestCloseOutOfReach: a worker closes while a node does not answer. It waits for the node if it
// left something there, for a quarter of its timeout.
func TestCloseOutOfReach(t *testing.T) {
	const timeout, from, try = time.Second, time.Second, time.Millisecond
	p := extentPool(2)
	p.Timeout = timeout
	l, err := table.New(p, 2)
	must(t, err)
	for _, c := range []struct {
		name   string
		shards int // in so many the worker has claims
		away   time.Duration
		late   bool // the node answers too late
	}{
		{"it is back soon", 2, 50 * time.Millisecond, false},
		{"it stays away", 2, 2 * timeout, true},
		{"nothing is there", 1, 2 * timeout, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sim.New(sim.Options{Seed: 1, Nodes: 2, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve,
				RetryTimeout: try, Faults: sim.Faults{{Kind: sim.PartitionFault, Client: "worker",
					Node: l.Leads[1].Node, At: from, For: c.away}}})
			defer s.Close()
			must(t, Make(s, p))
			s.Go("worker", func(ep rdma.Endpoint) {
				w, err := Open(ep, session.Options{Pool: s})
				must(t, err)
				for i := range 10 {
					if key := fmt.Appendf(nil, "key %d", i); l.Place(key).Shard < c.shards {
						must(t, w.Insert(key, make([]byte, 500)))
					}
				}
				ep.Sleep(from + 10*time.Millisecond - ep.Now())
				began := ep.Now()
				err = w.Close()
				took := ep.Now() - began
				most := c.away
				switch {
				case c.late:
					most = timeout/4 + 10*try
				case c.shards == 1:
					most = 10 * try
				}
				if errors.Is(err, client.ErrUncertain) != c.late || err != nil && !c.late || took > most {
					t.Errorf("a worker closes within %v, want %v at most: %v", took, most, err)
				}
			})
			must(t, s.Run())
			r, err := Check(s)
			if must(t, err); len(r.Damage) > 0 {
				t.Errorf("%q", r.Damage)
			}
		})
	}
}

// TestCloseStale: the pool's view changes just before a worker closes, which joins the new one.
func TestCloseStale(t *testing.T) {
	f := memPool(t, 2, extentPool(2))
	ep, err := f.Open("worker")
	must(t, err)
	s, err := Open(ep, session.Options{Pool: f})
	must(t, err)
	for i := range 10 { // in both shards
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), make([]byte, 500)))
	}
	e := f.View().Epoch
	if ok, err := f.Advance(rdma.State{Epoch: e}, rdma.State{Epoch: e + 1}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Fence(e+1))
	must(t, errors.Join(s.Close(), ep.Close()))
	judge(t, f)
}

// TestCloseWithoutView: a worker that closes reaches for a moment neither a node where it left
// something nor a majority that knows the view.
func TestCloseWithoutView(t *testing.T) {
	p := extentPool(2)
	p.Timeout = time.Minute // of which it waits for a quarter at most
	f := memPool(t, 2, p)
	ep, err := f.Open("worker")
	must(t, err)
	blind := &blind{Endpoint: ep}
	s, err := Open(blind, session.Options{Pool: f})
	must(t, err)
	for i := range 10 { // in both shards
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), make([]byte, 500)))
	}
	blind.away = 3
	must(t, errors.Join(s.Close(), ep.Close()))
	judge(t, f)
}

// blind is an endpoint that reaches neither nodes nor the pool's view some times.
type blind struct {
	rdma.Endpoint
	away int
}

func (e *blind) Post(b *rdma.Batch) error {
	err := e.Endpoint.Post(b)
	for i := 0; e.away > 0 && i < b.Len(); i++ {
		b.Op(i).Fail(rdma.ErrNodeDown)
	}
	return err
}

func (e *blind) Join() (rdma.View, error) {
	if e.away > 0 {
		e.away--
		return rdma.View{}, rdma.ErrUnreachable
	}
	return e.Endpoint.Join()
}
