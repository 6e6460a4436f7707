package rdmatest

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/node/rdma"
)

// testBytes writes every small length at every alignment and looks at the bytes and their
// neighbours. Both ends of a node's memory are tried.
func testBytes(t testing.TB, h Harness) {
	f := h.New(t, 2, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		for node, base := range []uint64{0, f.Size() - 128} {
			for n := 1; n <= 80; n++ {
				for align := range uint64(16) {
					if err := tryBytes(ep, rdma.At(node, base), 16+align, n); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}
	})
}

// tryBytes writes n bytes in the midst of 128 others.
func tryBytes(ep rdma.Endpoint, base rdma.Addr, off uint64, n int) error {
	around := make([]byte, 128)
	for i := range around {
		around[i] = byte(ep.Rand().Uint32())
	}
	if err := write(ep, base, around); err != nil {
		return err
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = ^around[off+uint64(i)]
	}
	b := ep.Batch()
	defer b.Release()
	buf := b.Alloc(n)
	copy(buf, p)
	b.Write(base.Add(off), buf)
	part, whole := b.Read(base.Add(off), n), b.Read(base, len(around))
	if err := rdma.Do(ep, b, patience); err != nil {
		return err
	}
	copy(around[off:], p)
	if !bytes.Equal(part.Buf, p) {
		return fmt.Errorf("wrote %d bytes at %s, read others:\n%x\n%x", n, base.Add(off), p, part.Buf)
	}
	if !bytes.Equal(whole.Buf, around) {
		return fmt.Errorf("a write of %d bytes at %s touched its neighbours:\n%x\n%x", n, base.Add(off), around,
			whole.Buf)
	}
	return nil
}

// access is one READ or WRITE of testBytesAgainstModel.
type access struct {
	write   bool
	off     uint64
	n, node int
	fill    byte
}

// testBytesAgainstModel runs random batches of one worker against plain memory. WRITEs have fences,
// so that they do not pass READs: each READ sees exactly what was posted before it.
func testBytesAgainstModel(t testing.TB, h Harness) {
	const span = 3 * 4096
	f := h.New(t, 2, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) { // the property starts from zero each time
		if err := write(ep, rdma.At(0, 0), make([]byte, span)); err != nil {
			t.Error(err)
		}
	})
	gen := rapid.Custom(func(r *rapid.T) access {
		off := rapid.Uint64Range(0, span-1).Draw(r, "off")
		return access{
			rapid.Bool().Draw(r, "write"), off, rapid.IntRange(1, int(span-off)).Draw(r, "n"),
			rapid.IntRange(0, 1).Draw(r, "node"), rapid.Byte().Draw(r, "fill"),
		}
	})
	rapid.Check(t, func(r *rapid.T) {
		batches := rapid.SliceOfN(rapid.SliceOfN(gen, 1, 6), 1, 4).Draw(r, "batches")
		var failure error
		one(t, h, f, func(ep rdma.Endpoint) { failure = againstModel(ep, span, batches) })
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

func againstModel(ep rdma.Endpoint, span int, batches [][]access) error {
	model := [2][]byte{make([]byte, span), make([]byte, span)}
	for node := range model {
		if err := write(ep, rdma.At(node, 0), model[node]); err != nil {
			return err
		}
	}
	for _, accesses := range batches {
		b := ep.Batch()
		var want [][]byte
		for _, a := range accesses {
			at, m := rdma.At(a.node, a.off), model[a.node][a.off:][:a.n]
			if !a.write {
				b.Read(at, a.n)
				want = append(want, bytes.Clone(m))
				continue
			}
			p := b.Alloc(a.n)
			for i := range p {
				p[i] = a.fill + byte(i)
			}
			copy(m, p)
			b.Write(at, p).Fence = true
			want = append(want, p)
		}
		err := rdma.Do(ep, b, patience)
		for i, a := range accesses {
			if err == nil && !bytes.Equal(b.Op(i).Buf, want[i]) {
				err = fmt.Errorf("op %d of %+v read other bytes than were written before it", i, a)
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
