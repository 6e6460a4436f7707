package search

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/client/rcuckoo/table"
)

// forest has the rows of a table that were made, and how often each was divided.
type forest struct {
	l    *table.Layout
	rows []table.Row
}

// drawForest divides rows of a new table in any order.
func drawForest(r *rapid.T) *forest {
	p := small()
	p.Rows, p.Levels = rapid.IntRange(1, 5).Draw(r, "rows"), rapid.IntRange(1, 5).Draw(r, "levels")
	l, err := table.New(p, 1)
	if err != nil {
		r.Fatal(err)
	}
	f := &forest{l, make([]table.Row, l.AllRows())}
	for i := range f.rows {
		f.rows[i] = make(table.Row, l.RowBytes)
	}
	for range rapid.IntRange(0, 60).Draw(r, "divisions") {
		id := rapid.Uint32Max(uint32(len(f.rows)-1)).Draw(r, "row")
		level := l.Level(f.rows[id])
		if level == p.Levels || !l.Made(id, f.rows[id]) {
			continue
		}
		version := l.Version(f.rows[id]) + table.Divided
		l.Seal(f.rows[id], 0, id, version)
		l.Seal(f.rows[l.Child(id, level)], 0, l.Child(id, level), version)
	}
	return f
}

// Row implements view.
func (f *forest) Row(_ int, n uint32) table.Row { return f.rows[n] }

// TestOneRowForEachKey: whichever rows were divided, a key belongs into exactly one row of a
// number, and from each guess the way to it is short.
func TestOneRowForEachKey(t *testing.T) {
	alone(t)
	rapid.Check(t, func(r *rapid.T) {
		f := drawForest(r)
		l := f.l
		s := New(l)
		s.Levels.Words[0] = rapid.Uint64().Draw(r, "growth") % (uint64(l.Levels+1) << table.LevelShift)
		for number := range uint32(l.Rows) {
			for segment := range uint32(1) << l.Levels {
				var home []uint32
				for id := number; int(id) < len(f.rows); id += uint32(l.Rows) {
					if l.Belongs(id, segment, f.rows[id]) {
						home = append(home, id)
					}
				}
				if len(home) != 1 {
					r.Fatalf("bits %b of number %d belong into rows %v", segment, number, home)
				}
				for guess := range l.Levels + 1 {
					id, ok := number+uint32(l.Rows)*(segment&(1<<guess-1)), false
					for range l.Levels + 1 {
						if id, ok = l.Right(id, segment, f.rows[id]); ok {
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
				if id := s.Levels.Guess(0, number, segment); l.Number(id) != number ||
					bits.Len32(l.Segment(id)) > l.Levels || segment&(1<<l.Birth(id)-1) != l.Segment(id) {
					r.Fatalf("bits %b of number %d are guessed in row %d", segment, number, id)
				}
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
	s := New(l)
	old, after := make(table.Row, l.RowBytes), make(table.Row, l.RowBytes)
	l.Seal(after, 0, 1, table.LevelOne+1)
	for _, word := range []uint64{0, table.LevelOne, table.LevelOne | 4} { // the guess begins with either
		s.Levels.Words[0] = word
		if id, r := s.resolve(Neighbourhood{1: after, 5: old}, 0, 1, 1); id != 5 || r != nil {
			t.Errorf("growth %#x: row %d, %v", word, id, r)
		}
	}
}

// TestNotMade: no entry is put into a row that is not made, though it looks free.
func TestNotMade(t *testing.T) {
	p := small()
	p.Shards, p.Rows, p.Levels, p.Entries = 1, 2, 1, 1
	l := lay(t, p, 1)
	s := New(l)
	s.Levels.Words[0] = table.LevelOne | 1 // all rows were to be divided, and none was
	full := func(id uint32) table.Row {
		r := fillRow(l.Form, 0, id, 1, 1)
		return r
	}
	v := Neighbourhood{0: full(0), 1: full(1), 2: make(table.Row, l.RowBytes), 3: make(table.Row, l.RowBytes)}
	path, result := s.Find(v, table.Place{First: 2, Second: 3, Bits: 1}, table.SearchDepth)
	if result == PathFound {
		t.Errorf("a path leads to row %d", path[0].Row)
	}
}
