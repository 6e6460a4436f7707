package table

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRowModel: a row holds what was put into it and not dropped, and is valid after each seal.
func TestRowModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l, err := New(drawParams(r), 1)
		if err != nil {
			r.Fatal(err)
		}
		f, p := l.Form, make(Row, l.RowBytes)
		const shard, n = 2, 77
		type pair struct {
			key, value []byte
			ref        Ref
			extent     bool
		}
		model := make([]pair, f.Slots)
		scratch := make([]byte, f.EntryBytes)
		if !f.Valid(p, shard, n) || f.Version(p) != 0 {
			r.Fatal("a row that was never written is not valid")
		}
		for turn := range rapid.IntRange(1, 20).Draw(r, "turns") {
			slot := rapid.IntRange(0, f.Slots-1).Draw(r, "slot")
			key := rapid.SliceOfN(rapid.Byte(), 0, l.KeyBytes).Draw(r, "key")
			switch found := f.Find(p, key); {
			case rapid.Bool().Draw(r, "drop"):
				f.Drop(p, slot)
				model[slot] = pair{}
			case found >= 0: // as keys are once in a row
			case l.HasExtents() && rapid.Bool().Draw(r, "extent"):
				u := Ref{rapid.Uint64Range(0, maxExtents-1).Draw(r, "extent"),
					rapid.IntRange(0, maxExtentValue).Draw(r, "length"), rapid.Uint64().Draw(r, "stamp")}
				f.Put(p, slot, f.Named(scratch, key, u))
				model[slot] = pair{key: key, ref: u, extent: true}
			default:
				value := rapid.SliceOfN(rapid.Byte(), 0, l.InlineBytes).Draw(r, "value")
				f.Put(p, slot, f.Inline(scratch, key, value))
				model[slot] = pair{key: key, value: value}
			}
			if sealNext(f, p, shard, n); !f.Valid(p, shard, n) || f.Version(p) != uint64(turn+1) {
				r.Fatalf("sealed for the %dth time its version is %d, valid: %v", turn+1, f.Version(p),
					f.Valid(p, shard, n))
			}
			if f.Valid(p, shard+1, n) || f.Valid(p, shard, n+1) {
				r.Fatal("the row is taken for another one's")
			}
		}
		used, free := 0, -1
		for slot, want := range model {
			e := f.Entry(p, slot)
			if !f.Sound(e) {
				r.Fatalf("slot %d is damaged: %x, %x", slot, e.Meta, e.Body)
			}
			if want.key == nil {
				if e.Meta != 0 || !bytes.Equal(e.Body, make([]byte, f.EntryBytes)) {
					r.Fatalf("slot %d is free, and holds %x, %x", slot, e.Meta, e.Body)
				}
				if free < 0 {
					free = slot
				}
				continue
			}
			used++
			if f.Find(p, want.key) != slot || !bytes.Equal(f.Key(e), want.key) || e.Meta.Extent() != want.extent {
				r.Fatalf("slot %d has key %x, want %x, found at %d", slot, f.Key(e), want.key, f.Find(p, want.key))
			}
			if want.extent && f.Ref(e) != want.ref || !want.extent && !bytes.Equal(f.Value(e), want.value) {
				r.Fatalf("slot %d: %x, want %+v", slot, e.Body, want)
			}
		}
		if f.Used(p) != used || f.Free(p) != free {
			r.Fatalf("%d slots used, the first free one %d; want %d and %d", f.Used(p), f.Free(p), used, free)
		}
	})
}

// TestTornRow: a mixture of a row's old and new words is valid only if all are old or all are
// new. The first write of a row is among the cases.
func TestTornRow(t *testing.T) {
	l := lay(t, small(), 1)
	rng := rand.New(rand.NewPCG(1, 2))
	scratch := make([]byte, l.EntryBytes)
	for _, old := range []Row{make(Row, l.RowBytes), fillRow(l.Form, 0, 5, 7, 3)} {
		next := append(Row(nil), old...)
		l.Put(next, 7, l.Inline(scratch, []byte("new"), []byte("thing")))
		sealNext(l.Form, next, 0, 5)
		torn := 0
		for range 20_000 {
			mix := append(Row(nil), old...)
			mask := rng.Uint64()
			for i := 0; i < l.RowBytes; i += 8 {
				if mask>>(i/8)&1 == 1 {
					copy(mix[i:i+8], next[i:])
				}
			}
			whole := bytes.Equal(mix, old) || bytes.Equal(mix, next)
			if !whole {
				torn++
			}
			if l.Valid(mix, 0, 5) != whole {
				t.Fatalf("words %x of %d are new: valid: %v", mask, l.RowBytes/8, !whole)
			}
		}
		if torn < 10_000 {
			t.Errorf("only %d mixtures were torn", torn)
		}
	}
}

// TestSeal: a repairer that has the change and the version makes exactly the writer's row.
func TestSeal(t *testing.T) {
	l := lay(t, small(), 1)
	r := fillRow(l.Form, 1, 9, 5, 4)
	torn := append(Row(nil), r...)
	e := l.Named(make([]byte, l.EntryBytes), []byte("k"), Ref{7, 100, 3})
	l.Put(r, 6, e)
	sealNext(l.Form, r, 1, 9)
	copy(torn[l.SumAt:], r[l.SumAt:]) // what landed of the WRITE
	copy(torn[6*l.EntryBytes:][:8], r[6*l.EntryBytes:])
	if l.Valid(torn, 1, 9) {
		t.Fatal("half a row is valid")
	}
	l.Put(torn, 6, e)
	l.Seal(torn, 1, 9, l.Version(r))
	if !bytes.Equal(torn, r) || l.Sum(torn) != l.Sum(r) {
		t.Errorf("rebuilt as %x, want %x", torn, r)
	}
}

// FuzzRow: bytes that are no row are not valid, and nothing in a valid row leads out of its memory.
func FuzzRow(f *testing.F) {
	l, err := New(small(), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(fillRow(l.Form, 0, 3, 4, 2)), false)
	f.Add(make([]byte, l.RowBytes), false)
	f.Add(bytes.Repeat([]byte{0xff}, l.RowBytes), true)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if len(p) < l.RowBytes {
			return
		}
		r := Row(bytes.Clone(p[:l.RowBytes]))
		if seal { // as a client that writes nonsense would
			sealNext(l.Form, r, 0, 3)
			if !l.Valid(r, 0, 3) && l.Version(r) != 0 {
				t.Fatal("a sealed row is not valid")
			}
		}
		if !l.Valid(r, 0, 3) {
			return
		}
		r[0] ^= 1
		if l.Valid(r, 0, 3) {
			t.Fatal("a row with a wrong bit is valid")
		}
		r[0] ^= 1
		l.Find(r, []byte("key"))
		if n := l.Used(r); (l.Free(r) < 0) != (n == l.Slots) {
			t.Fatalf("%d slots used, the first free one is %d", n, l.Free(r))
		}
		for slot := range l.Slots {
			if e := l.Entry(r, slot); !l.Sound(e) {
				continue
			} else if e.Meta.Extent() {
				if u := l.Ref(e); u.Extent >= maxExtents || u.Length > maxExtentValue {
					t.Fatalf("%+v", u)
				}
			} else if e.Meta.Used() && (len(l.Key(e)) > l.KeyBytes || len(l.Value(e)) > l.InlineBytes) {
				t.Fatalf("key %x, value %x", l.Key(e), l.Value(e))
			}
		}
	})
}

func BenchmarkRow(b *testing.B) {
	l := lay(b, small(), 1)
	r := fillRow(l.Form, 0, 5, 8, 1)
	key := []byte("key5-7")
	b.Run("find", func(b *testing.B) {
		for b.Loop() {
			if l.Find(r, key) != 7 {
				b.Fatal("not found")
			}
		}
	})
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			sealNext(l.Form, r, 0, 5)
		}
	})
	b.Run("valid", func(b *testing.B) {
		for b.Loop() {
			if !l.Valid(r, 0, 5) {
				b.Fatal("not valid")
			}
		}
	})
	b.Run("place", func(b *testing.B) {
		for b.Loop() {
			l.Place(key)
		}
	})
}
