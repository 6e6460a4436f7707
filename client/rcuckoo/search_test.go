package rcuckoo

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// partly is a view that has only some rows of a table.
type partly struct {
	*Table
	known func(n uint32) bool
}

func (p partly) row(shard int, n uint32) row {
	if !p.known(n) {
		return nil
	}
	return p.Table.row(shard, n)
}

// table returns one that is about as full as it can be, or less.
func table(t testing.TB, factor float64, entries, rows int, fill float64, seed uint64) *Table {
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
		for slot := range t.l.entries {
			e := t.l.entry(t.row(0, i), slot)
			if !e.meta.used() {
				continue
			}
			n[string(t.l.key(e))]++
			if !t.l.place(t.l.key(e)).has(i) {
				tb.Fatalf("key %x is in row %d", t.l.key(e), i)
			}
		}
	}
	return n
}

// naive returns how many entries the best path moves: one to a free slot through rows that the
// view has, and one to a row that it does not have. math.MaxInt: there is none. It goes from one
// set of rows to all rows that they lead to.
func naive(v view, l *layout, at place, depth int) (sure, guess int) {
	sure, guess = math.MaxInt, math.MaxInt
	reached := map[uint32]bool{}
	frontier := []uint32{at.first, at.second}
	for d := 0; d <= depth && len(frontier) > 0; d++ {
		var next []uint32
		for _, n := range frontier {
			if reached[n] {
				continue
			}
			reached[n] = true
			r := v.row(0, n)
			if r == nil {
				guess = min(guess, d)
				continue
			}
			if l.used(r) < l.entries {
				sure = min(sure, d)
				continue
			}
			for slot := range l.entries {
				next = append(next, l.place(l.key(l.entry(r, slot))).other(n))
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
	results, lengths := map[found]int{}, map[int]int{}
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 1<<41))
		tab := table(t, some(rng, 1.5, 2.3, 5), some(rng, 1, 2, 3, 8), 1+rng.IntN(200), some(rng, 0.3, 0.9, 0.95, 1),
			seed)
		part, depth := some[uint64](rng, 0, 1, 4, 7, 8, 8, 8), rng.IntN(searchDepth+1)
		v := partly{tab, func(n uint32) bool { return spread(uint64(n))%8 < part }}
		at := tab.l.place(le.AppendUint64(nil, rng.Uint64()))
		path, result := tab.search.find(v, at, depth)
		sure, guess := naive(v, tab.l, at, depth)
		results[result]++
		moves, bad := len(path)-1, false
		switch result {
		case pathNone:
			bad = path != nil || sure != math.MaxInt || guess != math.MaxInt
		case pathGuessed:
			bad = moves != guess || v.row(0, path[0].row) != nil || path[0].slot != unknown || sure == 0 ||
				sure < math.MaxInt && guess > 0
		case pathFound:
			bad = moves != sure || guess == 0 && sure > 0 ||
				tab.l.entry(v.row(0, path[0].row), path[0].slot).meta.used()
			lengths[moves]++
		}
		if bad {
			t.Fatalf("seed %d: result %d, path %v, though the best path moves %d, and the best guess %d", seed,
				result, path, sure, guess)
		}
		if result != pathFound && (len(tab.search.missing) > 0) != (guess < math.MaxInt) {
			t.Fatalf("seed %d: missing rows %v, a guess moves %d", seed, tab.search.missing, guess)
		}
		leads(t, v, at, path)
	}
	if results[pathFound] < 200 || results[pathGuessed] < 200 || results[pathNone] < 50 || lengths[0] < 100 ||
		lengths[3] < 5 || lengths[5] == 0 {
		t.Errorf("the cases were %v, with paths of %v", results, lengths)
	}
}

// leads fails if a path does not end in one of a key's rows, or has a row twice.
func leads(t *testing.T, v partly, at place, path []step) {
	t.Helper()
	if len(path) > 0 && !at.has(path[len(path)-1].row) {
		t.Fatalf("path %v ends in none of the key's rows, %+v", path, at)
	}
	seen := map[uint32]bool{}
	for i, s := range path {
		if seen[s.row] {
			t.Fatalf("path %v has row %d twice", path, s.row)
		}
		seen[s.row] = true
		if i == 0 {
			continue
		}
		if p := v.l.place(v.l.key(v.l.entry(v.row(0, s.row), s.slot))); p.other(s.row) != path[i-1].row {
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
		tab := table(t, 2.3, some(rng, 2, 8), 2+rng.IntN(60), 1, seed)
		for i := 0; i < tab.l.Rows; i += 5 { // make room here and there
			if r := tab.row(0, rng.Uint32N(uint32(tab.l.Rows))); tab.l.meta(r, 1).used() {
				tab.l.drop(r, 1)
			}
		}
		before := tab.content(t)
		key := le.AppendUint64(nil, rng.Uint64())
		path, result := tab.search.find(tab, tab.l.place(key), searchDepth)
		if result == pathNone {
			continue
		}
		lengths[len(path)]++
		for i, s := range path {
			e := tab.l.inline(make([]byte, 8), key, nil)
			if i+1 < len(path) {
				e = tab.l.entry(tab.row(0, path[i+1].row), path[i+1].slot)
			}
			tab.l.put(tab.row(0, s.row), s.slot, e)
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
	tab := table(t, 2.3, 8, 100, 0.9, 1)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		for range 5 {
			r := tab.row(0, rng.Uint32N(100))
			r[rng.IntN(len(r))] ^= byte(1 << rng.IntN(8))
		}
		var key [8]byte
		le.PutUint64(key[:], rng.Uint64())
		path, _ := tab.search.find(tab, tab.l.place(key[:]), searchDepth)
		for i, s := range path {
			if s.row >= 100 || i > 0 && !tab.l.place(tab.l.key(tab.l.entry(tab.row(0, s.row), s.slot))).has(s.row) {
				t.Fatalf("path %v", path)
			}
		}
	}
}

// TestSearchAllocatesNothing: once its memory is large enough, a search allocates nothing,
// whether it finds a path or visits all rows.
func TestSearchAllocatesNothing(t *testing.T) {
	alone(t)
	tab := table(t, 2.3, 8, 1000, 0.97, 1)
	full := table(t, 2.3, 2, 60, 1, 1)
	for full.insert(slices.Repeat([]byte{byte(full.keys)}, 8)) != nil {
	}
	keys := make([]byte, 8)
	n := uint64(0)
	both := func() {
		n++
		le.PutUint64(keys, n)
		tab.search.find(tab, tab.l.place(keys), searchDepth)
		full.search.find(full, full.l.place(keys), searchDepth)
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
	c := newCache(l, 64<<10)
	capacity := (64 << 10) / l.rowBytes / cacheWays * cacheWays
	if len(c.rows) > 64<<10 || len(c.keys) != capacity || capacity < 100 {
		t.Errorf("%d bytes, %d rows", len(c.rows), len(c.keys))
	}
	rng := rand.New(rand.NewPCG(1, 7))
	last, hot := map[[2]int]row{}, 0
	for turn := range 20_000 {
		shard, n := rng.IntN(3), rng.IntN(1000)
		if turn%2 == 0 {
			n = rng.IntN(10)
		}
		want := last[[2]int{shard, n}]
		switch got := c.row(shard, uint32(n)); {
		case got != nil && !bytes.Equal(got, want):
			t.Fatalf("row %d of shard %d is %x, want %x", n, shard, got, want)
		case got != nil && n < 10:
			hot++
		}
		r := fillRow(l.form, shard, uint32(n), rng.IntN(8), turn%3)
		c.put(shard, uint32(n), r)
		last[[2]int{shard, n}] = r
		if !bytes.Equal(c.row(shard, uint32(n)), r) {
			t.Fatal("what was put is not there")
		}
	}
	if hot < 8500 {
		t.Errorf("%d of 10,000 looks at what is used much found it", hot)
	}
	none := newCache(l, 100)
	if none.put(0, 1, make(row, l.rowBytes)); none.row(0, 1) != nil || len(none.rows) > 0 {
		t.Error("a cache without a budget holds a row")
	}
	r := fillRow(l.form, 0, 1, 8, 1)
	if got := testing.AllocsPerRun(1000, func() {
		c.put(1, rng.Uint32N(5000), r)
		c.row(1, rng.Uint32N(5000))
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkSearch(b *testing.B) {
	for _, c := range []struct {
		name string
		fill float64
	}{{"half full", 0.5}, {"90 %", 0.9}, {"95 %", 0.95}} {
		tab := table(b, 2.3, 8, 4000, c.fill, 1)
		b.Run(c.name, func(b *testing.B) {
			var key [8]byte
			for n := uint64(0); b.Loop(); n++ {
				le.PutUint64(key[:], spread(n))
				tab.search.find(tab, tab.l.place(key[:]), searchDepth)
			}
		})
	}
}
