package rdmatest

import (
	"math"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// testCounters checks what a batch of every verb counts.
func testCounters(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, serve)
	one(t, h, f, func(ep rdma.Endpoint) {
		before := *ep.Counters()
		b := ep.Batch()
		b.Write(rdma.At(0, 64), b.Alloc(100))
		b.Write(rdma.At(1, 64), b.Alloc(9))
		b.Read(rdma.At(0, 64), 1000)
		b.CompareSwap(rdma.At(1, 0), 0, 1)
		b.CompareSwap(rdma.At(1, 0), 5, 1)
		b.FetchAdd(rdma.At(1, 8), 1)
		if err := rdma.Do(ep, b, patience); err != nil {
			t.Error(err)
		}
		b.Release()
		if err := ep.Call(1, &rdma.Request{Proc: echo}, patience); err != nil {
			t.Error(err)
		}
		want := rdma.Counters{
			Trips: 2, Doorbells: 2, Reads: 1, Writes: 2, Atomics: 3, Calls: 1, BytesRead: 1000, BytesWrote: 109,
		}
		if got := ep.Counters().Sub(before); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		if n := ep.NodeCounters(); len(n) != 2 || n[0].Calls != 0 || n[1].Calls != 1 || n[0].Doorbells != 1 ||
			n[0].Reads != 1 ||
			n[0].Atomics != 0 || n[1].Atomics != 3 || n[0].BytesWrote != 100 {
			t.Errorf("counted by node %+v", n)
		}
	})
}

// testTrips counts round trips on the critical path.
func testTrips(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	post := func(ep rdma.Endpoint, fence ...int) *rdma.Batch { // two CASes a node; fence those of these nodes
		b := ep.Batch()
		for node := range 2 {
			b.CompareSwap(rdma.At(node, 0), 0, 1)
			b.CompareSwap(rdma.At(node, 8), 0, 1)
		}
		for _, node := range fence {
			b.Op(2*node + 1).Fence = true
		}
		if err := ep.Post(b); err != nil {
			t.Error(err)
		}
		return b
	}
	wait := func(ep rdma.Endpoint, b *rdma.Batch) {
		if err := ep.Wait(b, rdma.All, patience); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name  string
		do    func(ep rdma.Endpoint)
		trips uint64
	}{
		{"a batch", func(ep rdma.Endpoint) { wait(ep, post(ep)) }, 1},
		{"a batch waited for twice", func(ep rdma.Endpoint) { b := post(ep); wait(ep, b); wait(ep, b) }, 1},
		{"one after the other", func(ep rdma.Endpoint) { wait(ep, post(ep)); wait(ep, post(ep)) }, 2},
		{"two at once", func(ep rdma.Endpoint) { a, b := post(ep), post(ep); wait(ep, a); wait(ep, b) }, 1},
		{"one that is not waited for", func(ep rdma.Endpoint) { post(ep).Release() }, 0},
		{"a fence", func(ep rdma.Endpoint) { wait(ep, post(ep, 0)) }, 2},
		{"fences of two nodes", func(ep rdma.Endpoint) { wait(ep, post(ep, 0, 1)) }, 2},
		{"a follow-up behind a part", func(ep rdma.Endpoint) {
			a := post(ep)
			if err := ep.Wait(a, 1, patience); err != nil {
				t.Error(err)
			}
			b := post(ep)
			wait(ep, a)
			wait(ep, b)
		}, 2},
	} {
		one(t, h, f, func(ep rdma.Endpoint) {
			before := ep.Counters().Trips
			c.do(ep)
			if got := ep.Counters().Trips - before; got != c.trips {
				t.Errorf("%s took %d trips, want %d", c.name, got, c.trips)
			}
		})
	}
}

// testAllocations measures a batch in steady state, where the fabric claims that it allocates
// nothing.
func testAllocations(t testing.TB, h Harness) {
	if !h.AllocFree {
		t.Skip("not claimed")
	}
	f := h.New(t, 3, poolBytes, serve)
	one(t, h, f, func(ep rdma.Endpoint) {
		r := rdma.Request{Proc: echo}
		round := func() {
			b := ep.Batch()
			p := b.Alloc(1024)
			for node := range 3 {
				b.Chain()
				b.Write(rdma.At(node, 4096), p)
				b.Read(rdma.At(node, 8192), 64)
				b.CompareSwap(rdma.At(node, 0), 0, 0).Fence = true
			}
			if rdma.Do(ep, b, patience) != nil || ep.Call(0, &r, patience) != nil {
				t.Error("a verb or a call failed")
			}
			b.Release()
		}
		// What allocates in a batch is in every measurement. What the fabric does beside them, to
		// make its connections and keep its leases, is of the whole process too, but ends, or is
		// rarer than rounds are.
		least := math.Inf(1)
		for range 5 {
			least = min(least, testing.AllocsPerRun(200, round))
		}
		if least != 0 {
			t.Errorf("a batch and a call allocate %v times", least)
		}
	})
}
