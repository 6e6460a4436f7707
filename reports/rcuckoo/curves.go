package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
)

// fillUp inserts keys until the part fill of the table is used. When mostFailed inserts have found
// no path, it returns client.ErrFull.
func fillUp(t *stores.CuckooTable, fill float64, mostFailed int, each func(path []int)) (failed int, err error) {
	for n := uint64(0); t.Fill() < fill; n++ {
		if path := t.Insert(n); len(path) > 0 {
			each(path)
		} else if failed++; failed >= mostFailed {
			return failed, fmt.Errorf("%d inserts found no path, with %.1f %% of the entries used: %w", failed,
				100*t.Fill(), client.ErrFull)
		}
	}
	return failed, nil
}

// distances is Figure 4 (a): it hashes keys into a table, and counts, for each distance, the
// keys with a second row that far behind their first.
func distances(factor float64, rows, keys int, seed uint64) ([]int, error) {
	t, err := stores.NewCuckooTable(factor, paperRow, rows, seed)
	if err != nil {
		return nil, err
	}
	n := make([]int, rows)
	for i := range keys {
		first, second := t.Rows(uint64(i))
		n[(second-first+rows)%rows]++
	}
	return n, nil
}

// maxFill is Figure 4 (b): it fills a table until the first insert fails, and returns the part of
// the entries that are used then.
func maxFill(factor float64, entries, rows int, seed uint64) (float64, error) {
	t, err := stores.NewCuckooTable(factor, entries, rows, seed)
	if err != nil {
		return 0, err
	}
	if _, err := fillUp(t, 1, 1, func([]int) {}); err != nil && !errors.Is(err, client.ErrFull) {
		return 0, err
	}
	return t.Fill(), nil
}

// spans is Figure 4 (c): it fills a table to a part of its entries, and counts inserts by the
// span of their cuckoo paths: the rows from the lowest to the highest, the shorter way round the
// table. Inserts that move nothing have span 0. Inserts that find no path are left out, and
// counted. The error wraps client.ErrFull when there are as many of them as entries.
func spans(factor float64, entries, rows int, fill float64, seed uint64) (spread, error) {
	t, err := stores.NewCuckooTable(factor, entries, rows, seed)
	if err != nil {
		return spread{}, err
	}
	s := spread{counts: make([]int, rows)}
	s.failed, err = fillUp(t, fill, entries*rows, func(path []int) { s.counts[span(path, rows)]++ })
	return s, err
}

// span returns the distance between the lowest and the highest row of a path, on the shorter way
// round the table: all but the widest gap between its neighbours.
func span(path []int, rows int) int {
	widest := 0
	for _, a := range path {
		gap := rows // to the next one of the path, on the way round
		for _, b := range path {
			if d := (b - a + rows) % rows; d > 0 {
				gap = min(gap, d)
			}
		}
		widest = max(widest, gap)
	}
	return rows - widest
}
