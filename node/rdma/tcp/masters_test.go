package tcp_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestTwoMasters has two processes advance and fence epochs at once, and revoke clients, while
// workers of a third one add to the word of the epoch that they have joined. Once that epoch was
// fenced off, its word stays as it is, whichever process fenced.
func TestTwoMasters(t *testing.T) {
	const epochs = 40
	_, addrs := start(t, 3, 1<<20, nil)
	o := control.Options{Addresses: addrs}
	// those that are fenced off are not recovered
	workers := created(t, o, control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 64})
	masters := []*tcp.Fabric{opened(t, o), opened(t, o)}
	var over atomic.Bool
	var group, working sync.WaitGroup
	for range 2 {
		working.Go(func() { workUntil(t, workers, &over) })
	}
	var sums [epochs + 1]atomic.Uint64
	var won, unknown [2]int
	for i, f := range masters {
		ep := attach(t, f, "master")
		group.Go(func() {
			for epoch := uint64(0); epoch < epochs; {
				ok, err := f.Advance(rdma.State{Epoch: epoch}, rdma.State{Epoch: epoch + 1})
				// the other one overtook it, more than once: asked again, the registry knows
				if errors.Is(err, membership.ErrUncertain) {
					unknown[i]++
					continue
				}
				if err == nil && ok {
					won[i]++
				}
				if err := errors.Join(err, f.Fence(epoch+1)); err != nil { // both fence, the one that lost, too
					t.Errorf("epoch %d: %v", epoch+1, err)
					return
				}
				if _, err := ep.Join(); err != nil {
					t.Error(err)
					return
				}
				sum, err := load(ep, 0, 8*epoch)
				if errors.Is(err, rdma.ErrStale) { // the other one was faster
					epoch++
					continue
				}
				if old := sums[epoch].Swap(sum + 1); err != nil || old != 0 && old != sum+1 {
					t.Errorf("the word of epoch %d is %d (%v) when its end was fenced off, and was %d for the other",
						epoch, sum, err, old-1)
				}
				for _, c := range f.Clients() {
					if c.Name == "worker" && c.Alive && epoch%8 == 7 {
						if err := f.RevokeLife(c); err != nil {
							t.Errorf("revoke: %v", err)
						}
					}
				}
				epoch++
			}
		})
	}
	group.Wait()
	over.Store(true)
	working.Wait()
	ep := attach(t, workers, "judge")
	for epoch := range uint64(epochs) {
		if sum := sums[epoch].Load(); sum > 0 {
			if now, err := load(ep, 0, 8*epoch); now != sum-1 || err != nil {
				t.Errorf("the word of epoch %d was %d when it was fenced off, and became %d (%v)", epoch, sum-1, now,
					err)
			}
		}
	}
	if sum := won[0] + won[1]; sum > epochs || sum+unknown[0]+unknown[1] < epochs {
		t.Errorf("%v epochs were begun, and perhaps %v, want %d", won, unknown, epochs)
	}
}

// workUntil adds to the word of the epoch that it has joined. A worker that was fenced off leaves,
// and another follows.
func workUntil(t *testing.T, f *tcp.Fabric, over *atomic.Bool) {
	for !over.Load() {
		ep, err := f.Open("worker")
		if errors.Is(err, rdma.ErrFull) {
			for _, c := range f.Clients() {
				if !c.Held {
					f.Forget(c)
				}
			}
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		for !over.Load() && !errors.Is(err, rdma.ErrRevoked) {
			v, joined := ep.Join()
			for err = joined; err == nil && !over.Load(); {
				_, err = add(ep, 0, 8*v.Epoch)
			}
			if err != nil && !errors.Is(err, rdma.ErrStale) && !errors.Is(err, rdma.ErrRevoked) {
				t.Error(err)
				break
			}
		}
		ep.Close()
	}
}

// TestTwoMastersExpel has two processes expel the same node at once, and one of an epoch before.
func TestTwoMastersExpel(t *testing.T) {
	nodes, addrs := start(t, 3, 1<<20, nil)
	o := control.Options{Addresses: addrs, Lease: short}
	first := created(t, o, geometry(3))
	second := opened(t, o)
	ep := attach(t, second, "client")
	if ok, err := first.Advance(rdma.State{}, rdma.State{Epoch: 2, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := second.Expel(1, 2); !errors.Is(err, rdma.ErrStale) {
		t.Errorf("a master of another epoch: %v", err)
	}
	if _, err := add(ep, 2, 0); err != nil {
		t.Errorf("the node was expelled all the same: %v", err)
	}
	var group sync.WaitGroup
	for _, f := range []*tcp.Fabric{first, second} {
		group.Go(func() {
			if err := errors.Join(f.Expel(2, 2), f.Fence(2)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := add(ep, 2, 0); !errors.Is(err, rdma.ErrNodeDown) || !nodes[2].Info().Expelled {
		t.Errorf("a verb of an expelled node: %v", err)
	}
	if _, err := ep.Join(); err != nil {
		t.Error(err)
	}
	if _, err := add(ep, 0, 0); err != nil {
		t.Errorf("a verb of another node: %v", err)
	}
	if err := first.Expel(2, 3); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("expel a node that the pool does not have: %v", err)
	}
	late := opened(t, o)
	if _, err := add(attach(t, late, "late"), 2, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb of an expelled node by a process that came later: %v", err)
	}
	eventually(t, "a node that serves has a lease", func() bool {
		left := leaseOf(t, nodes[0])
		if left > time.Minute {
			t.Errorf("a node that serves has a lease of %v", left)
		}
		return left > 0
	})
}
