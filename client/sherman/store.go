package sherman

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Options of a worker. Zero values mean defaults.
type Options struct {
	// Format is RTX or DTX, which the pool has to be; "": either.
	Format string
	// CacheBytes is for internal nodes, and for the metadata of objects, half of it each; 0: neither
	// is remembered; default 4 MiB.
	CacheBytes *int
	Timeout    time.Duration // of an operation; default, and at most, what the pool was made for
	// Forgetful workers remember no metadata: they read each object's before its data, as the paper's
	// do. So a READ takes two trips, and none reads data that has been replaced. Internal nodes have
	// their half of CacheBytes.
	Forgetful bool
	// Without is what of the protocol is left out, to measure what it costs.
	Without Without
}

// Without names parts of a protocol that is measured without them (section 6.3 of rTX's paper).
type Without uint8

const (
	// EarlyLocks are OPT2: without them a leaf is locked when the transaction that changes it commits.
	EarlyLocks Without = 1 << iota
	// LogElision is OPT1: without it each transaction of package rtx has a log.
	LogElision
	// Logs are those of package dtx: without them a crash leaves what nothing repairs.
	Logs
)

// DefaultCache is the default of Options.CacheBytes.
const DefaultCache = 4 << 20

// Stats count what leaves the common case. They only grow.
type Stats struct {
	Fetched uint64 // internal nodes that were READ
	Stale   uint64 // ways to a leaf that were outdated
	Splits  uint64 // of nodes, those that only began included
	Merges  uint64
	Kept    uint64 // nodes with few entries that were not merged, as something was in the way
}

// Store is one worker's view of a tree. It implements client.Store and client.Scanner, and is not
// safe for concurrent use.
type Store struct {
	*layout
	ep      rdma.Endpoint
	objects objects
	cache   *cache
	// flat: the root was a leaf when the worker met it last. The cache has no leaves.
	flat bool

	// The operation at work.
	key, value []byte
	way        [mostHeight + 1]btree.Ref // nodes that lead to the key, by level: the leaf is way[0]
	height     int                       // level of the root
	parent     *cached                   // the leaf's, until another node is read; nil: the root is the leaf
	found      found
	at         btree.Ref // the value beside the leaf
	left       int       // pairs of the leaf behind a DELETE
	level      int       // of nodes that are merged
	more       bool      // the parent has few entries now, too
	ones       [1]btree.Ref
	got        *cached // the internal node that fetch has read
	kind       int     // what it has read

	// Buffers that are used again.
	out     []byte // a value
	node    []byte // nodes that are written
	blank   []byte // an empty leaf: the root of a tree that never had a pair
	right   []byte
	pairs   []btree.Pair
	entries []btree.Entry
	beside  []byte // a value that is written
	scan    scan

	// Functions that are made once, so that operations allocate nothing.
	takeNode, takeLeaf, takeValue                    func(i int, data []byte)
	insertTx, updateTx, replaceTx, deleteTx, mergeTx func(tx transaction) error

	stats Stats
}

var (
	_ client.Store     = (*Store)(nil)
	_ client.Scanner   = (*Store)(nil)
	_ client.Countable = (*Store)(nil)
)

// timeShares: an operation decides within a part of its time, and what is decided is brought to its
// end within as much again (rtx.Options.Timeout).
const timeShares = 2

// Open returns a worker's view of the pool that ep reaches.
func Open(ep rdma.Endpoint, o Options) (*Store, error) {
	l, _, err := readLayout(ep)
	if err == nil && o.Format != "" && o.Format != l.store {
		err = node.Header{Store: l.store}.Expect(o.Format, FormatVersion)
	}
	if err == nil {
		var s *Store
		if s, err = l.open(ep, o); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("open %s: %w", cmp.Or(o.Format, "a tree"), err)
}

func (l *layout) open(ep rdma.Endpoint, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	if o.Timeout > l.Timeout {
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	budget := *cmp.Or(o.CacheBytes, new(DefaultCache))
	metas := budget / 2
	if o.Forgetful {
		metas = 0
	}
	l.library.leaveOut(o.Without)
	objects, err := l.library.open(ep, o.Timeout/timeShares, metas)
	if err != nil {
		return nil, err
	}
	return l.over(ep, objects, budget-budget/2), nil
}

// over returns a tree over objects.
func (l *layout) over(ep rdma.Endpoint, o objects, budget int) *Store {
	s := &Store{layout: l, ep: ep, objects: o, cache: newCache(l.format, budget)}
	s.node, s.right = make([]byte, l.format.NodeBytes), make([]byte, l.format.NodeBytes)
	s.blank = make([]byte, l.format.NodeBytes)
	l.format.WriteLeaf(s.blank, btree.Header{Last: true}, nil)
	s.takeNode, s.takeLeaf, s.takeValue = s.onNode, s.onLeaf, s.onValue
	s.insertTx, s.updateTx, s.replaceTx, s.deleteTx, s.mergeTx = s.insert, s.update, s.replace, s.remove, s.merge
	s.scan.open(s)
	return s
}

// MaxPair returns the most bytes that a key and its value may have together.
func (s *Store) MaxPair() int { return s.KeyBytes + s.ValueBytes }

// Stats returns the worker's counters.
func (s *Store) Stats() Stats { return s.stats }

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	to = append(to,
		telemetry.Counter{Name: "internal nodes read", Count: s.stats.Fetched},
		telemetry.Counter{Name: "stale ways", Count: s.stats.Stale},
		telemetry.Counter{Name: "splits", Count: s.stats.Splits},
		telemetry.Counter{Name: "merges", Count: s.stats.Merges},
	)
	return s.objects.counts(to)
}

// Close gives back what the worker holds in the pool. When it fails, the client is to be recovered,
// and the error wraps client.ErrUncertain.
func (s *Store) Close() error {
	s.objects.span()
	if err := s.objects.close(); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}

// begin begins an operation.
func (s *Store) begin(key, value []byte) error {
	if len(key) > s.KeyBytes || len(value) > s.ValueBytes {
		return fmt.Errorf("a key of %d bytes, a value of %d: the pool takes %d and %d: %w", len(key), len(value),
			s.KeyBytes,
			s.ValueBytes, client.ErrTooLarge)
	}
	s.key, s.value = key, value
	s.objects.span()
	return nil
}

// found is what a leaf has of a key.
type found uint8

const (
	foundStale  found = iota // the leaf is not the key's
	foundNone                // no pair
	foundHere                // its value is in s.out
	foundBeside              // its value lies at s.at
)

var (
	// errStale ends a transaction on a leaf that is not the key's: the way there was outdated.
	errStale = errors.New("outdated way to a leaf")
	// errBeside ends one on a leaf whose value lies at s.at.
	errBeside = errors.New("value lies beside its leaf")
	// errMoved ends one on a value that is not the key's any more.
	errMoved = errors.New("value is another one's")
	// errTime ends an operation that has used up its time.
	errTime = fmt.Errorf("way through the tree %w", rdma.ErrTimeout)
)

// Get implements client.Store.
func (s *Store) Get(key []byte) ([]byte, error) {
	if err := s.begin(key, nil); err != nil {
		return nil, err
	}
	err := s.get()
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	return s.out, nil
}

// get reads the leaf, and the value if that lies beside it. That value says whose it is: where it
// is the key's, the pair is there at that moment, whatever has become of the leaf.
func (s *Store) get() error {
	for !s.objects.over() {
		if err := s.look(); err != nil || s.found == foundHere {
			return err
		}
		s.found = foundStale
		s.ones[0] = s.at
		if err := s.objects.each(s.ones[:], s.takeValue); err != nil && err != errGone {
			return err
		}
		if s.found == foundHere {
			return nil
		}
	}
	return errTime
}

// look reads the key's leaf: s.found is foundHere or foundBeside, or the error wraps
// client.ErrNotFound.
func (s *Store) look() error {
	for {
		if err := s.descend(); err != nil {
			return err
		}
		s.ones[0] = s.way[0]
		s.found = foundStale
		if err := s.objects.each(s.ones[:], s.takeLeaf); err != nil && err != errGone {
			return err
		}
		switch {
		case s.found == foundNone:
			return client.ErrNotFound
		case s.found != foundStale:
			return nil
		case s.objects.over():
			return errTime
		}
		s.dropWay()
	}
}

// onLeaf takes the key's leaf.
func (s *Store) onLeaf(_ int, data []byte) {
	l, ok := s.format.DecodeLeaf(s.orBlank(s.way[0], data))
	if !ok || l.Side(s.key) != 0 {
		return
	}
	slot := l.Find(s.key)
	if slot < 0 {
		s.found = foundNone
		return
	}
	p := l.Pair(slot)
	if s.found, s.at = foundBeside, p.Beside; p.Beside == 0 {
		s.found = foundHere
		s.out = append(s.out[:0], p.Value...)
	}
}

// onValue takes a value that lies beside its leaf.
func (s *Store) onValue(_ int, data []byte) {
	key, value, ok := btree.DecodeValue(data)
	if ok && string(key) == string(s.key) {
		s.found = foundHere
		s.out = append(s.out[:0], value...)
	}
}

// orBlank returns the data of a node; where the root has none that is an empty leaf.
func (s *Store) orBlank(r btree.Ref, data []byte) []byte {
	if data == nil && r == s.library.root() {
		return s.blank
	}
	return data
}
