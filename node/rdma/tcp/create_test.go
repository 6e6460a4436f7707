package tcp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// free reports whether nodes have no pool.
func free(t testing.TB, addrs []string) bool {
	t.Helper()
	infos, errs := control.Inspect(t.Context(), control.Options{Addresses: addrs})
	for i, info := range infos {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if info.Pool != nil {
			return false
		}
	}
	return true
}

// TestCreateRaces makes pools on the same nodes at once: one at most is made, and a call that fails
// leaves nothing.
func TestCreateRaces(t *testing.T) {
	_, addrs := start(t, 3, 1<<20, nil)
	backwards := []string{addrs[2], addrs[1], addrs[0]}
	made := 0
	for round := range 20 {
		var group sync.WaitGroup
		pools, errs := make([]*tcp.Fabric, 4), make([]error, 4)
		for i := range pools {
			group.Go(func() {
				o := control.Options{Addresses: addrs}
				if i%2 == 1 {
					o.Addresses = backwards
				}
				pools[i], errs[i] = tcp.Create(o, geometry(3), nil)
			})
		}
		group.Wait()
		winners := 0
		for i, f := range pools {
			if errs[i] != nil && !errors.Is(errs[i], rdma.ErrExists) {
				t.Errorf("round %d: %v", round, errs[i])
			}
			if f == nil {
				continue
			}
			winners++
			ep, err := f.Open("winner")
			if err != nil {
				t.Fatal(err)
			}
			for node := range 3 {
				if v, err := add(ep, node, 0); v != 0 || err != nil {
					t.Errorf("round %d: node %d of a new pool: %d, %v", round, node, v, err)
				}
			}
			if err := errors.Join(ep.Close(), f.Close(), control.Remove(control.Options{Addresses: addrs},
				false)); err != nil {
				t.Error(err)
			}
		}
		if made += winners; winners > 1 {
			t.Errorf("round %d: %d pools on the same nodes", round, winners)
		}
		if !free(t, addrs) { // at once: the next process finds them so
			t.Fatalf("round %d: %d pools were made, and nodes are not free", round, winners)
		}
	}
	t.Logf("%d pools were made in 20 rounds", made)
}

// TestCreateFails fails in each way: the nodes are as they were.
func TestCreateFails(t *testing.T) {
	t.Parallel()
	nodes, addrs := start(t, 3, 1<<20, nil)
	broken := errors.New("format is broken")
	create := func(o control.Options, g control.Geometry, format func(*tcp.Fabric) error) error {
		f, err := tcp.Create(o, g, format)
		if err == nil {
			f.Close()
		}
		return err
	}
	all := control.Options{Addresses: addrs}
	if err := create(all, geometry(3), func(f *tcp.Fabric) error {
		if _, err := tcp.Open(all); !errors.Is(err, rdma.ErrNoPool) || !strings.Contains(err.Error(), "being made") {
			t.Errorf("open a pool that is being made: %v", err)
		}
		return broken
	}); !errors.Is(err, broken) || !free(t, addrs) {
		t.Errorf("format fails: %v", err)
	}
	if err := create(all, control.Geometry{Nodes: 3, Memory: 1 << 30, Clients: 1}, nil); !errors.Is(err,
		rdma.ErrFull) ||
		!free(t, addrs) {
		t.Errorf("more memory than there is: %v", err)
	}
	dead := control.Options{Addresses: []string{addrs[0], addrs[1], "127.0.0.1:1"}}
	if err := create(dead, geometry(3), nil); !errors.Is(err, rdma.ErrNodeDown) || !free(t, addrs) {
		t.Errorf("a node that is not there: %v", err)
	}
	if err := create(all, geometry(3), func(f *tcp.Fabric) error {
		return nodes[2].Close()
	}); err == nil || !free(t, addrs[:2]) {
		t.Errorf("a node that dies before the pool may be opened: %v", err)
	}
}

// TestCreatorDies kills a process in the midst of making a pool: the nodes are free again.
func TestCreatorDies(t *testing.T) {
	_, addrs := start(t, 3, 1<<20, nil)
	p := child.Start(t, "create", strings.Join(addrs, ","))
	if s := p.Line(t); s != "formatting" {
		t.Fatalf("child said %q", s)
	}
	if _, err := tcp.Create(control.Options{Addresses: addrs}, geometry(3), nil); !errors.Is(err, rdma.ErrExists) {
		t.Errorf("create where another is about to: %v", err)
	}
	p.Kill()
	eventually(t, "the nodes are free", func() bool { return free(t, addrs) })
	created(t, control.Options{Addresses: addrs}, geometry(3))
}

// TestRemoveInUse removes a pool that is in use. Unless forced, that fails. If forced, verbs end in
// ErrNodeDown.
func TestRemoveInUse(t *testing.T) {
	_, addrs := start(t, 3, 1<<20, nil)
	o := control.Options{Addresses: addrs}
	f, err := tcp.Create(o, geometry(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // its client's identity is gone with the pool
	ep := attach(t, f, "user")
	if err := store(ep, 0, 0, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := control.Remove(o, false); !errors.Is(err, rdma.ErrInUse) {
		t.Errorf("remove: %v", err)
	}
	if v, err := load(ep, 0, 0); v != 1 || err != nil {
		t.Errorf("after that: %d, %v", v, err)
	}
	if err := control.Remove(o, true); err != nil || !free(t, addrs) {
		t.Errorf("remove by force: %v", err)
	}
	if _, err := load(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ of a pool that was removed: %v", err)
	}
	next := created(t, o, geometry(3))
	if v, err := load(attach(t, next, "next"), 0, 0); v != 0 || err != nil {
		t.Errorf("the next pool begins with %d (%v)", v, err)
	}
	if _, err := load(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("READ by a client of the pool before: %v", err)
	}
}

// TestRemoveWithoutTheDead removes a pool of which a node died. Unless forced, that fails while the
// dead node may know of a client, and while a client uses the pool. A dead node that is gone from
// the view is not missed.
func TestRemoveWithoutTheDead(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		nodes, addrs := start(t, 3, 1<<20, nil)
		o := control.Options{Addresses: addrs}
		f := created(t, o, geometry(3))
		nodes[2].Close()
		refusal, left := rdma.ErrUnreachable, rdma.ErrNodeDown
		if gone {
			refusal, left = rdma.ErrInUse, nil
			if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := f.Expel(1, 2); err != nil {
				t.Fatal(err)
			}
			if ok, err := f.SetMember(1, 2, rdma.Member{}, rdma.Member{Gone: true}); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		ep, err := f.Open("user")
		if err != nil {
			t.Fatal(err)
		}
		if err := control.Remove(o, false); !errors.Is(err, refusal) || free(t, addrs[:1]) {
			t.Errorf("the dead node is gone: %t; remove what is used: %v, want %v", gone, err, refusal)
		}
		if err := ep.Close(); err != nil {
			t.Fatal(err)
		}
		if err := control.Remove(o, !gone); !errors.Is(err, left) || !free(t, addrs[:2]) {
			t.Errorf("the dead node is gone: %t; remove: %v, want %v", gone, err, left)
		}
	}
}

// TestOpenPicksOut opens pools by addresses that do not belong together.
func TestOpenPicksOut(t *testing.T) {
	_, addrs := start(t, 4, 1<<20, nil)
	created(t, control.Options{Addresses: addrs[:3]}, geometry(3))
	created(t, control.Options{Addresses: addrs[3:]}, geometry(1))
	_, err := tcp.Open(control.Options{Addresses: []string{addrs[2], addrs[3]}})
	if !errors.Is(err, rdma.ErrNoPool) || !strings.Contains(err.Error(), addrs[2]) ||
		!strings.Contains(err.Error(), addrs[3]) {
		t.Errorf("nodes of two pools: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	infos, errs := control.Inspect(ctx, control.Options{Addresses: []string{addrs[0], "127.0.0.1:1"}})
	if errs[0] != nil || infos[0].Pool == nil || !infos[0].Sealed || !errors.Is(errs[1], rdma.ErrNodeDown) {
		t.Errorf("inspect: %+v, %v", infos, errs)
	}
}

// TestCreatorReconnects cuts all connections of a process in the midst of making a pool: it makes
// it nevertheless, and no verb of it is lost.
func TestCreatorReconnects(t *testing.T) {
	_, addrs := start(t, 3, 1<<20, nil)
	var proxies []*proxy
	for i, addr := range addrs {
		proxies = append(proxies, newProxy(t, addr))
		addrs[i] = proxies[i].addr()
	}
	f, err := tcp.Create(control.Options{Addresses: addrs}, geometry(3), func(f *tcp.Fabric) error {
		ep, err := f.Open("format")
		if err != nil {
			return err
		}
		if _, err := add(ep, 1, 64); err != nil {
			return err
		}
		for _, p := range proxies {
			p.sever(func(c caller) bool { return c.Purpose != "peer" })
		}
		return ep.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	for until := ep.Now() + 10*time.Second; ; { // the last cut may be noticed late
		met, err := add(ep, 1, 64)
		if errors.Is(err, rdma.ErrNodeDown) && ep.Now() < until {
			continue
		}
		if met != 1 || err != nil {
			t.Errorf("what was written holds %d (%v)", met, err)
		}
		return
	}
}
