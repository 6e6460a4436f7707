package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

var small = Geometry{Nodes: 2, Memory: 1 << 20, Clients: 3}

func newMem(t testing.TB) (*Fabric, rdma.Endpoint) {
	t.Helper()
	f, err := NewMem(Geometry{Nodes: 3, Memory: 1 << 20, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	e, err := f.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, e
}

func TestWriteThenReadAnyRange(t *testing.T) {
	_, e := newMem(t)
	for off := range uint64(9) {
		for _, n := range []int{0, 1, 3, 7, 8, 9, 15, 16, 63, 64, 65, 200, 1024, 1031} {
			b := e.Batch()
			whole := b.Alloc(n + 32)
			for i := range whole {
				whole[i] = 0xee
			}
			p := b.Alloc(n)
			for i := range p {
				p[i] = byte(i + n)
			}
			at := rdma.At(1, 4096+16+off)
			b.Write(rdma.At(1, 4096+off), whole)
			b.Write(at, p)
			all := b.Read(rdma.At(1, 4096+off), n+32)
			part := b.Read(at, n)
			if err := rdma.Do(e, b, time.Second); err != nil {
				t.Fatal(err)
			}
			copy(whole[16:], p)
			if !bytes.Equal(part.Buf, p) || !bytes.Equal(all.Buf, whole) {
				t.Fatalf("offset %d, %d bytes: read %x, want %x", off, n, all.Buf, whole)
			}
			b.Release()
		}
	}
}

func do(t testing.TB, e rdma.Endpoint, add func(b *rdma.Batch) *rdma.Op) (uint64, error) {
	t.Helper()
	b := e.Batch()
	defer b.Release()
	op := add(b)
	err := rdma.Do(e, b, time.Second)
	return op.Result, err
}

func TestAtomics(t *testing.T) {
	_, e := newMem(t)
	a := rdma.At(2, 64)
	for i, c := range []struct {
		add    func(b *rdma.Batch) *rdma.Op
		before uint64
	}{
		{func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(a, 5) }, 0},
		{func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(a, 4, 9) }, 5},
		{func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(a, 5, 0x1234) }, 5},
		{func(b *rdma.Batch) *rdma.Op { return b.MaskedCompareSwap(a, 0x35, 0xff, 0xffff, 0xf00f) }, 0x1234},
		{func(b *rdma.Batch) *rdma.Op { return b.MaskedCompareSwap(a, 0xff34, 0xff, 0xffff, 0xf00f) }, 0x1234},
		{func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(a, 0) }, 0xf23f},
	} {
		got, err := do(t, e, c.add)
		if err != nil || got != c.before {
			t.Fatalf("step %d: word before is %#x, %v; want %#x", i, got, err, c.before)
		}
	}
}

func TestBreachTakesConnectionDown(t *testing.T) {
	for name, breach := range map[string]func(b *rdma.Batch) *rdma.Op{
		"behind the end": func(b *rdma.Batch) *rdma.Op { return b.Write(rdma.At(0, 1<<20-8), b.Alloc(16)) },
		"far behind":     func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, rdma.MaxOffset-1), 8) },
		"misaligned":     func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 12), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			_, e := newMem(t)
			if _, err := do(t, e, breach); !errors.Is(err, rdma.ErrAccess) || errors.Is(err, rdma.ErrRevoked) {
				t.Fatalf("breach: %v", err)
			}
			read := func(node int) error {
				_, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(node, 0), 8) })
				return err
			}
			if err := read(0); !errors.Is(err, rdma.ErrAccess) {
				t.Fatalf("same node afterwards: %v", err)
			}
			if err := read(1); err != nil {
				t.Fatalf("other node afterwards: %v", err)
			}
		})
	}
}

func word(p []byte) uint64 { return binary.NativeEndian.Uint64(p) }
