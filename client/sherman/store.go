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
	// CacheBytes is the budget for internal nodes and for the metadata of
	// objects, half of it each; 0: neither is remembered; nil: DefaultCache.
	CacheBytes *int
	// Timeout bounds an operation. Default and maximum are the pool's.
	Timeout time.Duration
	// Forgetful workers remember no metadata: they read that of each object
	// before its data, as the paper's do. So a READ takes two trips, and none
	// reads data that has been replaced. Internal nodes have their half of
	// CacheBytes.
	Forgetful bool
	// Without says what of the protocol is left out, to measure what it costs.
	Without Without
}

// Without names parts of a protocol that is measured without them (section 6.3 of
// rTX's paper).
type Without uint8

const (
	// EarlyLocks are OPT2. Without them a leaf is locked when the transaction
	// that changes it commits.
	EarlyLocks Without = 1 << iota
	// LogElision is OPT1. Without it each transaction of package rtx has a log.
	LogElision
	// Logs are those of package dtx. Without them a crash leaves what nothing
	// repairs.
	Logs
)

// DefaultCache is the default of Options.CacheBytes.
const DefaultCache = 4 << 20

// Stats count what leaves the common case. They only grow.
type Stats struct {
	// Fetched counts internal nodes that were READ.
	Fetched uint64
	// Stale counts ways to a leaf that were outdated.
	Stale uint64
	// Splits counts splits of nodes, including those in transactions that did not
	// commit, and Merges counts merges alike.
	Splits uint64
	Merges uint64
	// Kept counts nodes with few entries that were not merged because of an
	// error.
	Kept uint64
}

// Store is one worker's view of a tree. It implements client.Store and client.Scanner, and is not
// safe for concurrent use.
type Store struct {
	*layout
	ep      rdma.Endpoint
	objects objects
	cache   *cache
	// flat: the root was a leaf when the worker read it last. The cache has no
	// leaves.
	flat bool

	// These are the state of the operation that runs. key and value are the
	// caller's.
	key, value []byte
	// way has the nodes that lead to the key, by level: way[0] is the leaf.
	way [mostHeight + 1]btree.Ref
	// height is the level of the root.
	height int
	// parent is the leaf's parent, until another node is read; nil: the root is
	// the leaf.
	parent *cached
	// found is what the leaf has of the key.
	found found
	// at is the value beside the leaf.
	at btree.Ref
	// left is how many pairs of the leaf a DELETE has left.
	left int
	// level is that of the nodes that are merged.
	level int
	// more: the merge has left the parent with few entries, too.
	more bool
	// mergeUntil is when a merge that has not succeeded gives up.
	mergeUntil time.Duration
	// ones is a list of one object, for each.
	ones [1]btree.Ref
	// got is the internal node that fetch has read.
	got *cached
	// kind says what fetch has read.
	kind int

	// These are buffers that are used again: out has the value that Get returns.
	out []byte
	// node and right have nodes that are written.
	node []byte
	// blank is an empty leaf: the root of a tree that never had a pair.
	blank   []byte
	right   []byte
	pairs   []btree.Pair
	entries []btree.Entry
	// beside has a value that is written.
	beside []byte
	scan   scan

	// These functions are made once, so that operations allocate nothing.
	takeNode, takeLeaf, takeValue                    func(i int, data []byte)
	insertTx, updateTx, replaceTx, deleteTx, mergeTx func(tx transaction) error

	stats Stats
}

var (
	_ client.Store     = (*Store)(nil)
	_ client.Scanner   = (*Store)(nil)
	_ client.Countable = (*Store)(nil)
)

// timeShares: an operation decides within one part of its time, of so many. What
// is decided is finished within as much again (rtx.Options.Timeout).
const timeShares = 2

// Open returns a worker's view of the pool that ep reaches. It recovers what an
// earlier holder of the identity has left. The endpoint stays the caller's, and
// must not be used otherwise until Close.
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

// open is Open of a layout that was read before.
func (l *layout) open(ep rdma.Endpoint, o Options) (*Store, error) {
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	if o.Timeout > l.Timeout {
		return nil, fmt.Errorf("a timeout of %v: the pool was made for %v at most: %w", o.Timeout, l.Timeout, ErrParams)
	}
	// Half of the budget is for metadata, and the other half for internal nodes.
	budget := *cmp.Or(o.CacheBytes, new(DefaultCache))
	metas := budget / 2
	if o.Forgetful {
		metas = 0
	}
	// Open has read a layout for this worker, so no other one leaves anything out.
	l.library.leaveOut(o.Without)
	objects, err := l.library.open(ep, o.Timeout/timeShares, metas)
	if err != nil {
		return nil, err
	}
	return l.over(ep, objects, budget-budget/2), nil
}

// over returns a tree over objects. budget is for internal nodes.
func (l *layout) over(ep rdma.Endpoint, o objects, budget int) *Store {
	s := &Store{layout: l, ep: ep, objects: o, cache: newCache(l.format, budget)}
	s.node, s.right = make([]byte, l.format.NodeBytes), make([]byte, l.format.NodeBytes)
	s.blank = make([]byte, l.format.NodeBytes)
	// An empty leaf without fences: all keys belong to it.
	l.format.WriteLeaf(s.blank, btree.Header{Last: true}, nil)
	s.takeNode, s.takeLeaf, s.takeValue = s.onNode, s.onLeaf, s.onValue
	s.insertTx, s.updateTx, s.replaceTx, s.deleteTx, s.mergeTx = s.insert, s.update, s.replace, s.remove, s.merge
	s.scan.open(s)
	return s
}

// MaxPair returns how many bytes a key and its value may have together.
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

// Close gives back what the worker holds in the pool. If it fails the client is
// to be recovered, and the error wraps client.ErrUncertain.
func (s *Store) Close() error {
	s.objects.span()
	if err := s.objects.close(); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}

// begin begins an operation. key and value must not change while it runs.
func (s *Store) begin(key, value []byte) error {
	if len(key) > s.KeyBytes || len(value) > s.ValueBytes {
		return fmt.Errorf("a key of %d bytes, a value of %d: the pool takes %d and %d: %w", len(key), len(value),
			s.KeyBytes, s.ValueBytes, client.ErrTooLarge)
	}
	s.key, s.value = key, value
	s.objects.span()
	return nil
}

// found is what a leaf has of a key.
type found uint8

const (
	// foundStale: the leaf is not the key's.
	foundStale found = iota
	// foundNone: it has no pair.
	foundNone
	// foundHere: the value is in s.out.
	foundHere
	// foundBeside: the value lies at s.at.
	foundBeside
)

var (
	// errStale ends a transaction on a leaf that is not the key's: the way to it
	// was outdated.
	errStale = errors.New("outdated way to a leaf")
	// errBeside ends a transaction on a leaf with a value that lies at s.at.
	errBeside = errors.New("value lies beside its leaf")
	// errMoved ends a transaction on a value that is not the key's any more.
	errMoved = errors.New("value is another one's")
	// errTime ends an operation that has used up its time.
	errTime = fmt.Errorf("way through the tree %w", rdma.ErrTimeout)
)

// Get implements client.Store. The value is the Store's: it is valid until the
// next call.
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

// get reads the leaf, and the value if that lies beside the leaf. Such a value
// names its key. If it is the operation's key, the pair is there at the moment of
// that READ, whatever has become of the leaf since: a DELETE frees the value in
// the transaction that changes the leaf.
func (s *Store) get() error {
	// An attempt that finds another pair's value at s.at, or none, begins again
	// at the root: the leaf has changed.
	for !s.objects.over() {
		if err := s.look(); err != nil || s.found == foundHere {
			return err
		}
		s.found = foundStale
		// The leaf was unlocked at some moment, and named this value. Since then
		// the pair may have been replaced or deleted.
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

// look reads the key's leaf. Afterwards s.found is foundHere or foundBeside, or
// the error wraps client.ErrNotFound.
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
		// The leaf is not the key's: what the worker remembers of the way is
		// outdated.
		s.dropWay()
	}
}

// onLeaf takes what the key's leaf has. It is called by objects.each.
func (s *Store) onLeaf(_ int, data []byte) {
	l, ok := s.format.DecodeLeaf(s.orBlank(s.way[0], data))
	// The key belongs to another leaf by now, or the node is none.
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

// onValue takes a value that lies beside its leaf, if it is the key's.
func (s *Store) onValue(_ int, data []byte) {
	key, value, ok := btree.DecodeValue(data)
	if ok && string(key) == string(s.key) {
		s.found = foundHere
		s.out = append(s.out[:0], value...)
	}
}

// orBlank returns the data of a node. If the root has none, that is an empty
// leaf.
func (s *Store) orBlank(r btree.Ref, data []byte) []byte {
	if data == nil && r == s.library.root() {
		return s.blank
	}
	return data
}
