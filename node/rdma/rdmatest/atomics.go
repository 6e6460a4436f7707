package rdmatest

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

const workers, perWorker = 4, 1000

// testFetchAddSums has workers add to one word: each sum in between is met exactly once.
func testFetchAddSums(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	var met [workers][]uint64
	var fs []func(rdma.Endpoint)
	for w := range workers {
		fs = append(fs, func(ep rdma.Endpoint) {
			for range perWorker {
				v, err := fetchAdd(ep, rdma.At(0, 8), 3)
				if err != nil {
					t.Error(err)
					return
				}
				met[w] = append(met[w], v)
			}
		})
	}
	h.Parallel(t, f, fs...)
	all := slices.Concat(met[:]...)
	slices.Sort(all)
	for i, v := range all {
		if v != 3*uint64(i) {
			t.Errorf("sum %d is %d, want %d", i, v, 3*i)
			return
		}
	}
	expect(t, h, f, rdma.At(0, 8), 3*workers*perWorker)
}

// testCompareSwapLock raises a counter of plain READs and WRITEs under a lock of CASes.
func testCompareSwapLock(t testing.TB, h Harness) {
	const rounds = perWorker / 4
	f := h.New(t, 2, poolBytes, nil)
	lock, counter := rdma.At(0, 0), rdma.At(1, 64)
	holder := func(ep rdma.Endpoint) {
		me := uint64(ep.Client())
		for range rounds {
			for met := uint64(1); met != 0; {
				var err error
				if met, err = compareSwap(ep, lock, 0, me); err != nil {
					t.Error(err)
					return
				}
			}
			v, err := load(ep, counter)
			if err == nil {
				p := binary.LittleEndian.AppendUint64(nil, v+1)
				err = write(ep, counter, p)
			}
			if met, cerr := compareSwap(ep, lock, me, 0); met != me || err != nil || cerr != nil {
				t.Errorf("client %d finds its lock held by %d (%v, %v)", me, met, err, cerr)
				return
			}
		}
	}
	h.Parallel(t, f, slices.Repeat([]func(rdma.Endpoint){holder}, workers)...)
	expect(t, h, f, counter, workers*rounds)
}

// testWholeWords writes words of eight equal bytes, alone and in longer WRITEs: no READ sees
// one in parts.
func testWholeWords(t testing.TB, h Harness) {
	const words = 16
	f := h.New(t, 1, poolBytes, nil)
	writer := func(ep rdma.Endpoint) {
		for i := range perWorker {
			n := 8
			if i%2 == 1 {
				n = 8 * words
			}
			b := ep.Batch()
			p := b.Alloc(n)
			for k := range p {
				p[k] = byte(i + 13*int(ep.Client()))
			}
			b.Write(rdma.At(0, 64), p)
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Error(err)
				return
			}
			b.Release()
		}
	}
	reader := func(ep rdma.Endpoint) {
		for i := range perWorker {
			n := 8
			if i%2 == 1 {
				n = 8 * words
			}
			p, err := read(ep, rdma.At(0, 64), n)
			if err != nil {
				t.Error(err)
				return
			}
			for w := range slices.Chunk(p, 8) {
				if v := binary.LittleEndian.Uint64(w); v != uint64(w[0])*0x0101010101010101 {
					t.Errorf("a word was read in parts: %x", w)
					return
				}
			}
		}
	}
	h.Parallel(t, f, writer, writer, reader, reader)
}

// testCompareSwapResults checks what CAS and FAA answer and leave.
func testCompareSwapResults(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		big := ^uint64(0) - 4
		for _, c := range []struct {
			verb                      rdma.Verb
			expect, value, met, after uint64
		}{
			{rdma.CompareSwap, 1, 2, 0, 0},
			{rdma.CompareSwap, 0, big, 0, big},
			{rdma.CompareSwap, big + 1, 7, big, big},
			{rdma.FetchAdd, 0, 5, big, 0}, // wraps
			{rdma.FetchAdd, 0, big, 0, big},
			{rdma.CompareSwap, big, 1 << 63, big, 1 << 63},
		} {
			b := ep.Batch()
			var op *rdma.Op
			if c.verb == rdma.FetchAdd {
				op = b.FetchAdd(rdma.At(0, f.Size()-8), c.value)
			} else {
				op = b.CompareSwap(rdma.At(0, f.Size()-8), c.expect, c.value)
			}
			err := rdma.Do(ep, b, patience)
			after, err2 := load(ep, rdma.At(0, f.Size()-8))
			if err != nil || err2 != nil || op.Result != c.met || after != c.after {
				t.Errorf("%+v met %#x and left %#x (%v, %v)", c, op.Result, after, err, err2)
			}
			if c.verb == rdma.CompareSwap && op.Swapped() != (c.expect == c.met) {
				t.Errorf("%+v: swapped is %v", c, op.Swapped())
			}
			b.Release()
		}
	})
}

// testMaskedCompareSwap checks the masks, or that a fabric without them says so and leaves the word
// alone.
func testMaskedCompareSwap(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	a := rdma.At(0, 16)
	one(t, h, f, func(ep rdma.Endpoint) {
		before := uint64(0)
		for _, c := range []struct{ expect, compare, value, swap, after uint64 }{
			{0, ^uint64(0), 0xff00ff, ^uint64(0), 0xff00ff}, // all of it
			{0xabff, 0xff, 0x1234, 0xf0, 0xff003f},          // bits outside the masks do not count
			{0xff, 0xff, 0, ^uint64(0), 0xff003f},           // compared bits differ
			{77, 0, 1 << 40, 1 << 40, 1<<40 | 0xff003f},     // nothing compared
			{0xff003f, 0xffffff, ^uint64(0), 0, 1<<40 | 0xff003f},
		} {
			b := ep.Batch()
			op := b.MaskedCompareSwap(a, c.expect, c.compare, c.value, c.swap)
			err := rdma.Do(ep, b, patience)
			met := op.Result
			b.Release()
			if !h.MaskedCAS {
				if after, _ := load(ep, a); !errors.Is(err, rdma.ErrNotSupported) || after != 0 {
					t.Errorf("a masked CAS, which the fabric does not claim, ended in %v and left %#x", err, after)
				}
				return
			}
			after, err2 := load(ep, a)
			if err != nil || err2 != nil || met != before || after != c.after {
				t.Errorf("%+v met %#x and left %#x (%v, %v)", c, met, after, err, err2)
			}
			before = after
		}
	})
}
