package membership

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Memory returns a Store within this process, for tests and for pools that end with the process.
func Memory() Store { return &memory{records: map[string]Record{}} }

// memory is a Store of one map. It copies values on their way in and out, so that callers own
// theirs.
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

// Swap replaces a record, if it has the given version.
func (m *memory) Swap(key string, version uint64, value []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[key].Version != version {
		return false, nil
	}
	m.records[key] = Record{Key: key, Value: bytes.Clone(value), Version: version + 1}
	return true, nil
}

// Look returns a record, and those of which the keys begin with prefix. Here they are a snapshot.
func (m *memory) Look(key, prefix string) (first Record, all []Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, r := range m.records {
		r.Value = bytes.Clone(r.Value)
		if k == key {
			first = r
		}
		if strings.HasPrefix(k, prefix) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return first, all, nil
}

// Await waits for a later version of a record.
func (m *memory) Await(ctx context.Context, key string, version uint64) error {
	return poll(ctx, func() (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.records[key].Version > version, nil
	})
}

// watchPace is the longest pause of a watch between two looks. The pauses are random, half as long
// on average.
const watchPace = 100 * time.Millisecond

// poll calls look, after random pauses, until look reports true or the Store is closed, or ctx
// ends. Other errors of look are passed over: the next look may succeed. The pauses are random, so
// that watches that began together do not look together.
func poll(ctx context.Context, look func() (bool, error)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(watchPace)):
		}
		if seen, err := look(); seen || errors.Is(err, rdma.ErrClosed) {
			return err
		}
	}
}
