package tcp_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// TestSlowLink writes more over a link than gets through in the time for which a node may be
// silent: the node is alive as long as something gets through, and dead soon after nothing does any
// more.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	_, addrs := start(t, 1, 1<<20, nil)
	p := newProxyOf(t, addrs[0], true)
	f := created(t, control.Options{Addresses: []string{p.addr()}, Lease: lease}, geometry(1))
	ep := attach(t, f, "client")
	rule := func(verbs fate) {
		p.rule(func(c caller) fate {
			if c.verbs() {
				return verbs
			}
			return through
		})
	}
	rule(slow)
	write := func() *rdma.Batch {
		b := ep.Batch()
		b.Write(rdma.At(0, 0), b.Alloc(150<<10))
		if err := ep.Post(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := write()
	if err := ep.Wait(b, rdma.All, limit); err != nil || b.Err() != nil {
		t.Errorf("a WRITE over a slow link: %v, %v", err, b.Err())
	}
	b.Release()
	b = write()
	if err := ep.Wait(b, rdma.All, 100*time.Millisecond); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("another one: %v", err)
	}
	rule(stuck)
	if err := ep.Wait(b, rdma.All, limit); err != nil || !errors.Is(b.Err(), rdma.ErrNodeDown) {
		t.Errorf("a WRITE of which nothing gets through any more: %v, %v", err, b.Err())
	}
	b.Release()
}

// TestStoppedUnderWrites stops a node, while its machine still acknowledges what is
// sent to it, a little at a time: that is no sign of life.
func TestStoppedUnderWrites(t *testing.T) {
	t.Parallel()
	nodes, addrs := nodeProcesses(t, 1)
	f := created(t, control.Options{Addresses: addrs}, geometry(1))
	ep := attach(t, f, "client")
	nodes[0].Stop(t)
	// so that the pool can be closed
	defer nodes[0].GoOn(t)
	for until := time.Now().Add(limit); !f.NodeDown(0); time.Sleep(20 * time.Millisecond) { // it would hold thousands
		if time.Now().After(until) {
			t.Fatal("the node counts as one that serves")
		}
		b := ep.Batch()
		b.Write(rdma.At(0, 0), b.Alloc(8))
		if err := ep.Post(b); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
}

// TestLongDrain fences off while a procedure takes longer than a node may be silent: the process
// that waits for the fence is told that the node is alive.
func TestLongDrain(t *testing.T) {
	t.Parallel()
	for what, fence := range map[string]func(f *pool, c rdma.ClientID) error{
		"fence":  func(f *pool, _ rdma.ClientID) error { return f.Fence(1) },
		"revoke": func(f *pool, c rdma.ClientID) error { return f.Revoke(c) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			begun, goOn := make(chan struct{}), make(chan struct{})
			var over atomic.Bool
			f, proxies := behind(t, 1, lease, func(rdma.Memory, *rdma.Request) error {
				close(begun)
				<-goOn
				over.Store(true)
				return nil
			})
			proxies[0].limit(func(c caller) (up, down int) { // none: it tells which connections are made again
				if c.Purpose == "control" {
					t.Error("the connection was given up")
				}
				return -1, -1
			})
			ep := attach(t, f.Fabric, "client")
			called := make(chan error, 1)
			go func() { called <- ep.Call(0, &rdma.Request{}, limit) }()
			<-begun
			time.AfterFunc(1500*time.Millisecond, func() { close(goOn) })
			if err := fence(f, ep.Client()); err != nil || !over.Load() {
				t.Errorf("fenced off: %v; what had begun is over: %v", err, over.Load())
			}
			<-called // the connection for verbs was silent, too
		})
	}
}
