package swarm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// StoreOptions of a worker. Zero values mean defaults.
type StoreOptions struct {
	CacheBytes *int          // of the cache of locations, of which an entry counts for 32 (24 without words), 0 for none; default 8 MiB
	Timeout    time.Duration // of a step that lacks a majority, and of attempts to reach one; default, and at most, the pool's
	Slow       time.Duration // see Options
	Apart      bool          // the pool is DM-ABD's
	Raw        bool          // the pool is RAW's
	any        bool          // the pool may be of any of the stores
	alone      bool          // there is no sweep meanwhile: the worker is the master, or looks at a pool without clients
}

// format returns what the pool's has to be; "": any.
func (o *StoreOptions) format() string {
	switch {
	case o.any:
		return ""
	case o.Raw:
		return FormatRaw
	}
	return formatName(o.Apart)
}

// DefaultCache is the default of StoreOptions.CacheBytes.
const DefaultCache = 8 << 20

// Store is one worker's view of a SWARM-KV pool (section 5). It implements client.Store and is not
// safe for concurrent use.
//
//	GET, UPDATE  1. READ or WRITE of the register; when its location is not cached behind a lookup, and for UPDATE a READ
//	INSERT       1. WRITE of a fresh register, VERIFIED, which no other client knows yet
//	             2. change of the directory, which makes it known
//	DELETE       1. change of the directory, which marks the entry as dying: this decides which DELETE did it
//	             2. the tombstone: from now on no client finds a value there
//
// Where the paper decides existence by the register (section 5.3), so that two DELETEs both say yes
// and a mapped object may be empty, the directory does here, once. Between mark and tombstone
// others may go on with the register: they come before the DELETE. A client that finds the mark
// brings the tombstone before it says that the key is not there; the next INSERT of the key
// replaces the entry. The deleter drops the entry later, see grave.go: then the object is retired,
// and is used again a few epochs later.
//
// A value is a pair: length of the key (2 bytes), key, value. So every READ shows whether it is the
// key's. What is cached carries a hash of the key that is the client's secret, beside the one that
// all clients have.
type Store struct {
	*plan
	objects
	ep            rdma.Endpoint
	c             *Client
	dir           *directory.Client
	index, values *buffers.Worker
	ticks         *kit.Numbers // of timestamps, and of changes
	ceiling       *quorum.Ceiling
	cache         *locations.Cache[cached]
	secret        uint64        // seed
	changes       uint64        // the id of the last change, in ticks
	member        *kit.Member   // nil when the worker is alone
	stale         bool          // the view has changed
	proven        time.Duration // when the last write began that succeeded, or what it cached was read
	hopeless      time.Duration // until when it does not wait for a sweep that frees memory
	graves        []grave       // the oldest first
	filled        uint64        // the epoch in which it looked whether others may be short of objects
	pair          []byte

	hits, misses, accesses uint64 // of the cache; and of the directory
}

// cached is what a client knows of a key.
type cached struct {
	Register
	location uint64
	secret   uint64 // hash of the key
}

const (
	entryBytes    = 32 // as section 7.1 accounts them
	entryBytesABD = 24
	// dying marks the location of a key that is being deleted, or was.
	dying = 1 << 63
	// turns bounds how often an operation finds that its key was deleted and inserted again under it.
	turns = 1000
)

// OpenStore returns a worker's view of the pool that ep reaches.
func OpenStore(ep rdma.Endpoint, o StoreOptions) (*Store, error) {
	for range turns { // ends: an epoch has begun in each
		s, err := openStore(ep, o)
		if o.alone || !errors.Is(err, rdma.ErrStale) {
			return s, err
		}
	}
	return nil, errStopped
}

func openStore(ep rdma.Endpoint, o StoreOptions) (*Store, error) {
	name := cmp.Or(o.format(), Format)
	l, _, err := readPlan(ep, o.format())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	id := int(ep.Client())
	switch {
	case id > l.Clients:
		return nil, fmt.Errorf("open %s: client %d: the pool was made for %d clients: %w", name, id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("open %s: a timeout of %v: the pool was made for %v at most: %w", name, o.Timeout, l.Timeout, ErrParams)
	}
	s := &Store{plan: l, ep: ep, secret: ep.Rand().Uint64(), pair: make([]byte, 0, keyHeader+l.PairBytes)}
	if err := s.openCeiling(quorum.Options{Slow: o.Slow, Timeout: o.Timeout}); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	if !o.alone {
		if s.member, err = kit.Join(ep); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		s.ceiling.Rejoin = s.member.Join
	}
	s.changes = s.ticks.Used()
	s.region, s.scans = id%l.Regions, make([]scan, l.Regions)
	s.index, s.values = l.index.Open(ep, l.nodes, o.Timeout), l.values.Open(ep, l.nodes, o.Timeout)
	if s.member != nil {
		s.index.Follow(s.member)
		s.values.Follow(s.member)
		s.member.FollowSweeps(s.lastSweep)
	}
	s.c, err = Open(ep, l.layout, s.values, Options{Writer: id - 1, Slow: o.Slow, Timeout: o.Timeout, Use: s.use, Member: s.member})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	s.dir = directory.Open(ep, l.dir, s.index, directory.Options{Slow: o.Slow, Timeout: o.Timeout, Member: s.member})
	s.values.Hurry(s.c.quorum.Hurry)
	s.index.Hurry(s.dir.Hurry)
	s.cache, s.proven = newCache(o, uint64(l.Regions)*uint64(l.Objects)), ep.Now()
	return s, nil
}

func newCache(o StoreOptions, keys uint64) *locations.Cache[cached] {
	entry := entryBytes
	if o.Apart || o.Raw {
		entry = entryBytesABD
	}
	return locations.New[cached](locations.Enough(*cmp.Or(o.CacheBytes, new(DefaultCache)), entry, keys), entry)
}

// use tells the ceiling of a timestamp: its last tick.
func (s *Store) use(i uint64) error { return s.ticks.Use((i+1)<<s.layout.groupBits - 1) }

// fresh is the register of an object of which nothing is known, but that the directory named it in
// an epoch.
func (s *Store) fresh(o Object, named uint64) Register {
	k := NewRegister(o, s.ticks.Used()>>s.layout.groupBits)
	k.Known(named)
	return k
}

// change returns the id of a change of the directory, which no client has used before.
func (s *Store) change() (uint64, error) {
	s.changes = max(s.changes+1, uint64(max(s.ep.Now(), 0))>>tickBits)
	if err := s.ticks.Use(s.changes); err != nil {
		return 0, err
	}
	return s.changes<<16 | uint64(s.ep.Client()), nil
}

// MaxPair returns the largest sum of a key's and a value's length in bytes.
func (s *Store) MaxPair() int { return s.PairBytes }

// encode makes a pair.
func (s *Store) encode(key, value []byte) error {
	if len(key) > maxKey || len(key)+len(value) > s.PairBytes {
		return fmt.Errorf("store a key of %d bytes with a value of %d (together at most %d): %w", len(key), len(value), s.PairBytes, client.ErrTooLarge)
	}
	s.pair = append(s.pair[:0], byte(len(key)), byte(len(key)>>8))
	s.pair = append(append(s.pair, key...), value...)
	return nil
}

// valueOf returns the value of a pair; false: it is another key's.
func valueOf(pair, key []byte) ([]byte, bool) {
	if len(pair) < keyHeader+len(key) || int(le.Uint16(pair)) != len(key) || !bytes.Equal(pair[keyHeader:keyHeader+len(key)], key) {
		return nil, false
	}
	return pair[keyHeader+len(key):], true
}

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	n := s.c.Stats()
	return append(to,
		telemetry.Counter{Name: "slow paths", Count: n.Stale},
		telemetry.Counter{Name: "guesses wrong", Count: n.Rewritten},
		telemetry.Counter{Name: "lock acquisitions", Count: n.Locks},
		telemetry.Counter{Name: "in-place hits", Count: n.InPlace},
		telemetry.Counter{Name: "out-of-place reads", Count: n.Fetches},
		telemetry.Counter{Name: "write-backs", Count: n.WriteBacks},
		telemetry.Counter{Name: "asked all replicas", Count: n.Widened},
		telemetry.Counter{Name: "retries", Count: n.Retries},
		telemetry.Counter{Name: "index accesses", Count: s.accesses},
		telemetry.Counter{Name: "cache hits", Count: s.hits},
		telemetry.Counter{Name: "cache misses", Count: s.misses},
	)
}

// find returns what is cached of a key; nil: nothing.
func (s *Store) find(hash uint64, key []byte) *cached {
	if e := s.cache.Find(hash); e != nil && e.secret == seeded(s.secret, key) {
		s.hits++
		return e
	}
	s.misses++
	return nil
}

func (s *Store) remember(hash uint64, key []byte, location uint64, k Register) *cached {
	e := s.cache.Put(hash)
	*e = cached{k, location, seeded(s.secret, key)}
	return e
}

var (
	errNotFound = fmt.Errorf("the directory does not have it: %w", client.ErrNotFound)
	// errMoved is wrapped when a key was deleted since the directory told where it is.
	errMoved   = errors.New("the key was deleted meanwhile")
	errStopped = fmt.Errorf("the key is deleted and inserted again and again: %w", rdma.ErrTimeout)
)

// locate asks the directory for a key, and reads its pair. The error wraps client.ErrNotFound, or
// errMoved.
func (s *Store) locate(hash uint64, key []byte) (*cached, []byte, error) {
	now := s.epoch()
	s.accesses++
	entries, err := s.dir.Lookup(hash)
	if err != nil {
		return nil, nil, err
	}
	moved := false
	for _, e := range entries {
		if e.Location&dying != 0 {
			if err := s.finish(e.Location, now); err != nil {
				return nil, nil, err
			}
			continue
		}
		k, value, ok, err := s.read(e.Location, key, now)
		switch {
		case errors.Is(err, ErrGone):
			moved = true
		case err != nil:
			return nil, nil, err
		case ok:
			return s.remember(hash, key, e.Location, k), value, nil
		}
	}
	if moved {
		return nil, nil, errMoved
	}
	return nil, nil, errNotFound
}

// read reads the pair at a location that the directory named in an epoch; false: it is another
// key's.
func (s *Store) read(location uint64, key []byte, named uint64) (k Register, value []byte, ok bool, err error) {
	o, placed := s.place(location)
	if !placed {
		return k, nil, false, fmt.Errorf("the directory names object %#x: %w", location, client.ErrDamaged)
	}
	k = s.fresh(o, named)
	pair, err := s.c.Read(&k)
	if errors.Is(err, ErrEmpty) {
		return k, nil, false, fmt.Errorf("the directory names object %#x, which is empty: %w", location, client.ErrDamaged)
	}
	value, ok = valueOf(pair, key)
	return k, value, ok, err
}

// finish brings the tombstone to an object whose entry was dying in an epoch.
func (s *Store) finish(location, named uint64) error {
	o, ok := s.place(location &^ dying)
	if !ok {
		return fmt.Errorf("the directory names object %#x: %w", location, client.ErrDamaged)
	}
	k := s.fresh(o, named)
	if _, err := s.c.Read(&k); err != nil && !errors.Is(err, ErrEmpty) {
		if errors.Is(err, ErrGone) {
			return nil
		}
		return err
	}
	return s.c.bury(&k)
}

// Get returns the value of a key, valid until the next call.
func (s *Store) Get(key []byte) ([]byte, error) {
	var t tries
	for {
		v, err := s.get(key)
		if err == nil {
			return v, nil
		}
		if !s.again(&t, err) {
			return nil, fmt.Errorf("get: %w", err)
		}
	}
}

func (s *Store) get(key []byte) ([]byte, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	hash := xxhash.Sum64(key)
	if e := s.find(hash, key); e != nil {
		pair, err := s.c.Read(&e.Register)
		if v, ok := valueOf(pair, key); ok && err == nil {
			return v, nil
		}
		s.cache.Drop(hash)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrOutdated) {
			return nil, err
		}
	}
	for range turns {
		_, v, err := s.locate(hash, key)
		if !errors.Is(err, errMoved) {
			return v, err
		}
	}
	return nil, errStopped
}

// Update replaces the value of a key that is there.
func (s *Store) Update(key, value []byte) error {
	return s.persist("update", func() error { return s.update(key, value) })
}

func (s *Store) update(key, value []byte) error {
	if err := s.encode(key, value); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	hash, now := xxhash.Sum64(key), s.ep.Now()
	for range turns {
		e := s.find(hash, key)
		if e != nil && s.mayOutdate(&e.Register, now) {
			if s.c.raw() { // where only the directory proves anything
				s.cache.Drop(hash)
				s.proven = now // the lookup is next
				continue
			}
			switch _, err := s.c.Read(&e.Register); {
			case err == nil:
				s.proven = now
			case errors.Is(err, ErrGone), errors.Is(err, ErrOutdated):
				s.cache.Drop(hash)
			default:
				return err
			}
			continue
		}
		if e == nil {
			var err error
			if e, _, err = s.locate(hash, key); errors.Is(err, errMoved) {
				continue
			} else if err != nil {
				return err
			}
		}
		err := s.c.Write(&e.Register, s.pair)
		if err == nil || !errors.Is(err, ErrGone) && (!errors.Is(err, ErrOutdated) || errors.Is(err, client.ErrUncertain)) {
			return err
		}
		s.cache.Drop(hash)
	}
	return errStopped
}

// Close gives back what the worker holds in the pool.
func (s *Store) Close() error {
	s.fill(0)
	s.closeRetired()
	s.c.Close()
	s.dir.Close()
	err := errors.Join(s.index.Close(), s.values.Close())
	s.closeCeiling()
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
