package board

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// Memory returns a Store within this process, for tests and for pools that end with it.
func Memory() Store { return &memory{records: map[string]Record{}} }

type memory struct {
	mu      sync.Mutex
	records map[string]Record
}

// Load returns a record.
func (m *memory) Load(key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[key]
	return bytes.Clone(r.Value), r.Version, nil
}

// Swap replaces a record.
func (m *memory) Swap(key string, version uint64, value []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[key].Version != version {
		return false, nil
	}
	m.records[key] = Record{Key: key, Value: bytes.Clone(value), Version: version + 1}
	return true, nil
}

// List returns the records whose keys begin so.
func (m *memory) List(prefix string) ([]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Record
	for key, r := range m.records {
		if strings.HasPrefix(key, prefix) {
			r.Value = bytes.Clone(r.Value)
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}
