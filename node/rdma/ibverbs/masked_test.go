package ibverbs

import (
	"sync"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestMaskedWorkers has workers count in bits of their own of one word, which the others change all
// the time: each masked compare and swap takes effect, once, and each wrong guess is counted as a
// trip.
func TestMaskedWorkers(t *testing.T) {
	const workers, times = 4, 150
	p := newPool(t, shape{nodes: 1})
	var group sync.WaitGroup
	trips := make([]uint64, workers)
	for w := range workers {
		ep := worker(t, p.Fabric)
		group.Go(func() {
			shift, mask := 16*w, uint64(0xffff)<<(16*w)
			for i := range uint64(times) {
				b := ep.Batch()
				op := b.MaskedCompareSwap(rdma.At(0, 64), i<<shift, mask, (i+1)<<shift, mask)
				if err := rdma.Do(ep, b, testPatience); err != nil || !op.Swapped() || op.Result&mask != i<<shift {
					t.Errorf("worker %d, %d: the word was %#x (%v)", w, i, op.Result, err)
					return
				}
				b.Release()
			}
			trips[w] = ep.Counters().Trips
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	want, sum := uint64(0), uint64(0)
	for w := range workers {
		want |= times << (16 * w)
		sum += trips[w]
	}
	if got := word(t, worker(t, p.Fabric), rdma.At(0, 64)); got != want {
		t.Errorf("the word is %#x, want %#x", got, want)
	}
	if n := p.Stats().Guesses; n == 0 || sum != workers*times+n {
		t.Errorf("%d trips for %d verbs and %d wrong guesses", sum, workers*times, n)
	}
}

// TestMaskedResults has each outcome of a masked compare and swap: of the word before, and behind.
func TestMaskedResults(t *testing.T) {
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	const before = 0x1122334455667788
	for i, c := range []struct {
		expect, compare, value, swap uint64
		after                        uint64
	}{
		{before, ^uint64(0), 5, ^uint64(0), 5},
		{before, ^uint64(0), 5, 0xff, 0x1122334455667705},
		{0x88, 0xff, 0, 0xff << 56, 0x0022334455667788},
		{0x87, 0xff, 0, 0xff << 56, before}, // compares, and is another
		{before ^ 1, ^uint64(0), 5, ^uint64(0), before},
		{0, 0, 7, 0xf, 0x1122334455667787}, // compares nothing
		{0xffffffffffffff88, 0xff, 1, 0, before},
	} {
		a := rdma.At(0, uint64(64+8*i))
		ends(t, ep, posted(t, ep, a, before), nil)
		b := ep.Batch()
		op := b.MaskedCompareSwap(a, c.expect, c.compare, c.value, c.swap)
		ends(t, func() rdma.Endpoint { _ = ep.Post(b); return ep }(), b, nil)
		if op.Result != before || op.Swapped() != ((before^c.expect)&c.compare == 0) {
			t.Errorf("%d: the word was %#x, swapped: %v", i, op.Result, op.Swapped())
		}
		if got := word(t, ep, a); got != c.after {
			t.Errorf("%d: the word is %#x, want %#x", i, got, c.after)
		}
		b.Release()
	}
}

// TestFenceBehindMasked looks at the order in which a device does what stands in front of a fence,
// and behind it: a masked compare and swap is over when its last guess is.
func TestFenceBehindMasked(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	ep := worker(t, p.Fabric)
	ends(t, ep, posted(t, ep, rdma.At(0, 64), 0xab00), nil)
	ends(t, ep, posted(t, ep, rdma.At(0, 72), 0xcd00), nil)
	base := ep.peers[0].base
	ends(t, ep, posted(t, ep, rdma.At(0, 88), 0), nil)
	var mu sync.Mutex
	var order []request
	again := 0
	p.net.fail(func(_ *softPair, q request) status {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, q)
		if q.remote == base+72 {
			if again++; again == 2 { // the word is changed once more
				p.net.add(base+72, 1<<32)
			}
		}
		return statusSuccess
	})
	b := ep.Batch()
	b.MaskedCompareSwap(rdma.At(0, 64), 0, 0xff, 1, 0xff)
	b.MaskedCompareSwap(rdma.At(0, 72), 0, 0xff, 2, 0xff)
	b.MaskedCompareSwap(rdma.At(0, 88), 0, 0xff, 3, 0xff) // is right at once
	b.Write(rdma.At(0, 80), b.Alloc(8)).Fence = true
	b.Read(rdma.At(0, 64), 8)
	if err := rdma.Do(ep, b, testPatience); err != nil {
		t.Fatal(err)
	}
	p.net.fail(nil)
	var at []uint64
	fenced := false
	for _, q := range order {
		at = append(at, q.remote-base)
		fenced = fenced || q.remote-base == 80 && q.flags&flagFence != 0
	}
	if len(at) != 8 || at[6] != 80 || at[7] != 64 || !fenced {
		t.Errorf("the device worked at %v, a fence in it: %v", at, fenced)
	}
	if w, v := word(t, ep, rdma.At(0, 64)), word(t, ep, rdma.At(0, 72)); w != 0xab01 || v != 0x10000cd02 {
		t.Errorf("the words are %#x, %#x", w, v)
	}
	b.Release()
}
