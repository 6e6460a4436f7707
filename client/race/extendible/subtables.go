package extendible

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
)

// takeSubtable takes memory for a subtable, on the home node if there is some, or
// else on another: what an earlier rehash had taken in vain, or what was never
// used. The error wraps client.ErrFull.
func (m *memory) takeSubtable(home int) (uint64, error) {
	if n := len(m.spare); n > 0 {
		place := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return place, nil
	}
	for k := range m.nodes {
		n := (home + k) % m.nodes
		if m.barren[n] {
			continue
		}
		got, ok, err := m.table.Fresh(&m.subtables, n, classSubtable, int(m.subtables.Count), 0, m.trips.Left())
		if err != nil {
			return 0, err
		}
		if ok {
			return m.place(n, got.Index), nil
		}
		m.barren[n] = true
	}
	return 0, m.noSubtable()
}

// noSubtable is the error that says that there is no memory for a subtable.
func (m *memory) noSubtable() error {
	return fmt.Errorf("no memory for one more subtable of %d bytes: %w", m.subtables.Bytes, client.ErrFull)
}

// bare reports whether the client knows that takeSubtable finds nothing.
func (m *memory) bare() bool { return len(m.spare) == 0 && !slices.Contains(m.barren, false) }

// reclaimSubtable takes memory for a subtable that a client had taken and not used.
// The error wraps client.ErrFull. It may wait for a lock of an entry, so the client
// must have none.
func (m *memory) reclaimSubtable() (uint64, error) {
	if m.lately(m.dense) {
		return 0, m.noSubtable()
	}
	for n := range m.nodes {
		place, err := m.claimSubtable(n)
		if err != nil || place != 0 {
			return place, err
		}
	}
	m.dense = max(m.ep.Now(), 1)
	return 0, m.noSubtable()
}

// claimSubtable takes memory that a client had taken for a subtable which it has
// not made; 0: there is none on that node. The memory may have been written, but
// no slot of it was ever CASed.
func (m *memory) claimSubtable(n int) (place uint64, err error) {
	err = m.table.Left(&m.subtables, n, 1, nil, func(some []chunks.Chunk) (bool, error) {
		got, err := m.table.Claim(&m.subtables, some)
		if err != nil || len(got) == 0 {
			return false, err
		}
		mine := m.place(n, got[0].Index)
		// The client that had the memory may have made a subtable of it. Its
		// header says which entry to ask.
		named, err := m.directory.named(mine)
		switch {
		case err != nil:
			return false, err
		case named:
			return false, m.table.Free(&m.subtables, got)
		}
		place = mine
		return true, nil
	})
	return place, err
}
