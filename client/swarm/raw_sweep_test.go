package swarm

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// TestRawObjectAgain: an UPDATE that lands behind a DELETE undoes RAW's tombstone, so that a client
// goes on to find the value at the location that it has cached. Once a sweep has given the object
// to another key, nothing of that client lands there.
func TestRawObjectAgain(t *testing.T) {
	p := smallRaw(1)
	p.Objects = 40 // of two regions
	f := storePool(t, 1, p)
	ep, err := f.Open("master")
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	m, err := NewRecoverer(ep)
	must(t, err)
	x, y := storeOn(t, f, StoreOptions{Raw: true}), storeOn(t, f, StoreOptions{Raw: true})
	old := []byte("old")
	must(t, x.Insert(old, []byte("1")))
	location := x.find(xxhash.Sum64(old), old).location
	_, err = y.Get(old)
	must(t, err)
	must(t, x.Delete(old))
	find := func() { // the first READ joins the epoch
		_, _ = y.Get(old)
		_, _ = y.Get(old)
	}
	undo := func() { _ = y.Update(old, []byte("2")) } // it may find the key yet, or not
	undo()
	for range sweptFor + 1 {
		sweepOnce(t, f, ep, m, find, undo)
	}
	for n := 0; ; n++ {
		key := fmt.Appendf(nil, "new-%d", n)
		must(t, x.Insert(key, []byte("3")))
		if x.find(xxhash.Sum64(key), key).location != location {
			if n == 100 {
				t.Fatal("no other key gets the object")
			}
			continue
		}
		wantError(t, y.Update(old, []byte("4")), client.ErrNotFound)
		if v, err := x.Get(key); err != nil || string(v) != "3" {
			t.Errorf("got %q, %v", v, err)
		}
		return
	}
}

// sweepOnce begins an epoch and sweeps it. Others play before the sweep, and behind it.
func sweepOnce(t *testing.T, f rdma.Fabric, ep rdma.Endpoint, m *Recoverer, before, behind func()) {
	t.Helper()
	was := f.View()
	must(t, m.count(was))
	busy := rdma.State{Epoch: was.Epoch + 1, Busy: true}
	advance := func(from, to rdma.State) {
		if ok, err := f.Advance(from, to); err != nil || !ok {
			t.Fatalf("from %+v to %+v: %v, %v", from, to, ok, err)
		}
	}
	advance(rdma.State{Epoch: was.Epoch}, busy)
	must(t, f.Fence(busy.Epoch))
	v, err := ep.Join()
	must(t, err)
	before()
	must(t, m.Sweep(v))
	behind()
	advance(busy, rdma.State{Epoch: busy.Epoch})
	_, err = ep.Join()
	must(t, err)
}

// TestRawLostNode: what a dead node's part of the directory names is not known; so nothing is
// swept, and the keys of the other nodes stay.
func TestRawLostNode(t *testing.T) {
	f := storePool(t, 3, smallRaw(3))
	ep, err := f.Open("master")
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	m, err := NewRecoverer(ep)
	must(t, err)
	must(t, m.count(f.View()))
	v := f.View()
	v.Members = append([]rdma.Member{}, v.Members...)
	v.Members[1].Gone = true
	must(t, f.KillNode(1))
	for range 2 * mostSweeps {
		must(t, m.Sweep(v))
		if need, err := m.Need(v); err != nil || need != cluster.NeedNothing {
			t.Errorf("a sweep that can free nothing would pay: %v, %v", need, err)
		}
	}
}
