package btree

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

func format(t testing.TB, nodeBytes, keyBytes, margin int) *Format {
	t.Helper()
	f, err := NewFormat(nodeBytes, keyBytes, margin)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestShapes compares formats with what Sherman's nodes of 1 KB have for keys of 8 bytes: about 54
// pairs of 18 bytes, and about 61 children. Separators that are as long as keys leave room for
// fewer, short ones for more.
func TestShapes(t *testing.T) {
	f := format(t, 1024, 8, 0)
	if f.slot != 18 || f.Slots() != 54 {
		t.Errorf("%d pairs of %d bytes", f.Slots(), f.slot)
	}
	if long, short := f.Room()/f.Bytes([]Entry{{make([]byte, 8), 1}}),
		f.Room()/f.Bytes([]Entry{{make([]byte, 3), 1}}); long != 51 || short != 70 {
		t.Errorf("%d children behind separators of 8 bytes, %d behind those of 3", long, short)
	}
	if f := format(t, 1024, 8, 1); f.entries != fencesAt+16 || f.slot != 20 {
		t.Errorf("with margins of a byte, entries have %d bytes from %d on", f.slot, f.entries)
	}
	for _, bad := range [][3]int{{1024, 0, 0}, {1024, MaxKey + 1, 0}, {100, 24, 0}, {1024, 24, -1}, {1 << 16, 8, 0},
		{1024, 200, 100}} {
		if _, err := NewFormat(bad[0], bad[1], bad[2]); !errors.Is(err, ErrFormat) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestSeparator(t *testing.T) {
	for _, c := range [][3]string{
		{"", "a", "a"}, {"a", "b", "b"}, {"apple", "banana", "b"}, {"user1000", "user1010", "user101"},
		{"a", "aa", "aa"}, {"abc", "abcd", "abcd"},
		{"a\xff\xff", "b", "b"}, {"a", "a\x00", "a\x00"},
	} {
		if got := string(Separator([]byte(c[0]), []byte(c[1]))); got != c[2] {
			t.Errorf("%q and %q are parted by %q, want %q", c[0], c[1], got, c[2])
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		a, b := randomKey(rng, 6), randomKey(rng, 6)
		if bytes.Compare(a, b) > 0 {
			a, b = b, a
		}
		if bytes.Equal(a, b) {
			continue
		}
		s := Separator(a, b)
		if bytes.Compare(a, s) >= 0 || bytes.Compare(s, b) > 0 {
			t.Fatalf("%q does not part %q and %q", s, a, b)
		}
		for n := range len(s) { // no shorter prefix of b does; and no key that is shorter is between them
			if bytes.Compare(a, s[:n]) < 0 {
				t.Fatalf("%q parts %q and %q, too", s[:n], a, b)
			}
		}
	}
}

// randomKey returns a key of few different bytes, so that keys have much in common.
func randomKey(rng *rand.Rand, most int) []byte {
	p := make([]byte, rng.IntN(most+1))
	for i := range p {
		p[i] = "\x00ab\xff"[rng.IntN(4)]
	}
	return p
}

// TestLeaf fills and empties a leaf at random, and compares it with a map.
func TestLeaf(t *testing.T) {
	for _, margin := range []int{0, 3} {
		f := format(t, 512, 6, margin)
		rng := rand.New(rand.NewPCG(2, uint64(margin)))
		p := bytes.Repeat([]byte{0xee}, f.NodeBytes)
		h := Header{Lower: []byte("\x00"), Upper: []byte("b\xff"), Sibling: 77}
		f.WriteLeaf(p, h, nil)
		model := map[string]Pair{}
		for range 20_000 {
			l, ok := f.DecodeLeaf(p)
			if !ok || l.Sibling != 77 || string(l.Lower) != "\x00" || string(l.Upper) != "b\xff" || l.Last {
				t.Fatalf("%v, %+v", ok, l.Header)
			}
			key := randomKey(rng, 6)
			slot := l.Find(key)
			known, there := model[string(key)]
			if there != (slot >= 0) || there && !same(l.Pair(slot), known) {
				t.Fatalf("%q is in slot %d, want %+v (%v)", key, slot, known, there)
			}
			switch {
			case there && rng.IntN(2) == 0:
				l.Clear(slot)
				delete(model, string(key))
			case there || len(model) < f.Slots():
				pair := Pair{Key: key, Value: bytes.Repeat([]byte{7}, rng.IntN(Inline+1))}
				if rng.IntN(3) == 0 {
					pair = Pair{Key: key, Beside: Ref(1 + rng.Uint64N(1e18))}
				}
				if !there {
					slot = l.Free()
				}
				l.Set(slot, &pair)
				model[string(key)] = pair
			case l.Free() >= 0:
				t.Fatal("a full leaf has a free entry")
			}
			if l.Count() != len(model) {
				t.Fatalf("%d pairs, want %d", l.Count(), len(model))
			}
			if rng.IntN(50) == 0 {
				wantPairs(t, l.Pairs(nil), model)
			}
		}
	}
}

func same(a, b Pair) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Beside == b.Beside
}

func wantPairs(t *testing.T, pairs []Pair, model map[string]Pair) {
	t.Helper()
	if len(pairs) != len(model) {
		t.Fatalf("%d pairs, want %d", len(pairs), len(model))
	}
	for i, p := range pairs {
		if !same(p, model[string(p.Key)]) || i > 0 && bytes.Compare(pairs[i-1].Key, p.Key) >= 0 {
			t.Fatalf("pair %d is %+v, want %+v, behind %q", i, p, model[string(p.Key)], pairs[max(i-1, 0)].Key)
		}
	}
}

// TestHalves splits full nodes, and looks at both halves: they have what there was, parted by the
// separator, and fit.
func TestHalves(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		f := format(t, 160+rng.IntN(200), 1+rng.IntN(20), 0)
		var pairs []Pair
		for len(pairs) < f.Slots()+1 {
			key := randomKey(rng, f.KeyBytes)
			if i, found := slices.BinarySearchFunc(pairs, key,
				func(p Pair, k []byte) int { return bytes.Compare(p.Key, k) }); !found {
				pairs = InsertPair(pairs, Pair{Key: key})
				if !bytes.Equal(pairs[i].Key, key) {
					t.Fatal("a pair is inserted in another place")
				}
			}
			if f.KeyBytes < 3 { // there are not that many
				break
			}
		}
		if len(pairs) <= f.Slots() {
			continue
		}
		last := rng.IntN(3) == 0
		stay, separator := HalvePairs(pairs, last)
		if stay < 1 || stay >= len(pairs) || last && stay != len(pairs)-1 || !last && abs(2*stay-len(pairs)) > 1 {
			t.Fatalf("of %d pairs %d stay (%v)", len(pairs), stay, last)
		}
		if bytes.Compare(pairs[stay-1].Key, separator) >= 0 || bytes.Compare(separator, pairs[stay].Key) > 0 {
			t.Fatalf("%q does not part %q and %q", separator, pairs[stay-1].Key, pairs[stay].Key)
		}
		var entries []Entry
		for f.Bytes(entries) <= f.Room() {
			key := append(randomKey(rng, f.KeyBytes-2), byte(len(entries)/200), byte(len(entries)))
			entries = append(entries, Entry{key, 1})
		}
		slices.SortFunc(entries, func(a, b Entry) int { return bytes.Compare(a.Key, b.Key) })
		up := f.HalveEntries(entries, last)
		if left, right := f.Bytes(entries[:up]), f.Bytes(entries[up+1:]); up < 1 || up > len(entries)-2 ||
			left > f.Room() || right > f.Room() {
			t.Fatalf("of %d entries %d goes up, and %d and %d bytes are left, of %d", len(entries), up, left, right,
				f.Room())
		}
	}
}

func abs(n int) int { return max(n, -n) }

// TestInternal writes nodes with random entries, and finds the children of random keys as a sorted
// list does.
func TestInternal(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 2000 {
		f := format(t, 256+rng.IntN(400), 8, 0)
		keys := map[string]bool{}
		for range rng.IntN(40) {
			if k := append([]byte("a"), randomKey(rng, 6)...); len(k) > 1 {
				keys[string(k)] = true
			}
		}
		var entries []Entry
		for k := range keys {
			entries = InsertEntry(entries, Entry{[]byte(k), Ref(1 + rng.Uint64())})
		}
		for f.Bytes(entries) > f.Room() {
			entries = entries[:len(entries)-1]
		}
		p := make([]byte, f.NodeBytes)
		h := Header{Level: 3, Lower: []byte("a"), Upper: []byte("b"), Sibling: 9, Leftmost: 5}
		f.WriteInternal(p, h, entries)
		n, ok := f.DecodeInternal(p)
		if !ok || n.Level != 3 || n.Sibling != 9 || n.Leftmost != 5 || n.Count() != len(entries) ||
			!slices.EqualFunc(n.Entries(nil), entries,
				func(a, b Entry) bool { return bytes.Equal(a.Key, b.Key) && a.Child == b.Child }) {
			t.Fatalf("%v, %+v, %d entries of %d", ok, n.Header, n.Count(), len(entries))
		}
		if _, ok := f.DecodeLeaf(p); ok {
			t.Fatal("it is a leaf")
		}
		for range 50 {
			key := append([]byte("a"), randomKey(rng, 7)...)
			place := sort.Search(len(entries), func(i int) bool { return bytes.Compare(entries[i].Key, key) > 0 })
			want := Ref(5)
			if place > 0 {
				want = entries[place-1].Child
			}
			lower, upper, last := n.Bounds(place)
			if n.Place(key) != place || n.Child(place) != want || bytes.Compare(key, lower) < 0 || last ||
				bytes.Compare(key, upper) >= 0 {
				t.Fatalf("%q is at %d, want %d, from %q to %q", key, n.Place(key), place, lower, upper)
			}
		}
	}
}

func TestSide(t *testing.T) {
	h := Header{Lower: []byte("b"), Upper: []byte("d")}
	for key, want := range map[string]int{"": -1, "a\xff": -1, "b": 0, "c": 0, "cz": 0, "d": 1, "e": 1} {
		if got := h.Side([]byte(key)); got != want {
			t.Errorf("%q is at %d, want %d", key, got, want)
		}
	}
	h.Last, h.Upper = true, nil
	if h.Side([]byte("\xff\xff")) != 0 {
		t.Error("the last node ends")
	}
}

func TestValue(t *testing.T) {
	for _, c := range [][2]string{{"", ""}, {"k", ""}, {"", "v"}, {"key", "a value"}} {
		p := EncodeValue(nil, []byte(c[0]), []byte(c[1]))
		key, value, ok := DecodeValue(p)
		if !ok || string(key) != c[0] || string(value) != c[1] || len(p) != ValueBytes(len(c[0]), len(c[1])) {
			t.Errorf("%q: %q, %q, %v", c, key, value, ok)
		}
	}
	f := format(t, 256, 8, 0)
	node := make([]byte, f.NodeBytes)
	f.WriteLeaf(node, Header{Last: true}, nil)
	if _, _, ok := DecodeValue(node); ok {
		t.Error("a node is a value")
	}
	value := EncodeValue(nil, []byte("k"), make([]byte, f.NodeBytes-3))
	if _, ok := f.Decode(value); ok || len(value) != f.NodeBytes {
		t.Error("a value is a node")
	}
}

// FuzzDecode: whatever bytes there are, decoding them does not panic, and what is decoded keeps its
// promises.
func FuzzDecode(f *testing.F) {
	small, err := NewFormat(200, 8, 1)
	if err != nil {
		f.Fatal(err)
	}
	p := make([]byte, small.NodeBytes)
	small.WriteLeaf(p, Header{Lower: []byte("a"), Upper: []byte("b")},
		[]Pair{{Key: []byte("ab"), Value: []byte("v")}, {Key: []byte("aa"), Beside: 3}})
	f.Add(bytes.Clone(p), []byte("ab"))
	small.WriteInternal(p, Header{Level: 1, Last: true, Leftmost: 2}, []Entry{{[]byte("c"), 3}, {[]byte("d"), 4}})
	f.Add(bytes.Clone(p), []byte("c"))
	f.Add(EncodeValue(nil, []byte("key"), []byte("value")), []byte("key"))
	f.Fuzz(func(t *testing.T, p, key []byte) {
		key = key[:min(len(key), small.KeyBytes)]
		DecodeValue(p)
		if l, ok := small.DecodeLeaf(p); ok {
			l.Side(key)
			pairs := l.Pairs(nil)
			if len(pairs) != l.Count() || !slices.IsSortedFunc(pairs,
				func(a, b Pair) int { return bytes.Compare(a.Key, b.Key) }) {
				t.Error("pairs are not in order")
			}
			if slot := l.Find(key); slot >= 0 && !bytes.Equal(l.Pair(slot).Key, key) {
				t.Error("another key was found")
			}
			copied := l.Copy(make([]byte, small.NodeBytes))
			if slot := copied.Free(); slot >= 0 && copied.Find(key) < 0 {
				if copied.Set(slot, &Pair{Key: key}); copied.Find(key) != slot {
					t.Error("what was set is not found")
				}
			}
		}
		if n, ok := small.DecodeInternal(p); ok {
			last := n.Lower
			for i := range n.Count() + 1 {
				lower, upper, end := n.Bounds(i)
				if n.Child(i) == 0 || bytes.Compare(lower, last) < 0 ||
					!end && bytes.Compare(lower, upper) >= 0 && i < n.Count() {
					t.Errorf("child %d has %q to %q", i, lower, upper)
				}
				last = lower
			}
			if n.Side(key) == 0 {
				lower, upper, end := n.Bounds(n.Place(key))
				if bytes.Compare(key, lower) < 0 || !end && bytes.Compare(key, upper) >= 0 {
					t.Errorf("%q belongs to %q to %q", key, lower, upper)
				}
			}
		}
	})
}

// BenchmarkFind is a search in a leaf of 1 KB, and in an internal node.
func BenchmarkFind(b *testing.B) {
	f := format(b, 1024-32, 24, 0)
	var pairs []Pair
	var entries []Entry
	for i := range f.Slots() {
		key := fmt.Appendf(nil, "user%019d", i*7919)
		pairs, entries = append(pairs, Pair{Key: key}), append(entries, Entry{key, 1})
	}
	p, q := make([]byte, f.NodeBytes), make([]byte, f.NodeBytes)
	f.WriteLeaf(p, Header{Last: true}, pairs)
	entries = entries[:min(len(entries), f.Room()/f.Bytes(entries[:1]))]
	f.WriteInternal(q, Header{Level: 1, Last: true, Leftmost: 1}, entries)
	b.Run("leaf", func(b *testing.B) {
		for i := range b.N {
			l, ok := f.DecodeLeaf(p)
			if !ok || l.Find(pairs[i%len(pairs)].Key) < 0 {
				b.Fatal("not found")
			}
		}
	})
	b.Run("internal", func(b *testing.B) {
		n, ok := f.DecodeInternal(q)
		if !ok {
			b.Fatal("no node")
		}
		for i := range b.N {
			if n.Place(pairs[i%len(pairs)].Key) < 0 {
				b.Fatal("not found")
			}
		}
	})
}
