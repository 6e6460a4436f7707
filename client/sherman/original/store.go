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
	// CacheBytes is for internal nodes; 0: none is remembered; default 4 MiB. (The paper's has about 1
	// GB, which all workers of a compute node share.)
	CacheBytes *int
	Timeout    time.Duration // of an operation; default, and at most, what the pool was made for
	// Turns are the local locks of the worker's process; nil: it shares none.
	Turns Turns
}

// DefaultCache is the default of Options.CacheBytes.
const DefaultCache = 4 << 20

// Stats count what leaves the common case. They only grow.
type Stats struct {
	Fetched   uint64 // internal nodes that were read
	Hops      uint64 // siblings that were followed
	Torn      uint64 // nodes that were read again
	Waits     uint64 // CASes that did not get a lock
	Turns     uint64 // looks at a line of local waiters
	HandOvers uint64 // locks that were taken over in the process
	Splits    uint64
	Lagging   uint64 // splits whose separators were not inserted at once
	Settled   uint64 // operations of unknown outcome that were settled
}

// Store is one worker's view of a tree. It implements client.Store and client.Scanner, and is not
// safe for concurrent use.
type Store struct {
	*layout
	ep      rdma.Endpoint
	id      rdma.ClientID
	view    *kit.Member
	timeout time.Duration
	turns   Turns
	turn    Waiter
	cache   *cache
	root    root // as it was read last; 0: it is to be read
	pace    kit.Retry

	// The operation at work.
	decideBy, until time.Duration
	sent            bool // the last batch was posted
	seq             uint8
	key             []byte // of a write
	kind            int    // of the slot that an UPDATE writes, and its value's word
	word            uint64
	above           ref // the internal node that led to the leaf; 0: none did
	held            held
	fresh           fresh
	debt            debt

	memory  memory
	pending []separator

	// Buffers that are used again.
	out     []byte
	order   []int
	entries []entry
	scan    scan

	// Functions that are made once, so that operations allocate nothing.
	tryInsert, tryUpdate, tryRemove func(key, value []byte) (done bool, err error)

	stats Stats
}

var (
	_ client.Store     = (*Store)(nil)
	_ client.Scanner   = (*Store)(nil)
	_ client.Countable = (*Store)(nil)
)

// Open returns a worker's view of the pool that ep reaches.
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

func (l *layout) open(ep rdma.Endpoint, v *kit.Member, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	if o.Timeout > l.Timeout {
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	s := &Store{layout: l, ep: ep, id: ep.Client(), view: v, timeout: o.Timeout, turns: o.Turns}
	if s.turns == nil {
		s.turns = NewLocalLocks(0)
	}
	s.cache = newCache(&l.format, *cmp.Or(o.CacheBytes, new(DefaultCache)))
	s.pace = kit.Retry{Env: ep, Pause: forLocks, Over: s.over}
	s.tryInsert, s.tryUpdate, s.tryRemove = s.insert, s.update, s.remove
	s.memory.open(s)
	s.span()
	return s, nil
}

// MaxPair returns the most bytes that a key and its value may have together.
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

// begin begins an operation.
func (s *Store) begin(key, value []byte) error {
	if len(key) > s.KeyBytes || len(value) > s.ValueBytes {
		return fmt.Errorf("a key of %d bytes, a value of %d: the pool takes %d and %d: %w", len(key), len(value),
			s.KeyBytes,
			s.ValueBytes, client.ErrTooLarge)
	}
	s.span()
	return nil
}

// Close gives back what the worker holds in the pool. When it fails, the client is to be recovered,
// and the error wraps client.ErrUncertain.
func (s *Store) Close() error {
	s.span()
	if err := s.leave(); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}
