package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

func appendTo(e *Endpoint, to rdma.RingAddr, text string) error {
	b := e.Batch()
	defer b.Release()
	b.Append(to, append(b.Alloc(len(text))[:0], text...))
	return rdma.Do(e, b, clientPatience)
}

// opening opens a ring at node 0 with a buffer at its beginning.
func opening(t *testing.T, e *Endpoint) rdma.Ring {
	t.Helper()
	r, err := e.OpenRing(rdma.RingOptions{Node: 0, Number: 5})
	if err == nil {
		err = r.Post(rdma.Span{Addr: rdma.At(0, 0), Len: 64 << 10})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRingEndsWithConnection breaks the connection that a ring was opened over: its worker learns
// that it ended, and opens it anew. Senders of the same process lose what was in flight, and no
// more.
func TestRingEndsWithConnection(t *testing.T) {
	f, a, b := newTwo(t)
	ring := opening(t, a)
	for round := range 20 {
		if err := appendTo(b, ring.Addr(), "an entry"); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		cut(t, f, 0)
		if err := appendTo(b, ring.Addr(), "another"); !errors.Is(err, rdma.ErrNoRing) {
			t.Errorf("append to a ring over a broken connection: %v", err)
		}
		if err := ring.Post(rdma.Span{Addr: rdma.At(0, 0), Len: 64 << 10}); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("post a buffer to it: %v", err)
		}
		if _, err := ring.Count(); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("count it: %v", err)
		}
		old := ring
		ring = opening(t, a)
		if err := old.Close(); err != nil {
			t.Errorf("close it: %v", err)
		}
	}
	if err := appendTo(b, ring.Addr(), "the last one"); err != nil {
		t.Error(err)
	}
}

// TestRingEndsWithWorker closes the worker of a ring, and the process of another one.
func TestRingEndsWithWorker(t *testing.T) {
	f, a, b := newTwo(t)
	ring := opening(t, b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := appendTo(a, ring.Addr(), "hello?"); !errors.Is(err, rdma.ErrNoRing) {
		t.Errorf("append to the ring of a worker that has ended: %v", err)
	}
	g, err := Open(control.Options{Addresses: f.Record().Addresses})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := g.Open("to die")
	if err != nil {
		t.Fatal(err)
	}
	opening(t, ep.(*Endpoint))
	if p, err := rdma.Rings(ep); err != nil || p != (rdma.RingPromises{MTU: control.DefaultMTU, Counts: true}) {
		t.Errorf("rings: %+v, %v", p, err)
	}
	if err := appendTo(a, ring.Addr(), "hello"); err != nil {
		t.Error(err)
	}
	_ = g.Close()
	for until := time.Now().Add(clientPatience); ; time.Sleep(time.Millisecond) {
		if err = appendTo(a, ring.Addr(), "hello?"); err != nil || time.Now().After(until) {
			break
		}
	}
	if !errors.Is(err, rdma.ErrNoRing) {
		t.Errorf("append to the ring of a process that has ended: %v", err)
	}
	opening(t, worker(t, f))
	if err := appendTo(a, ring.Addr(), "another"); err != nil {
		t.Error(err)
	}
}

// TestRingCutOff closes a ring while its node is out of reach: it may take entries of others as
// yet.
func TestRingCutOff(t *testing.T) {
	t.Parallel()
	f, a, _ := newTwo(t)
	ring := opening(t, a)
	l := f.Link(0)
	resume := l.Suspend(rdma.ErrNodeDown)
	if err := ring.Close(); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("close a ring of a node that is out of reach: %v", err)
	}
	resume()
	if err := ring.Close(); err != nil {
		t.Error(err)
	}
}

// TestRingRefused asks for rings where there are none, and appends without an identity.
func TestRingRefused(t *testing.T) {
	f, a, _ := newTwo(t)
	ring := opening(t, a)
	if err := ring.Post(make([]rdma.Span, rdma.MaxRingBuffers+1)...); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("more buffers than a ring has: %v", err)
	}
	peek, err := f.Anonymous("peek")
	if err != nil {
		t.Fatal(err)
	}
	anonymous := f.endpoint(peek)
	if _, err := anonymous.OpenRing(rdma.RingOptions{Number: 6}); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a ring without an identity: %v", err)
	}
	if err := appendTo(anonymous, ring.Addr(), "anonymous"); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("append without an identity: %v", err)
	}
	if _, err := Create(control.Options{Addresses: f.Record().Addresses, MTU: 100},
		control.Geometry{Nodes: 2, Memory: 4096, Clients: 1},
		nil); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a pool with blocks of 100 bytes: %v", err)
	}
}
