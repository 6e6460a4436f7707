package tcp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// patience bounds waits for what comes soon.
const patience = 10 * time.Second

// besides returns a pool of n nodes, and a fabric beside each.
func besides(t *testing.T, n int) (*pool, []*tcp.Fabric) {
	p := New(t, n, 4096, nil)
	var all []*tcp.Fabric
	for _, node := range p.nodes[:n] {
		all = append(all, besideOf(t, node))
	}
	return p, all
}

func openOn(t *testing.T, f rdma.Fabric) rdma.Endpoint {
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep
}

// post posts a FETCH_ADD to a node.
func post(t *testing.T, ep rdma.Endpoint, node int) *rdma.Batch {
	b := ep.Batch()
	b.FetchAdd(rdma.At(node, 0), 1)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBesideAtOnce: what a worker posts to the node of its process is complete when Post returns.
func TestBesideAtOnce(t *testing.T) {
	_, all := besides(t, 3)
	ep := openOn(t, all[1])
	for n := range uint64(100) {
		b := post(t, ep, 1)
		if !b.Finished() || b.Op(0).Err != nil || b.Op(0).Result != n {
			t.Fatalf("verb %d: complete %t, %d, %v", n, b.Finished(), b.Op(0).Result, b.Op(0).Err)
		}
		b.Release()
	}
}

// TestBesideIsNoUser: a process beside a node does not keep the pool in use.
func TestBesideIsNoUser(t *testing.T) {
	t.Parallel()
	p := New(t, 1, 4096, nil)
	o, err := p.nodes[0].Beside()
	if err != nil {
		t.Fatal(err)
	}
	f, err := tcp.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // cannot give back what it had of a pool that is gone
	own, other := openOn(t, f), openOn(t, p)
	if n := p.nodes[0].Info().Processes; n != 1 {
		t.Errorf("%d processes use the node, want 1", n)
	}
	o = control.Options{Addresses: o.Addresses}
	if err := control.Remove(o, false); !errors.Is(err, rdma.ErrInUse) {
		t.Errorf("removed while it is in use: %v", err)
	}
	for len(p.nodes[0].Changed()) > 0 {
		<-p.nodes[0].Changed()
	}
	if err := errors.Join(other.Close(), p.Close(), control.Remove(o, false)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.nodes[0].Changed():
	case <-time.After(patience):
		t.Error("nothing says that the pool is gone")
	}
	if _, err := p.nodes[0].Beside(); !errors.Is(err, rdma.ErrNoPool) {
		t.Errorf("beside a node without a pool: %v", err)
	}
	b := post(t, own, 0)
	defer b.Release()
	if err := own.Wait(b, rdma.All, patience); err != nil || !errors.Is(b.Err(), rdma.ErrNodeDown) {
		t.Errorf("verb to a pool that was removed: %v, %v", err, b.Err())
	}
}

// TestBesideEnds: a node that ends takes what is beside it down, and does not wait for it.
func TestBesideEnds(t *testing.T) {
	p, all := besides(t, 3)
	ep := openOn(t, all[0])
	post(t, ep, 0).Release()
	if err := p.nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	for node, want := range []error{rdma.ErrNodeDown, nil, nil} {
		b := post(t, ep, node)
		if err := ep.Wait(b, rdma.All, patience); err != nil || !errors.Is(b.Err(), want) {
			t.Errorf("verb to node %d: %v, %v, want %v", node, err, b.Err(), want)
		}
		b.Release()
	}
}

// TestBesideCut: a fault that cuts a node off from clients does not cut it off from what is beside
// it.
func TestBesideCut(t *testing.T) {
	p, all := besides(t, 3)
	ep := openOn(t, all[2])
	o := control.Options{Addresses: []string{p.nodes[2].Addr()}}
	f := control.Fault{ID: "cut", Clients: true, For: time.Hour / 10}
	if err := control.Break(context.Background(), o, 2, f); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		b := ep.Batch()
		b.FetchAdd(rdma.At(2, 0), 1)
		done <- rdma.Do(ep, b, rdma.Forever)
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("verb beside a node that is cut off: %v", err)
		}
	case <-time.After(patience):
		t.Error("a verb beside a node waits for the end of the fault")
		defer func() { <-done }()
	}
	f.For = 0
	if err := control.Break(context.Background(), o, 2, f); err != nil {
		t.Error(err)
	}
}
