package table

import (
	"bytes"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"pgregory.net/rapid"
)

// TestExtent: a value is read only with the use, key, place and shard for which it was written,
// and not when it is torn.
func TestExtent(t *testing.T) {
	l := lay(t, small(), 1)
	v := sim.New(sim.Options{Memory: l.Bytes})
	defer v.Close()
	ep, err := v.Open("writer")
	must(t, err)
	rapid.Check(t, func(r *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 0, l.KeyBytes).Draw(r, "key")
		value := rapid.SliceOfN(rapid.Byte(), 0, l.ExtentBytes).Draw(r, "value")
		u := Ref{rapid.Uint64Range(0, l.AllExtents()-1).Draw(r, "extent"), len(value),
			rapid.Uint64Range(1, 1<<63).Draw(r, "stamp")}
		if !l.Names(u, 0) {
			r.Fatalf("%+v is none", u)
		}
		b := ep.Batch()
		l.AddValue(b, 1, u, key, value)
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			r.Fatal(err)
		}
		b.Release()
		b = ep.Batch()
		read := l.AddRead(b, l.Leads[1], u, key)
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			r.Fatal(err)
		}
		p := bytes.Clone(read.Buf)
		b.Release()
		if got, ok := l.ValueOf(p, 1, u, key); !ok || !bytes.Equal(got, value) {
			r.Fatalf("read %x, %v", got, ok)
		}
		for _, other := range []Ref{{u.Extent + 1, u.Length, u.Stamp}, {u.Extent, u.Length + 1, u.Stamp},
			{u.Extent, u.Length, u.Stamp + 1}} {
			if _, ok := l.ValueOf(p, 1, other, key); ok {
				r.Fatalf("it is taken for %+v", other)
			}
		}
		if _, ok := l.ValueOf(p, 2, u, key); ok {
			r.Fatal("it is taken for another shard's")
		}
		if _, ok := l.ValueOf(p, 1, u, append(bytes.Clone(key), 'x')); ok {
			r.Fatal("it is taken for another key's")
		}
		p[rapid.IntRange(0, len(p)-1).Draw(r, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
		if _, ok := l.ValueOf(p, 1, u, key); ok {
			r.Fatal("a wrong bit is not noticed")
		}
	})
}

func TestRefs(t *testing.T) {
	l := lay(t, small(), 1)
	for u, ok := range map[Ref]bool{{79, 100, 1}: true, {80, 100, 1}: false, {0, 101, 1}: false, {0, 0, 0}: false} {
		if l.Names(u, 0) != ok {
			t.Errorf("%+v: %v", u, !ok)
		}
	}
}

// FuzzExtent: bytes that no client wrote as an extent are refused, whatever lengths they have in
// them.
func FuzzExtent(f *testing.F) {
	l, err := New(small(), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(make([]byte, KeyAt+6), 3, uint64(0), "key")
	f.Add([]byte{}, 0, uint64(1), "")
	f.Fuzz(func(t *testing.T, p []byte, length int, stamp uint64, key string) {
		u := Ref{Extent: 7, Length: length, Stamp: stamp}
		if length < 0 { // as no ref has it
			return
		}
		if v, ok := l.ValueOf(p, 0, u, []byte(key)); ok &&
			(len(v) != length || extentSum(p[LengthsAt:], 0, u) != le.Uint64(p[contentAt:])) {
			t.Fatalf("%x is taken for %+v", p, u)
		}
	})
}
