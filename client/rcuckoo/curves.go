package rcuckoo

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
)

// local is a table in the client's own memory, of one shard, which nobody shares: what the hashing and the search do, without
// the rest.
type local struct {
	l      *layout
	search *search
	memory []byte
	keys   int
}

func newLocal(factor float64, entries, rows int) (*local, error) {
	l, err := newLayout(Params{Shards: 1, Rows: rows, Entries: entries, KeyBytes: 8, F: factor, RowsPerLock: defaultLocked, LockWords: 1, Clients: 1,
		Timeout: time.Second}, 1)
	if err != nil {
		return nil, err
	}
	return &local{l: l, search: newSearch(l), memory: make([]byte, rows*l.rowBytes)}, nil
}

// row implements view.
func (t *local) row(_ int, n uint32) row {
	return row(t.memory[int(n)*t.l.rowBytes:][:t.l.rowBytes:t.l.rowBytes])
}

// fill returns the part of the entries that are used.
func (t *local) fill() float64 { return float64(t.keys) / float64(t.l.Rows*t.l.entries) }

// insert adds a key that is not there, and returns the path that it took; none when there is none.
func (t *local) insert(key []byte) []step {
	path, result := t.search.find(t, t.l.place(key), searchDepth)
	if result != pathFound {
		return nil
	}
	var p [8]byte
	for i, s := range path {
		e := t.l.inline(p[:], key, nil)
		if i+1 < len(path) {
			e = t.l.entry(t.row(0, path[i+1].row), path[i+1].slot)
		}
		t.l.put(t.row(0, s.row), s.slot, e)
	}
	t.keys++
	return path
}

// numbered writes the n-th key of a seed: one that no other n has.
func numbered(key []byte, seed, n uint64) { le.PutUint64(key, spread(n^spread(seed))) }

// fillUp inserts the keys of a seed until the table is so full, or as many inserts as mostFailed found no path: then it ends
// in client.ErrFull.
func (t *local) fillUp(seed uint64, fill float64, mostFailed int, each func(path []step)) (failed int, err error) {
	var key [8]byte
	for n := uint64(0); t.fill() < fill; n++ {
		numbered(key[:], seed, n)
		if path := t.insert(key[:]); path != nil {
			each(path)
		} else if failed++; failed >= mostFailed {
			return failed, fmt.Errorf("%d inserts found no path, with %.1f %% of %d entries used: %w", failed, 100*t.fill(), t.l.Rows*t.l.entries, client.ErrFull)
		}
	}
	return failed, nil
}

// Distances is Figure 4 (a): it hashes keys into a table, and counts, for each distance, those whose second row lies so far
// behind their first.
func Distances(factor float64, rows, keys int, seed uint64) ([]int, error) {
	t, err := newLocal(factor, defaultEntries, rows)
	if err != nil {
		return nil, err
	}
	n := make([]int, rows)
	var key [8]byte
	for i := range keys {
		numbered(key[:], seed, uint64(i))
		p := t.l.place(key[:])
		n[(int(p.second)-int(p.first)+rows)%rows]++
	}
	return n, nil
}

// MaxFill is Figure 4 (b): it fills a table until the first insert fails, and returns the part of the entries that are used
// then.
func MaxFill(factor float64, entries, rows int, seed uint64) (float64, error) {
	t, err := newLocal(factor, entries, rows)
	if err != nil {
		return 0, err
	}
	if _, err := t.fillUp(seed, 1, 1, func([]step) {}); err != nil && !errors.Is(err, client.ErrFull) {
		return 0, err
	}
	return t.fill(), nil
}

// Spans is Figure 4 (c): it fills a table to a part of its entries, and counts the inserts whose cuckoo paths span so many rows
// from the lowest to the highest, the shorter way round the table; 0 are those that move nothing. Inserts that find no path are
// left out, and counted. The error wraps client.ErrFull when there are as many of them as entries.
func Spans(factor float64, entries, rows int, fill float64, seed uint64) (spans []int, failed int, err error) {
	t, err := newLocal(factor, entries, rows)
	if err != nil {
		return nil, 0, err
	}
	n := make([]int, rows)
	failed, err = t.fillUp(seed, fill, entries*rows, func(path []step) { n[span(path, rows)]++ })
	return n, failed, err
}

// span returns the distance between the lowest and the highest row of a path, on the shorter way round the table: all but the
// widest gap between its neighbours.
func span(path []step, rows int) int {
	widest := 0
	for _, a := range path {
		gap := rows // to the next one of the path, on the way round
		for _, b := range path {
			if d := (int(b.row) - int(a.row) + rows) % rows; d > 0 {
				gap = min(gap, d)
			}
		}
		widest = max(widest, gap)
	}
	return rows - widest
}
