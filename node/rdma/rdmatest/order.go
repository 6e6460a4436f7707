package rdmatest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// testPostingOrder writes words again and again, in batches that are not waited for. Each READ sees
// the last WRITE posted before it or, as later ops may pass a READ, one posted behind it; the last
// one of all stays.
func testPostingOrder(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		v := uint64(0)
		var batches []*rdma.Batch
		for range 20 {
			b := ep.Batch()
			for range 10 {
				v++
				b.Write(rdma.At(int(v%2), 64), word(b, v))
				b.Read(rdma.At(int(v%2), 64), 8)
			}
			if err := ep.Post(b); err != nil {
				t.Error(err)
				return
			}
			batches = append(batches, b)
		}
		v = 0
		for _, b := range batches {
			if err := ep.Wait(b, rdma.All, patience); err != nil || b.Err() != nil {
				t.Errorf("%v, %v", err, b.Err())
				return
			}
			for i := 1; i < b.Len(); i += 2 {
				v++
				if got := value(b.Op(i)); got < v || got > 200 || got%2 != v%2 {
					t.Errorf("a READ behind the WRITE of %d found %d", v, got)
				}
			}
			b.Release()
		}
	})
	expect(t, h, f, rdma.At(0, 64), 200)
	expect(t, h, f, rdma.At(1, 64), 199)
}

// testFencedAtomic reads a word behind its own CAS: without a fence the READ may pass it, with one
// it may not.
func testFencedAtomic(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for v := range uint64(300) {
			b := ep.Batch()
			swap := b.CompareSwap(rdma.At(0, 8), v, v+1)
			seen := b.Read(rdma.At(0, 8), 8)
			seen.Fence = true
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Error(err)
				return
			}
			if !swap.Swapped() || value(seen) != v+1 {
				t.Errorf("CAS %d -> %d met %d, and the fenced READ behind it %d", v, v+1, swap.Result, value(seen))
			}
			b.Release()
		}
	})
}

// testFencedReads has a writer raise two words in turn, the first always first, and readers read
// them the other way round: with a fence between the READs, and with a wait, the first is never
// behind the second.
func testFencedReads(t testing.TB, h Harness) {
	const rounds = 500
	f := h.New(t, 1, poolBytes, nil)
	first, second := rdma.At(0, 0), rdma.At(0, 4096)
	writer := func(ep rdma.Endpoint) {
		for v := range uint64(rounds) {
			b := ep.Batch()
			p := word(b, v+1)
			b.Write(first, p)
			b.Write(second, p)
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Error(err)
			}
			b.Release()
		}
	}
	reader := func(ep rdma.Endpoint) {
		for range 2 * rounds {
			b := ep.Batch()
			s, f := b.Read(second, 8), b.Read(first, 8)
			f.Fence = true
			err := rdma.Do(ep, b, patience)
			if err != nil || value(f) < value(s) {
				t.Errorf("the second word is %d and the first, read behind a fence, %d (%v)", value(s), value(f), err)
				return
			}
			b.Release()
		}
	}
	h.Parallel(t, f, writer, reader, reader)
}

// testBehindAFence reads a word and writes it again, without a fence of its own but behind an op
// that has one: a fence holds for what is posted behind it, too.
func testBehindAFence(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for v := range uint64(300) {
			b := ep.Batch()
			before := b.Read(rdma.At(0, 64), 8)
			b.CompareSwap(rdma.At(0, 8), v, v+1).Fence = true
			b.Write(rdma.At(0, 64), word(b, v+1))
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Error(err)
				return
			}
			if value(before) != v {
				t.Errorf("a READ before the fence found %d, which was written behind it; it was %d", value(before), v)
			}
			b.Release()
		}
	})
}

// testChains waits for some of several chains: as many as were waited for are complete, and their
// results are there.
func testChains(t testing.TB, h Harness) {
	f := h.New(t, 3, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for round := range uint64(100) {
			b := ep.Batch()
			p := word(b, round+1)
			for node := range 3 {
				b.Chain()
				b.Write(rdma.At(node, 64), p)
				b.FetchAdd(rdma.At(node, 0), 1)
				b.Read(rdma.At(node, 64), 8)
			}
			if err := ep.Post(b); err != nil || b.Chains() != 3 {
				t.Errorf("%d chains, %v", b.Chains(), err)
				return
			}
			for n := range 4 {
				if err := ep.Wait(b, n, patience); err != nil || b.Done() < n {
					t.Errorf("waited for %d chains, %d are complete (%v)", n, b.Done(), err)
					return
				}
			}
			if !b.Finished() || b.Err() != nil || ep.Wait(b, rdma.All, 0) != nil {
				t.Errorf("all chains are complete, but finished is %v, error %v", b.Finished(), b.Err())
			}
			for i := 1; i < 9; i += 3 {
				if b.Op(i).Result != round || value(b.Op(i+1)) != round+1 {
					t.Errorf("round %d: op %d: FAA met %d, READ %d", round, i, b.Op(i).Result, value(b.Op(i+1)))
				}
			}
			b.Release()
		}
		b := ep.Batch()
		defer b.Release()
		if err := rdma.Do(ep, b, patience); err != nil || !b.Finished() {
			t.Errorf("an empty batch: %v", err)
		}
		lone := ep.Batch()
		defer lone.Release()
		lone.Read(rdma.At(0, 0), 8)
		lone.Read(rdma.At(0, 0), 8)
		if err := rdma.Do(ep, lone, patience); err != nil || lone.Chains() != 2 || lone.Done() != 2 {
			t.Errorf("two lone ops are %d chains, %d complete (%v)", lone.Chains(), lone.Done(), err)
		}
	})
}

// testTimeout lets a wait run out: the batch goes on and can be waited for again.
func testTimeout(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		b := ep.Batch()
		defer b.Release()
		op := b.FetchAdd(rdma.At(0, 0), 5)
		if err := ep.Post(b); err != nil {
			t.Error(err)
			return
		}
		err := ep.Wait(b, rdma.All, time.Nanosecond)
		if h.InFlight && (!errors.Is(err, rdma.ErrTimeout) || b.Finished()) {
			t.Errorf("a wait of a nanosecond returned %v, finished is %v", err, b.Finished())
		}
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			t.Error(err)
		}
		if err := ep.Wait(b, rdma.All, patience); err != nil || op.Err != nil || op.Result != 0 {
			t.Errorf("waited again: %v, %v, met %d", err, op.Err, op.Result)
		}
	})
	expect(t, h, f, rdma.At(0, 0), 5)
}

// testFollowUps posts the second step for one replica while others fly, and waits for batches in
// another order than they were posted in.
func testFollowUps(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for round := range 50 {
			first := ep.Batch()
			first.FetchAdd(rdma.At(0, 0), 1)
			first.FetchAdd(rdma.At(1, 0), 1)
			if ep.Post(first) != nil || ep.Wait(first, 1, patience) != nil {
				t.Error("the first step failed")
				return
			}
			var later []*rdma.Batch
			seen := map[uint64]bool{}
			for range 8 {
				b := ep.Batch()
				b.FetchAdd(rdma.At(0, 8), 1)
				if err := ep.Post(b); err != nil {
					t.Error(err)
				}
				later = append(later, b)
			}
			for i := len(later) - 1; i >= 0; i-- {
				if err := ep.Wait(later[i], rdma.All, patience); err != nil || later[i].Err() != nil {
					t.Errorf("%v, %v", err, later[i].Err())
				}
				seen[later[i].Op(0).Result-8*uint64(round)] = true
				later[i].Release()
			}
			for i := range uint64(8) {
				if !seen[i] {
					t.Errorf("round %d: no follow-up met %d: %v", round, i, seen)
				}
			}
			if err := ep.Wait(first, rdma.All, patience); err != nil || first.Err() != nil {
				t.Errorf("%v, %v", err, first.Err())
			}
			first.Release()
		}
	})
	expect(t, h, f, rdma.At(1, 0), 50)
}

// testReleaseInFlight releases batches that were not waited for, and scribbles over what the next
// ones are given.
func testReleaseInFlight(t testing.TB, h Harness) {
	const rounds, n = 200, 100
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for i := range uint64(rounds) {
			b := ep.Batch()
			p := b.Alloc(n)
			for k := range p {
				p[k] = byte(i + 1)
			}
			b.Write(rdma.At(0, i*n), p)
			b.Read(rdma.At(0, i*n), n)
			if err := ep.Post(b); err != nil {
				t.Error(err)
			}
			b.Release()
			scratch := ep.Batch()
			p = scratch.Alloc(4 * n)
			for k := range p {
				p[k] = 0xff
			}
			scratch.Release()
		}
		for i := range uint64(rounds) {
			p, err := read(ep, rdma.At(0, i*n), n)
			if want := bytes.Repeat([]byte{byte(i + 1)}, n); err != nil || !bytes.Equal(p, want) {
				t.Errorf("write %d of a released batch landed as %x (%v)", i, p, err)
				return
			}
		}
	})
}

// testLargeBatches posts more ops than any queue is deep.
func testLargeBatches(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		total := uint64(0)
		for _, n := range []int{15, 16, 17, 33, 300, 1001, 3000} {
			b := ep.Batch()
			for i := range n {
				off := uint64(8 * (i + 1))
				b.Write(rdma.At(1, off), word(b, uint64(n+i)))
				b.Read(rdma.At(1, off), 8)
				b.FetchAdd(rdma.At(0, 0), 1)
			}
			if err := rdma.Do(ep, b, patience); err != nil || b.Done() != 3*n {
				t.Errorf("a batch of %d ops: %d are complete (%v)", 3*n, b.Done(), err)
				return
			}
			for i := range n {
				met := b.Op(3*i + 2).Result
				if got := value(b.Op(3*i + 1)); got != uint64(n+i) || met-total >= uint64(n) {
					t.Errorf("a batch of %d ops: READ %d found %d, FAA met %d", 3*n, i, got, met)
					return
				}
			}
			total += uint64(n)
			b.Release()
		}
	})
	expect(t, h, f, rdma.At(0, 0), 15+16+17+33+300+1001+3000)
}
