package rcuckoo

import (
	"math/bits"
	"testing"

	"github.com/farkv/farkv/client"
	"pgregory.net/rapid"
)

// forest has the rows of a table that were made, and how often each was divided.
type forest struct {
	l    *layout
	rows []row
}

// drawForest divides rows of a new table in any order.
func drawForest(r *rapid.T) *forest {
	p := small()
	p.Rows, p.Levels = rapid.IntRange(1, 5).Draw(r, "rows"), rapid.IntRange(1, 5).Draw(r, "levels")
	l, err := newLayout(p, 1)
	if err != nil {
		r.Fatal(err)
	}
	f := &forest{l, make([]row, l.allRows())}
	for i := range f.rows {
		f.rows[i] = make(row, l.rowBytes)
	}
	for range rapid.IntRange(0, 60).Draw(r, "divisions") {
		id := rapid.Uint32Max(uint32(len(f.rows)-1)).Draw(r, "row")
		level := l.level(f.rows[id])
		if level == p.Levels || !l.made(id, f.rows[id]) {
			continue
		}
		version := l.version(f.rows[id]) + divided
		l.seal(f.rows[id], 0, id, version)
		l.seal(f.rows[l.child(id, level)], 0, l.child(id, level), version)
	}
	return f
}

// row implements view.
func (f *forest) row(_ int, n uint32) row { return f.rows[n] }

// TestOneRowForEachKey: whichever rows were divided, a key belongs into exactly one row of a
// number, and from each guess the way to it is short.
func TestOneRowForEachKey(t *testing.T) {
	alone(t)
	rapid.Check(t, func(r *rapid.T) {
		f := drawForest(r)
		l := f.l
		s := newSearch(l)
		s.levels.words[0] = rapid.Uint64().Draw(r, "growth") % (uint64(l.Levels+1) << levelShift)
		for number := range uint32(l.Rows) {
			for segment := range uint32(1) << l.Levels {
				var home []uint32
				for id := number; int(id) < len(f.rows); id += uint32(l.Rows) {
					if l.belongs(id, segment, f.rows[id]) {
						home = append(home, id)
					}
				}
				if len(home) != 1 {
					r.Fatalf("bits %b of number %d belong into rows %v", segment, number, home)
				}
				for guess := range l.Levels + 1 {
					id, ok := number+uint32(l.Rows)*(segment&(1<<guess-1)), false
					for range l.Levels + 1 {
						if id, ok = l.right(id, segment, f.rows[id]); ok {
							break
						}
					}
					if !ok || id != home[0] {
						r.Fatalf(
							"bits %b of number %d, guessed at level %d, are looked for in row %d, and belong into %d",
							segment, number, guess, id, home[0])
					}
				}
				if id, at := s.resolve(f, 0, number, segment); id != home[0] || at == nil {
					r.Fatalf("bits %b of number %d: a search finds row %d, not %d", segment, number, id, home[0])
				}
				if id := s.levels.guess(0, number, segment); l.number(id) != number ||
					bits.Len32(l.segment(id)) > l.Levels || segment&(1<<l.birth(id)-1) != l.segment(id) {
					r.Fatalf("bits %b of number %d are guessed in row %d", segment, number, id)
				}
			}
		}
	})
}

// TestShares: each row of the segments before a level is in exactly one share, shareOf and shared
// agree on it, and the share is handed out before the cursor's end.
func TestShares(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := small()
		p.Rows, p.Levels, p.RowsPerLock = rapid.IntRange(1, 200).Draw(r, "rows"), 3,
			rapid.IntRange(1, 40).Draw(r, "rows a lock")
		l, err := newLayout(p, 1)
		if err != nil {
			r.Fatal(err)
		}
		level := rapid.IntRange(1, 3).Draw(r, "level")
		seen := make([]int, p.Rows<<(level-1))
		for share := range l.ends(level) {
			from, to := l.shared(share)
			if to-from > growShare || int(to) > len(seen) {
				r.Fatalf("share %d of level %d has rows %d to %d", share, level, from, to)
			}
			for id := from; id < to; id++ {
				if seen[id]++; l.shareOf(id) != share {
					r.Fatalf("row %d is in share %d, and says %d", id, share, l.shareOf(id))
				}
			}
		}
		for id, n := range seen {
			if n != 1 {
				r.Fatalf("row %d is in %d shares", id, n)
			}
		}
	})
}

// TestContradiction: if a view has two rows from different moments, and each leads to the other,
// the row of the later segment is read again.
func TestContradiction(t *testing.T) {
	p := small()
	p.Rows, p.Levels = 4, 2
	l := lay(t, p, 1)
	s := newSearch(l)
	old, after := make(row, l.rowBytes), make(row, l.rowBytes)
	l.seal(after, 0, 1, levelOne+1)
	for _, word := range []uint64{0, levelOne, levelOne | 4} { // the guess begins with either
		s.levels.words[0] = word
		if id, r := s.resolve(neighbourhood{1: after, 5: old}, 0, 1, 1); id != 5 || r != nil {
			t.Errorf("growth %#x: row %d, %v", word, id, r)
		}
	}
}

// TestNotMade: no entry is put into a row that is not made, though it looks free.
func TestNotMade(t *testing.T) {
	p := small()
	p.Shards, p.Rows, p.Levels, p.Entries = 1, 2, 1, 1
	l := lay(t, p, 1)
	s := newSearch(l)
	s.levels.words[0] = levelOne | 1 // all rows were to be divided, and none was
	full := func(id uint32) row {
		r := fillRow(l.form, 0, id, 1, 1)
		return r
	}
	v := neighbourhood{0: full(0), 1: full(1), 2: make(row, l.rowBytes), 3: make(row, l.rowBytes)}
	path, result := s.find(v, place{first: 2, second: 3, bits: 1}, searchDepth)
	if result == pathFound {
		t.Errorf("a path leads to row %d", path[0].row)
	}
}

// TestOffCostsNothing: a pool with tables that do not grow and extents of one size has the same
// layout as before either existed.
func TestOffCostsNothing(t *testing.T) {
	oneClass := extentPool(5)
	oneClass.Classes = 0
	for _, c := range []struct {
		p    Params
		want [4]uint64
	}{
		{inlinePool(2), [4]uint64{819200, 175808, 819008, 1984}},
		{oneClass, [4]uint64{3817472, 309952, 551872, 896}},
		{small(), [4]uint64{749568, 17664, 721664, 640}},
	} {
		l := lay(t, c.p, 2)
		if got := [4]uint64{l.bytes, l.rows.base, l.slabs.base, l.redo}; got != c.want {
			t.Errorf("%+v: %v, want %v", c.p, got, c.want)
		}
	}
	s := storeOn(t, memPool(t, 1, inlinePool(1)), Options{})
	if at := s.where([]byte("key")); at != s.place([]byte("key")) || at.bits != 0 {
		t.Errorf("%+v", at)
	}
}

// TestTripsGrown: while a table stays at one level, operations take as many trips as in a table
// that does not grow. A key in a row that was divided since costs a GET one trip more, once.
func TestTripsGrown(t *testing.T) {
	p := inlinePool(1)
	p.Levels = 3
	f := memPool(t, 1, p)
	s, r := storeOn(t, f, Options{}), storeOn(t, f, Options{})
	key := []byte("key")
	for s.place(key).bits&1 == 0 || s.place(key).first == s.place(key).second {
		key = append(key, '.')
	}
	check := func(level string) {
		t.Helper()
		at := s.place(key)
		first, _ := s.lockOf(at.first)
		second, _ := s.lockOf(at.second)
		locks := uint64(1)
		if first != second {
			locks = 2
		}
		for _, c := range []struct {
			what string
			s    *Store
			f    func(s *Store) error
			fail error
			want cost
		}{
			{"get that misses", s, func(s *Store) error { _, err := s.Get(key); return err }, client.ErrNotFound,
				cost{2, 2}},
			{"insert", s, func(s *Store) error { return s.Insert(key, key) }, nil, cost{locks + 2, locks + 2}},
			{"update", s, func(s *Store) error { return s.Update(key, key) }, nil, cost{locks + 2, locks + 2}},
			{"get", s, func(s *Store) error { _, err := s.Get(key); return err }, nil, cost{1, 1}},
			{"another's get", r, func(s *Store) error { _, err := s.Get(key); return err }, nil, cost{1, 1}},
			{"delete", s, func(s *Store) error { return s.Delete(key) }, nil, cost{locks + 2, locks + 2}},
		} {
			if got := c.s.costs(t, func() error { return c.f(c.s) }, c.fail); got != c.want {
				t.Errorf("%s, %s: %+v, want %+v", level, c.what, got, c.want)
			}
		}
	}
	check("level 0")
	// The keys of many rows are there while another client divides all of them.
	must(t, s.Insert(key, key))
	s.begin()
	must(t, s.raise(0, 0))
	for {
		_, cursor := growthOf(s.levels.words[0])
		if cursor >= s.ends(1) {
			break
		}
		must(t, s.share(0))
	}
	if got := r.costs(t, func() error { _, err := r.Get(key); return err }, nil); got != (cost{2, 2}) {
		t.Errorf("get of a key that has moved: %+v", got)
	}
	must(t, s.Delete(key))
	check("level 1")
	judge(t, f)
}
