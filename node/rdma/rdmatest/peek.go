package rdmatest

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// testPeek looks at a pool without being its client: the look sees what workers write and joins
// views, changes nothing, and takes no identity.
func testPeek(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, func(m rdma.Memory, r *rdma.Request) error { m.FetchAdd(8, 1); return nil })
	p, ok := f.(rdma.Peeker)
	if !ok {
		return
	}
	one(t, h, f, func(ep rdma.Endpoint) {
		before := len(f.Clients())
		look, err := p.Peek("look")
		if err != nil {
			t.Error(err)
			return
		}
		if n := len(f.Clients()); n != before || look.Client() != 0 {
			t.Errorf("there were %d clients, and with a look as client %d there are %d", before, look.Client(), n)
		}
		for i := uint64(1); i < 4; i++ {
			b := ep.Batch()
			b.FetchAdd(rdma.At(1, 8), 1)
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Error(err)
			}
			b.Release()
			if v, err := load(look, rdma.At(1, 8)); v != i || err != nil {
				t.Errorf("the look sees %d of %d (%v)", v, i, err)
			}
		}
		for name, make := range map[string]func(b *rdma.Batch){
			"WRITE": func(b *rdma.Batch) { b.Write(rdma.At(1, 8), b.Alloc(8)) },
			"CAS":   func(b *rdma.Batch) { b.CompareSwap(rdma.At(1, 8), 3, 4) },
			"FAA":   func(b *rdma.Batch) { b.FetchAdd(rdma.At(1, 8), 1) },
			"a WRITE behind a READ": func(b *rdma.Batch) {
				b.Read(rdma.At(1, 8), 8)
				b.Write(rdma.At(1, 8), b.Alloc(8))
			},
		} {
			b := look.Batch()
			make(b)
			if err := rdma.Do(look, b, patience); !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("%s by a look: %v, want an error wrapping ErrAccess", name, err)
			}
			b.Release()
		}
		if err := look.Call(1, new(rdma.Request), patience); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a call by a look: %v, want an error wrapping ErrAccess", err)
		}
		want, no := rdma.Rings(ep)
		if got, err := rdma.Rings(look); got != want || (err == nil) != (no == nil) {
			t.Errorf("a look is promised %+v of rings (%v), others %+v (%v)", got, err, want, no)
		}
		if _, err := rdma.OpenRing(look, rdma.RingOptions{Number: 1}); no == nil && !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a ring of a look: %v, want an error wrapping ErrAccess", err)
		}
		if err := look.Go("task", func(rdma.Endpoint) {}); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a task of a look: %v, want an error wrapping ErrAccess", err)
		}
		if v, err := load(look, rdma.At(1, 8)); v != 3 || err != nil {
			t.Errorf("behind what was refused the look sees %d (%v), want 3", v, err)
		}
		testPeekJoins(t, f, look)
		if err := look.Close(); err != nil {
			t.Error(err)
		}
		if _, err := load(look, rdma.At(1, 8)); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a look that was closed: %v", err)
		}
	})
}

// testPeekJoins fences epochs off: a look that has not joined the view either reads what is there
// or is told so, and goes on once it has.
func testPeekJoins(t testing.TB, f rdma.Fabric, look rdma.Endpoint) {
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1}); !ok || err != nil {
		t.Errorf("advance: %v, %v", ok, err)
	}
	if err := f.Fence(1); err != nil {
		t.Error(err)
	}
	if _, err := load(look, rdma.At(1, 8)); err != nil && !errors.Is(err, rdma.ErrStale) {
		t.Errorf("a look in an epoch that was fenced off: %v", err)
	}
	if v, err := look.Join(); v.Epoch != 1 || err != nil {
		t.Errorf("the look joins epoch %d (%v), want 1", v.Epoch, err)
	}
	if v, err := load(look, rdma.At(1, 8)); v != 3 || err != nil {
		t.Errorf("in the next epoch the look sees %d (%v), want 3", v, err)
	}
}
