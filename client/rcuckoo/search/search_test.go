package search

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/farkv/farkv/client/rcuckoo/table"
)

// partly is a view that has only some rows of a table.
type partly struct {
	*Table
	known func(n uint32) bool
}

func (p partly) Row(shard int, n uint32) table.Row {
	if !p.known(n) {
		return nil
	}
	return p.Table.Row(shard, n)
}

// filled returns one that is about as full as it can be, or less.
func filled(t testing.TB, factor float64, entries, rows int, fill float64, seed uint64) *Table {
	tab, err := NewTable(factor, entries, rows, seed)
	must(t, err)
	for n := uint64(0); tab.Fill() < fill && len(tab.Insert(n)) > 0; n++ {
	}
	return tab
}

// content returns how often each key is in the table, and fails if one is in a row that is not
// its own.
func (t *Table) content(tb testing.TB) map[string]int {
	n := map[string]int{}
	for i := range uint32(t.l.Rows) {
		for slot := range t.l.Slots {
			e := t.l.Entry(t.Row(0, i), slot)
			if !e.Meta.Used() {
				continue
			}
			n[string(t.l.Key(e))]++
			if !t.l.Place(t.l.Key(e)).Has(i) {
				tb.Fatalf("key %x is in row %d", t.l.Key(e), i)
			}
		}
	}
	return n
}

// naive returns how many entries the best path moves: one to a free slot through rows that the
// view has, and one to a row that it does not have. math.MaxInt: there is none. It goes from one
// set of rows to all rows that they lead to.
func naive(v View, l *table.Layout, at table.Place, depth int) (sure, guess int) {
	sure, guess = math.MaxInt, math.MaxInt
	reached := map[uint32]bool{}
	frontier := []uint32{at.First, at.Second}
	for d := 0; d <= depth && len(frontier) > 0; d++ {
		var next []uint32
		for _, n := range frontier {
			if reached[n] {
				continue
			}
			reached[n] = true
			r := v.Row(0, n)
			if r == nil {
				guess = min(guess, d)
				continue
			}
			if l.Used(r) < l.Slots {
				sure = min(sure, d)
				continue
			}
			for slot := range l.Slots {
				next = append(next, l.Place(l.Key(l.Entry(r, slot))).Other(n))
			}
		}
		frontier = next
	}
	return sure, guess
}

// some returns one of a list.
func some[V any](rng *rand.Rand, list ...V) V { return list[rng.IntN(len(list))] }

// TestSearch: a path is as short as possible, and is found whenever there is one. A guess is made
// only of the key's own rows, or when no path through known rows exists.
func TestSearch(t *testing.T) {
	alone(t)
	results, lengths := map[Result]int{}, map[int]int{}
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 1<<41))
		tab := filled(t, some(rng, 1.5, 2.3, 5), some(rng, 1, 2, 3, 8), 1+rng.IntN(200), some(rng, 0.3, 0.9, 0.95, 1),
			seed)
		part, depth := some[uint64](rng, 0, 1, 4, 7, 8, 8, 8), rng.IntN(table.SearchDepth+1)
		v := partly{tab, func(n uint32) bool { return table.Spread(uint64(n))%8 < part }}
		at := tab.l.Place(binary.LittleEndian.AppendUint64(nil, rng.Uint64()))
		path, result := tab.search.Find(v, at, depth)
		sure, guess := naive(v, tab.l, at, depth)
		results[result]++
		moves, bad := len(path)-1, false
		switch result {
		case PathNone:
			bad = path != nil || sure != math.MaxInt || guess != math.MaxInt
		case PathGuessed:
			bad = moves != guess || v.Row(0, path[0].Row) != nil || path[0].Slot != unknown || sure == 0 ||
				sure < math.MaxInt && guess > 0
		case PathFound:
			bad = moves != sure || guess == 0 && sure > 0 ||
				tab.l.Entry(v.Row(0, path[0].Row), path[0].Slot).Meta.Used()
			lengths[moves]++
		}
		if bad {
			t.Fatalf("seed %d: result %d, path %v, though the best path moves %d, and the best guess %d", seed,
				result, path, sure, guess)
		}
		if result != PathFound && (len(tab.search.Missing) > 0) != (guess < math.MaxInt) {
			t.Fatalf("seed %d: missing rows %v, a guess moves %d", seed, tab.search.Missing, guess)
		}
		leads(t, v, at, path)
	}
	if results[PathFound] < 200 || results[PathGuessed] < 200 || results[PathNone] < 50 || lengths[0] < 100 ||
		lengths[3] < 5 || lengths[5] == 0 {
		t.Errorf("the cases were %v, with paths of %v", results, lengths)
	}
}

// leads fails if a path does not end in one of a key's rows, or has a row twice.
func leads(t *testing.T, v partly, at table.Place, path []Step) {
	t.Helper()
	if len(path) > 0 && !at.Has(path[len(path)-1].Row) {
		t.Fatalf("path %v ends in none of the key's rows, %+v", path, at)
	}
	seen := map[uint32]bool{}
	for i, s := range path {
		if seen[s.Row] {
			t.Fatalf("path %v has row %d twice", path, s.Row)
		}
		seen[s.Row] = true
		if i == 0 {
			continue
		}
		if p := v.l.Place(v.l.Key(v.l.Entry(v.Row(0, s.Row), s.Slot))); p.Other(s.Row) != path[i-1].Row {
			t.Fatalf("path %v: what is in step %d belongs to %+v", path, i, p)
		}
	}
}

// TestPathIsSafe: after each row that an INSERT along a path writes, every key is in one of its
// rows, and at most one key is in both. In the end the new key is there, too, and each key once.
func TestPathIsSafe(t *testing.T) {
	alone(t)
	lengths := map[int]int{}
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 1<<40))
		tab := filled(t, 2.3, some(rng, 2, 8), 2+rng.IntN(60), 1, seed)
		for i := 0; i < tab.l.Rows; i += 5 { // make room here and there
			if r := tab.Row(0, rng.Uint32N(uint32(tab.l.Rows))); tab.l.Meta(r, 1).Used() {
				tab.l.Drop(r, 1)
			}
		}
		before := tab.content(t)
		key := binary.LittleEndian.AppendUint64(nil, rng.Uint64())
		path, result := tab.search.Find(tab, tab.l.Place(key), table.SearchDepth)
		if result == PathNone {
			continue
		}
		lengths[len(path)]++
		for i, s := range path {
			e := tab.l.Inline(make([]byte, 8), key, nil)
			if i+1 < len(path) {
				e = tab.l.Entry(tab.Row(0, path[i+1].Row), path[i+1].Slot)
			}
			tab.l.Put(tab.Row(0, s.Row), s.Slot, e)
			now, twice := tab.content(t), 0
			for k := range before {
				switch now[k] {
				case 0:
					t.Fatalf("seed %d: after write %d of path %v key %x is lost", seed, i, path, k)
				case 2:
					twice++
				}
			}
			if last := i == len(path)-1; twice > 1 || last && twice > 0 || (now[string(key)] == 1) != last {
				t.Fatalf("seed %d: after write %d of path %v %d keys are there twice, the new one %d times", seed, i,
					path, twice, now[string(key)])
			}
		}
	}
	if lengths[1] < 50 || lengths[2] < 50 || lengths[3] < 50 || lengths[4] < 10 {
		t.Errorf("the paths were %v", lengths)
	}
}

// TestSearchOfDamage: entries that no client can have written are not moved, and lead nowhere.
func TestSearchOfDamage(t *testing.T) {
	tab := filled(t, 2.3, 8, 100, 0.9, 1)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		for range 5 {
			r := tab.Row(0, rng.Uint32N(100))
			r[rng.IntN(len(r))] ^= byte(1 << rng.IntN(8))
		}
		var key [8]byte
		binary.LittleEndian.PutUint64(key[:], rng.Uint64())
		path, _ := tab.search.Find(tab, tab.l.Place(key[:]), table.SearchDepth)
		for i, s := range path {
			if s.Row >= 100 || i > 0 && !tab.l.Place(tab.l.Key(tab.l.Entry(tab.Row(0, s.Row), s.Slot))).Has(s.Row) {
				t.Fatalf("path %v", path)
			}
		}
	}
}

// TestSearchAllocatesNothing: once its memory is large enough, a search allocates nothing,
// whether it finds a path or visits all rows.
func TestSearchAllocatesNothing(t *testing.T) {
	alone(t)
	tab := filled(t, 2.3, 8, 1000, 0.97, 1)
	full := filled(t, 2.3, 2, 60, 1, 1)
	for full.insert(slices.Repeat([]byte{byte(full.keys)}, 8)) != nil {
	}
	keys := make([]byte, 8)
	n := uint64(0)
	both := func() {
		n++
		binary.LittleEndian.PutUint64(keys, n)
		tab.search.Find(tab, tab.l.Place(keys), table.SearchDepth)
		full.search.Find(full, full.l.Place(keys), table.SearchDepth)
	}
	for range 2000 {
		both()
	}
	if got := testing.AllocsPerRun(1000, both); got > 0 {
		t.Errorf("%v allocations a search", got)
	}
}

// TestRowSet: a set holds what was added since it was emptied, also when its turns overflow.
func TestRowSet(t *testing.T) {
	var s rowSet
	rng := rand.New(rand.NewPCG(1, 1))
	for round := range 50 {
		if round == 25 {
			s.turn = math.MaxUint32 - 5
		}
		s.reset()
		have := map[uint32]bool{}
		for range rng.IntN(2000) {
			n := rng.Uint32N(1000)
			if s.add(n) == have[n] {
				t.Fatalf("round %d: row %d is in it: %v", round, n, have[n])
			}
			have[n] = true
		}
		if s.n != len(have) {
			t.Fatalf("round %d: %d rows of %d", round, s.n, len(have))
		}
	}
}

// TestCache: the cache holds the latest rows of the right shard, within its budget, and keeps
// rows that are used.
func TestCache(t *testing.T) {
	l := lay(t, small(), 1)
	c := NewCache(l, 64<<10)
	capacity := (64 << 10) / l.RowBytes / cacheWays * cacheWays
	if len(c.rows) > 64<<10 || len(c.keys) != capacity || capacity < 100 {
		t.Errorf("%d bytes, %d rows", len(c.rows), len(c.keys))
	}
	rng := rand.New(rand.NewPCG(1, 7))
	last, hot := map[[2]int]table.Row{}, 0
	for turn := range 20_000 {
		shard, n := rng.IntN(3), rng.IntN(1000)
		if turn%2 == 0 {
			n = rng.IntN(10)
		}
		want := last[[2]int{shard, n}]
		switch got := c.Row(shard, uint32(n)); {
		case got != nil && !bytes.Equal(got, want):
			t.Fatalf("row %d of shard %d is %x, want %x", n, shard, got, want)
		case got != nil && n < 10:
			hot++
		}
		r := fillRow(l.Form, shard, uint32(n), rng.IntN(8), turn%3)
		c.Put(shard, uint32(n), r)
		last[[2]int{shard, n}] = r
		if !bytes.Equal(c.Row(shard, uint32(n)), r) {
			t.Fatal("what was put is not there")
		}
	}
	if hot < 8500 {
		t.Errorf("%d of 10,000 looks at what is used much found it", hot)
	}
	none := NewCache(l, 100)
	if none.Put(0, 1, make(table.Row, l.RowBytes)); none.Row(0, 1) != nil || len(none.rows) > 0 {
		t.Error("a cache without a budget holds a row")
	}
	r := fillRow(l.Form, 0, 1, 8, 1)
	if got := testing.AllocsPerRun(1000, func() {
		c.Put(1, rng.Uint32N(5000), r)
		c.Row(1, rng.Uint32N(5000))
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkSearch(b *testing.B) {
	for _, c := range []struct {
		name string
		fill float64
	}{{"half full", 0.5}, {"90 %", 0.9}, {"95 %", 0.95}} {
		tab := filled(b, 2.3, 8, 4000, c.fill, 1)
		b.Run(c.name, func(b *testing.B) {
			var key [8]byte
			for n := uint64(0); b.Loop(); n++ {
				binary.LittleEndian.PutUint64(key[:], table.Spread(n))
				tab.search.Find(tab, tab.l.Place(key[:]), table.SearchDepth)
			}
		})
	}
}
