package rcuckoo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRowModel: a row holds what was put into it and not dropped, and is valid after each seal.
func TestRowModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l, err := newLayout(drawParams(r), 1)
		if err != nil {
			r.Fatal(err)
		}
		f, p := l.form, make(row, l.rowBytes)
		const shard, n = 2, 77
		type pair struct {
			key, value []byte
			ref        ref
			extent     bool
		}
		model := make([]pair, f.entries)
		scratch := make([]byte, f.entryBytes)
		if !f.valid(p, shard, n) || f.version(p) != 0 {
			r.Fatal("a row that was never written is not valid")
		}
		for turn := range rapid.IntRange(1, 20).Draw(r, "turns") {
			slot := rapid.IntRange(0, f.entries-1).Draw(r, "slot")
			key := rapid.SliceOfN(rapid.Byte(), 0, l.KeyBytes).Draw(r, "key")
			switch found := f.find(p, key); {
			case rapid.Bool().Draw(r, "drop"):
				f.drop(p, slot)
				model[slot] = pair{}
			case found >= 0: // as keys are once in a row
			case l.extents() && rapid.Bool().Draw(r, "extent"):
				u := ref{rapid.Uint64Range(0, maxExtents-1).Draw(r, "extent"),
					rapid.IntRange(0, maxExtentValue).Draw(r, "length"), rapid.Uint64().Draw(r, "stamp")}
				f.put(p, slot, f.named(scratch, key, u))
				model[slot] = pair{key: key, ref: u, extent: true}
			default:
				value := rapid.SliceOfN(rapid.Byte(), 0, l.InlineBytes).Draw(r, "value")
				f.put(p, slot, f.inline(scratch, key, value))
				model[slot] = pair{key: key, value: value}
			}
			if f.sealNext(p, shard, n); !f.valid(p, shard, n) || f.version(p) != uint64(turn+1) {
				r.Fatalf("sealed for the %dth time its version is %d, valid: %v", turn+1, f.version(p),
					f.valid(p, shard, n))
			}
			if f.valid(p, shard+1, n) || f.valid(p, shard, n+1) {
				r.Fatal("the row is taken for another one's")
			}
		}
		used, free := 0, -1
		for slot, want := range model {
			e := f.entry(p, slot)
			if !f.sound(e) {
				r.Fatalf("slot %d is damaged: %x, %x", slot, e.meta, e.body)
			}
			if want.key == nil {
				if e.meta != 0 || !bytes.Equal(e.body, make([]byte, f.entryBytes)) {
					r.Fatalf("slot %d is free, and holds %x, %x", slot, e.meta, e.body)
				}
				if free < 0 {
					free = slot
				}
				continue
			}
			used++
			if f.find(p, want.key) != slot || !bytes.Equal(f.key(e), want.key) || e.meta.extent() != want.extent {
				r.Fatalf("slot %d has key %x, want %x, found at %d", slot, f.key(e), want.key, f.find(p, want.key))
			}
			if want.extent && f.ref(e) != want.ref || !want.extent && !bytes.Equal(f.value(e), want.value) {
				r.Fatalf("slot %d: %x, want %+v", slot, e.body, want)
			}
		}
		if f.used(p) != used || f.free(p) != free {
			r.Fatalf("%d slots used, the first free one %d; want %d and %d", f.used(p), f.free(p), used, free)
		}
	})
}

// sealNext gives a row its next version.
func (f *form) sealNext(r row, shard int, n uint32) { f.seal(r, shard, n, f.version(r)+1) }

// fill returns a row with a number of pairs, sealed so often.
func fillRow(f *form, shard int, n uint32, pairs, seals int) row {
	r, scratch := make(row, f.rowBytes), make([]byte, f.entryBytes)
	for i := range pairs {
		f.put(r, i, f.inline(scratch, fmt.Appendf(nil, "key%d-%d", n, i), []byte("value")))
	}
	for range seals {
		f.sealNext(r, shard, n)
	}
	return r
}

// TestTornRow: a mixture of a row's old and new words is valid only if all are old or all are
// new. The first write of a row is among the cases.
func TestTornRow(t *testing.T) {
	l := lay(t, small(), 1)
	rng := rand.New(rand.NewPCG(1, 2))
	scratch := make([]byte, l.entryBytes)
	for _, old := range []row{make(row, l.rowBytes), fillRow(l.form, 0, 5, 7, 3)} {
		next := append(row(nil), old...)
		l.put(next, 7, l.inline(scratch, []byte("new"), []byte("thing")))
		l.sealNext(next, 0, 5)
		torn := 0
		for range 20_000 {
			mix := append(row(nil), old...)
			mask := rng.Uint64()
			for i := 0; i < l.rowBytes; i += 8 {
				if mask>>(i/8)&1 == 1 {
					copy(mix[i:i+8], next[i:])
				}
			}
			whole := bytes.Equal(mix, old) || bytes.Equal(mix, next)
			if !whole {
				torn++
			}
			if l.valid(mix, 0, 5) != whole {
				t.Fatalf("words %x of %d are new: valid: %v", mask, l.rowBytes/8, !whole)
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
	r := fillRow(l.form, 1, 9, 5, 4)
	torn := append(row(nil), r...)
	e := l.named(make([]byte, l.entryBytes), []byte("k"), ref{7, 100, 3})
	l.put(r, 6, e)
	l.sealNext(r, 1, 9)
	copy(torn[l.sumAt:], r[l.sumAt:]) // what landed of the WRITE
	copy(torn[6*l.entryBytes:][:8], r[6*l.entryBytes:])
	if l.valid(torn, 1, 9) {
		t.Fatal("half a row is valid")
	}
	l.put(torn, 6, e)
	l.seal(torn, 1, 9, l.version(r))
	if !bytes.Equal(torn, r) || l.sum(torn) != l.sum(r) {
		t.Errorf("rebuilt as %x, want %x", torn, r)
	}
}

// FuzzRow: bytes that are no row are not valid, and nothing in a valid row leads out of its memory.
func FuzzRow(f *testing.F) {
	l, err := newLayout(small(), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(fillRow(l.form, 0, 3, 4, 2)), false)
	f.Add(make([]byte, l.rowBytes), false)
	f.Add(bytes.Repeat([]byte{0xff}, l.rowBytes), true)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if len(p) < l.rowBytes {
			return
		}
		r := row(bytes.Clone(p[:l.rowBytes]))
		if seal { // as a client that writes nonsense would
			l.sealNext(r, 0, 3)
			if !l.valid(r, 0, 3) && l.version(r) != 0 {
				t.Fatal("a sealed row is not valid")
			}
		}
		if !l.valid(r, 0, 3) {
			return
		}
		r[0] ^= 1
		if l.valid(r, 0, 3) {
			t.Fatal("a row with a wrong bit is valid")
		}
		r[0] ^= 1
		l.find(r, []byte("key"))
		if n := l.used(r); (l.free(r) < 0) != (n == l.entries) {
			t.Fatalf("%d slots used, the first free one is %d", n, l.free(r))
		}
		for slot := range l.entries {
			if e := l.entry(r, slot); !l.sound(e) {
				continue
			} else if e.meta.extent() {
				if u := l.ref(e); u.extent >= maxExtents || u.length > maxExtentValue {
					t.Fatalf("%+v", u)
				}
			} else if e.meta.used() && (len(l.key(e)) > l.KeyBytes || len(l.value(e)) > l.InlineBytes) {
				t.Fatalf("key %x, value %x", l.key(e), l.value(e))
			}
		}
	})
}

func BenchmarkRow(b *testing.B) {
	l := lay(b, small(), 1)
	r := fillRow(l.form, 0, 5, 8, 1)
	key := []byte("key5-7")
	b.Run("find", func(b *testing.B) {
		for b.Loop() {
			if l.find(r, key) != 7 {
				b.Fatal("not found")
			}
		}
	})
	b.Run("seal", func(b *testing.B) {
		for b.Loop() {
			l.sealNext(r, 0, 5)
		}
	})
	b.Run("valid", func(b *testing.B) {
		for b.Loop() {
			if !l.valid(r, 0, 5) {
				b.Fatal("not valid")
			}
		}
	})
	b.Run("place", func(b *testing.B) {
		for b.Loop() {
			l.place(key)
		}
	})
}
