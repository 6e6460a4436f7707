package search

import (
	"encoding/binary"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/table"
)

// Table is a table of one shard in local memory, which no other client shares: the hashing and
// the search without locks, verbs and crashes. It is for measurements of how full tables become
// (section 3.3). Its keys are generated from a seed.
type Table struct {
	l      *table.Layout
	search *Search
	memory []byte // all rows
	keys   int    // that were inserted
	seed   uint64
	path   []int // what the last Insert returned
}

// NewTable returns an empty table. The error wraps ErrParams.
func NewTable(factor float64, entries, rows int, seed uint64) (*Table, error) {
	l, err := table.New(table.Params{Shards: 1, Rows: rows, Entries: entries, KeyBytes: 8, F: factor,
		RowsPerLock: table.DefaultLocked, LockWords: 1, Clients: 1, Timeout: time.Second}, 1)
	if err != nil {
		return nil, err
	}
	return &Table{l: l, search: New(l), memory: make([]byte, rows*l.RowBytes), seed: seed}, nil
}

// Row implements view.
func (t *Table) Row(_ int, n uint32) table.Row {
	return table.Row(t.memory[int(n)*t.l.RowBytes:][:t.l.RowBytes:t.l.RowBytes])
}

// Fill returns the part of the entries that are used.
func (t *Table) Fill() float64 { return float64(t.keys) / float64(t.l.Rows*t.l.Slots) }

// key returns the n-th key of the seed. Different n have different keys, as spread is a
// permutation.
func (t *Table) key(n uint64) (key [8]byte) {
	binary.LittleEndian.PutUint64(key[:], table.Spread(n^table.Spread(t.seed)))
	return key
}

// Rows returns the two rows of the n-th key.
func (t *Table) Rows(n uint64) (first, second int) {
	key := t.key(n)
	p := t.l.Place(key[:])
	return int(p.First), int(p.Second)
}

// Insert adds the n-th key, which must not be there, and returns the rows of its cuckoo path;
// none when there is no path. The caller may read them until the next call.
func (t *Table) Insert(n uint64) []int {
	key := t.key(n)
	t.path = t.path[:0]
	for _, s := range t.insert(key[:]) {
		t.path = append(t.path, int(s.Row))
	}
	return t.path
}

// insert changes rows in place, and does not seal them: no other client reads them.
func (t *Table) insert(key []byte) []Step {
	path, result := t.search.Find(t, t.l.Place(key), table.SearchDepth)
	if result != PathFound {
		return nil
	}
	var p [8]byte
	// In the order in which a client writes rows: each row gives its entry to the one before it,
	// and only then gets another in the same slot.
	for i, s := range path {
		e := t.l.Inline(p[:], key, nil)
		if i+1 < len(path) {
			e = t.l.Entry(t.Row(0, path[i+1].Row), path[i+1].Slot)
		}
		t.l.Put(t.Row(0, s.Row), s.Slot, e)
	}
	t.keys++
	return path
}
