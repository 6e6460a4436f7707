package original

import (
	"cmp"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Options of a worker. Zero values mean defaults.
type Options struct {
	// CacheBytes is the budget for internal nodes; 0: none is remembered; nil:
	// DefaultCache. (The paper's cache has about 1 GB, which all workers of a
	// compute node share.)
	CacheBytes *int
	// Timeout bounds an operation. Default and maximum are the pool's.
	Timeout time.Duration
	// Turns are the local locks of the worker's process; nil: the worker shares
	// none.
	Turns Turns
}

// DefaultCache is the default of Options.CacheBytes.
const DefaultCache = 4 << 20

// Stats count what leaves the common case. They only grow.
type Stats struct {
	// Fetched counts internal nodes that were read.
	Fetched uint64
	// Hops counts siblings that were followed.
	Hops uint64
	// Torn counts nodes that were read again.
	Torn uint64
	// Waits counts CASes that did not get a lock.
	Waits uint64
	// Turns counts looks at a line of local waiters.
	Turns uint64
	// HandOvers counts locks that were taken over within the process.
	HandOvers uint64
	// Splits counts splits, and Lagging those of which the separators were not
	// inserted at once.
	Splits  uint64
	Lagging uint64
	// Settled counts operations of unknown outcome that were settled.
	Settled uint64
}

// Store is one worker's view of a tree. It implements client.Store and client.Scanner, and is not
// safe for concurrent use. Its parts know those above them in this list.
type Store struct {
	*session
	*tree
	*memory
	*locker
	// scan is the state of a Scan, and keeps its buffers.
	scan scan
	// order and entries are buffers that are used again.
	order   []int
	entries []entry

	// These functions are made once, so that operations allocate nothing.
	tryInsert, tryUpdate, tryRemove func(key, value []byte) (done bool, err error)
}

var (
	_ client.Store     = (*Store)(nil)
	_ client.Scanner   = (*Store)(nil)
	_ client.Countable = (*Store)(nil)
)

// Open returns a worker's view of the pool that ep reaches. The endpoint stays
// the caller's, and must not be used otherwise until Close.
func Open(ep rdma.Endpoint, o Options) (*Store, error) {
	l, v, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	s, err := l.open(ep, v, o)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	return s, nil
}

// open is Open of a layout that was read before.
func (l *layout) open(ep rdma.Endpoint, v *kit.Member, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	if o.Timeout > l.Timeout {
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	e := newSession(l, ep, v, o.Timeout)
	r := &tree{session: e, cache: newCache(&l.format, *cmp.Or(o.CacheBytes, new(DefaultCache)))}
	m := newMemory(e)
	k := &locker{session: e, tree: r, memory: m, turns: o.Turns}
	// The worker stands in lines of its own, so that it waits for none.
	if k.turns == nil {
		k.turns = NewLocalLocks(0)
	}
	s := &Store{session: e, tree: r, memory: m, locker: k, scan: scan{tree: r}}
	s.tryInsert, s.tryUpdate, s.tryRemove = s.insert, s.update, s.remove
	s.span()
	return s, nil
}

// MaxPair returns how many bytes a key and its value may have together.
func (s *Store) MaxPair() int { return s.KeyBytes + s.ValueBytes }

// Stats returns the worker's counters.
func (s *Store) Stats() Stats { return s.stats }

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	return append(to,
		telemetry.Counter{Name: "internal nodes read", Count: s.stats.Fetched},
		telemetry.Counter{Name: "siblings followed", Count: s.stats.Hops},
		telemetry.Counter{Name: "nodes read again", Count: s.stats.Torn},
		telemetry.Counter{Name: "locks waited for", Count: s.stats.Waits},
		telemetry.Counter{Name: "locks handed over", Count: s.stats.HandOvers},
		telemetry.Counter{Name: "splits", Count: s.stats.Splits},
		telemetry.Counter{Name: "writes settled", Count: s.stats.Settled},
	)
}

// begin begins an operation. The error wraps client.ErrTooLarge.
func (s *Store) begin(key, value []byte) error {
	if len(key) > s.KeyBytes || len(value) > s.ValueBytes {
		return fmt.Errorf("a key of %d bytes, a value of %d: the pool takes %d and %d: %w", len(key), len(value),
			s.KeyBytes, s.ValueBytes, client.ErrTooLarge)
	}
	s.span()
	return nil
}

// Close gives back what the worker holds in the pool. If it fails the client is
// to be recovered, and the error wraps client.ErrUncertain.
func (s *Store) Close() error {
	s.span()
	if err := s.leave(); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}
