package tcp_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// awaitGone waits until f finds that its pool is gone.
func awaitGone(t *testing.T, f *tcp.Fabric) {
	t.Helper()
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		err := f.Gone()
		switch {
		case errors.Is(err, rdma.ErrNoPool):
			return
		case err != nil || time.Now().After(until):
			t.Fatalf("the pool is gone: %v", err)
		}
	}
}

// staysThere checks for longer than it takes to find a pool gone that this one is not.
func staysThere(t *testing.T, f *tcp.Fabric, when string) {
	t.Helper()
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if err := f.Gone(); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
}

// TestGone kills the processes of a pool one by one: it is gone with the last one, and stays so
// when others begin to serve at their addresses. While one is left, or does not move, nothing is
// known.
func TestGone(t *testing.T) {
	t.Parallel()
	nodes, addrs := nodeProcesses(t, 3)
	f, err := tcp.Create(control.Options{Addresses: addrs}, geometry(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	nodes[0].Kill()
	again(t, addrs[0])
	nodes[1].Kill()
	staysThere(t, f, "one of three nodes is left")
	nodes[2].Stop(t)
	staysThere(t, f, "the last node is stopped")
	nodes[2].Kill()
	awaitGone(t, f)
	again(t, addrs[1])
	awaitGone(t, f)
	if err := f.Close(); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
		t.Error(err)
	}
}

// TestRemovedIsGone: a pool that was taken from nodes which go on is gone for processes that have
// it open.
func TestRemovedIsGone(t *testing.T) {
	t.Parallel()
	_, addrs := start(t, 3, 1<<20, nil)
	f, err := tcp.Create(control.Options{Addresses: addrs}, geometry(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Gone(); err != nil {
		t.Error(err)
	}
	if err := control.Remove(control.Options{Addresses: addrs}, true); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, f)
	if err := f.Close(); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
		t.Error(err)
	}
}
