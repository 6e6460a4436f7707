package rcuckoo

import "time"

// Table is a table of one shard in local memory, which no other client shares: the hashing and
// the search without locks, verbs and crashes. It is for measurements of how full tables become
// (section 3.3). Its keys are generated from a seed.
type Table struct {
	l      *layout
	search *search
	memory []byte // all rows
	keys   int    // that were inserted
	seed   uint64
	path   []int // what the last Insert returned
}

// NewTable returns an empty table. The error wraps ErrParams.
func NewTable(factor float64, entries, rows int, seed uint64) (*Table, error) {
	l, err := newLayout(Params{Shards: 1, Rows: rows, Entries: entries, KeyBytes: 8, F: factor,
		RowsPerLock: DefaultLocked, LockWords: 1, Clients: 1, Timeout: time.Second}, 1)
	if err != nil {
		return nil, err
	}
	return &Table{l: l, search: newSearch(l), memory: make([]byte, rows*l.rowBytes), seed: seed}, nil
}

// row implements view.
func (t *Table) row(_ int, n uint32) row {
	return row(t.memory[int(n)*t.l.rowBytes:][:t.l.rowBytes:t.l.rowBytes])
}

// Fill returns the part of the entries that are used.
func (t *Table) Fill() float64 { return float64(t.keys) / float64(t.l.Rows*t.l.entries) }

// key returns the n-th key of the seed. Different n have different keys, as spread is a
// permutation.
func (t *Table) key(n uint64) (key [8]byte) {
	le.PutUint64(key[:], spread(n^spread(t.seed)))
	return key
}

// Rows returns the two rows of the n-th key.
func (t *Table) Rows(n uint64) (first, second int) {
	key := t.key(n)
	p := t.l.place(key[:])
	return int(p.first), int(p.second)
}

// Insert adds the n-th key, which must not be there, and returns the rows of its cuckoo path;
// none when there is no path. The caller may read them until the next call.
func (t *Table) Insert(n uint64) []int {
	key := t.key(n)
	t.path = t.path[:0]
	for _, s := range t.insert(key[:]) {
		t.path = append(t.path, int(s.row))
	}
	return t.path
}

// insert changes rows in place, and does not seal them: no other client reads them.
func (t *Table) insert(key []byte) []step {
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
