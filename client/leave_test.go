package client_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

type leaving struct {
	rdma.Endpoint
	closed bool
	then   func()
}

func (e *leaving) Close() error {
	e.closed = true
	if e.then != nil {
		e.then()
	}
	return nil
}

// TestLeave: an identity with a store that still owns memory is not given back.
func TestLeave(t *testing.T) {
	for _, x := range []struct {
		err    error
		closed bool
	}{{nil, true}, {rdma.ErrTimeout, false}, {rdma.ErrRevoked, true}, {rdma.ErrClosed, true}} {
		ep := &leaving{}
		if err := client.Leave(closer{x.err}, ep, nil); !errors.Is(err, x.err) || ep.closed != x.closed {
			t.Errorf("store: %v; answer %v, endpoint closed: %v", x.err, err, ep.closed)
		}
	}
}

type closer struct{ err error }

func (closer) Get([]byte) ([]byte, error)  { return nil, nil }
func (closer) Insert([]byte, []byte) error { return nil }
func (closer) Update([]byte, []byte) error { return nil }
func (closer) Delete([]byte) error         { return nil }
func (s closer) Close() error              { return s.err }

// TestLeaveSparesSuccessor has a worker be recovered, and its identity be given to another, before
// it leaves behind a write of unknown outcome: the other goes on.
func TestLeaveSparesSuccessor(t *testing.T) {
	f, err := fabrics.Create("mem:", fabrics.Geometry{Nodes: 1, Memory: 4096, Clients: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, err := f.Open("old")
	if err != nil {
		t.Fatal(err)
	}
	life := f.Clients()[0]
	if err := errors.Join(f.RevokeLife(life), old.Close(), f.Forget(life)); err != nil {
		t.Fatal(err)
	}
	next, err := f.Open("next")
	if err != nil || next.Client() != old.Client() {
		t.Fatalf("the place is not free: %v", err)
	}
	defer next.Close()
	if err := client.Leave(closer{rdma.ErrTimeout}, old, f); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("leave: %v", err)
	}
	b := next.Batch()
	b.FetchAdd(rdma.At(0, 0), 1)
	if err := rdma.Do(next, b, time.Second); err != nil {
		t.Errorf("the new holder of the identity: %v", err)
	}
	b.Release()
}

// far is a fabric with a registry that is unreachable for a number of calls.
type far struct{ calls int }

func (f *far) RevokeLife(rdma.Client) error {
	if f.calls--; f.calls >= 0 {
		return fmt.Errorf("revoke: %w", rdma.ErrUnreachable)
	}
	return nil
}

func (e *leaving) Client() rdma.ClientID { return 7 }

func (e *leaving) Life() uint64 { return 1 }

// An identity that could not be fenced off is not given back: it would never be recovered. It is
// fenced off when that works.
func TestDoor(t *testing.T) {
	defer goleak.VerifyNone(t)
	var d client.Reaper
	ep, registry, closed := &leaving{}, &far{2}, make(chan struct{})
	ep.then = func() { close(closed) }
	if err := d.Leave(closer{rdma.ErrTimeout}, ep, registry); !errors.Is(err, rdma.ErrTimeout) ||
		!errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("answer %v", err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("it was not fenced off when the registry was back")
	}
	if registry.calls >= 0 {
		t.Error("it was closed before it was fenced off")
	}
	never := &leaving{}
	if err := d.Leave(closer{rdma.ErrTimeout}, never, &far{1 << 30}); !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("answer %v", err)
	}
	if err := d.Close(); !errors.Is(err, rdma.ErrUnreachable) || never.closed {
		t.Errorf("closed: %v, endpoint closed: %v", err, never.closed)
	}
}

// waits is a store that is closed only when it is let go.
type waits struct {
	closer
	gate chan struct{}
}

func (s waits) Close() error { <-s.gate; return s.err }

// The number of workers that leave in the background is bounded, and Close does not wait for a
// registry that is out of reach.
func TestDismiss(t *testing.T) {
	defer goleak.VerifyNone(t)
	var d client.Reaper
	gate := make(chan struct{})
	var left, alone atomic.Int64
	for range client.MostClosing + 1 {
		ep := &leaving{then: func() { left.Add(1) }}
		go func() {
			d.CloseAsync(waits{closer{nil}, gate}, ep, nil)
			alone.Add(1)
		}()
	}
	eventually(t, "CloseAsync returns while workers leave", func() bool { return alone.Load() == client.MostClosing })
	time.Sleep(10 * time.Millisecond)
	if n := alone.Load(); n != client.MostClosing {
		t.Errorf("%d workers leave in the background", n)
	}
	close(gate)
	eventually(t, "all have left", func() bool {
		return left.Load() == client.MostClosing+1 && alone.Load() == left.Load()
	})
	stays, late := &leaving{}, make(chan struct{})
	d.CloseAsync(waits{closer{rdma.ErrTimeout}, late}, stays, &far{1 << 30})
	time.AfterFunc(10*time.Millisecond, func() { close(late) })
	if err := d.Close(); !errors.Is(err, rdma.ErrUnreachable) || stays.closed {
		t.Errorf("closed: %v, endpoint closed: %v", err, stays.closed)
	}
}
