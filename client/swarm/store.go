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
	// CacheBytes is the budget of the location cache in bytes. An entry counts for entryBytes, or
	// entryBytesABD. 0: no cache. nil: DefaultCache.
	CacheBytes *int
	// Timeout bounds a step that lacks a majority, and the attempts of an operation to reach one.
	// It is at most the pool's, which is also the default.
	Timeout time.Duration
	// Slow is Options.Slow.
	Slow time.Duration
	// Apart: the pool's format is DM-ABD's.
	Apart bool
	// Raw: the pool's format is RAW's.
	Raw bool
	// any: the pool may have any of the three formats.
	any bool
	// alone: no sweep runs while this worker does, since it is the master's, or the pool has no
	// clients. Such a worker joins no epochs.
	alone bool
}

// format returns the format that the pool must have; "": any of the three.
func (o *StoreOptions) format() string {
	if o.any {
		return ""
	}
	return formatName(o.Raw, o.Apart)
}

// DefaultCache is the default of StoreOptions.CacheBytes.
const DefaultCache = 8 << 20

// Store is one worker's view of a SWARM-KV pool (section 5). It implements client.Store and is not
// safe for concurrent use.
//
//	GET, UPDATE  1. READ or WRITE of the register. If its location is not cached, a lookup comes
//	             before that, and for UPDATE also a READ.
//	INSERT       1. WRITE of a fresh register, VERIFIED, that no other client knows yet
//	             2. change of the directory, which publishes the register
//	DELETE       1. change of the directory, which marks the entry as dying: this decides which
//	             DELETE succeeds
//	             2. the tombstone: from now on no client finds a value there
//
// In the paper the register decides whether a key exists (section 5.3). Then two DELETEs may both
// succeed, and the index may name an object that is empty. Here the directory decides, once.
// Between mark and tombstone other clients may read and write the register: their operations are
// linearized before the DELETE. A client that finds the mark writes the tombstone before it answers
// that the key does not exist. The next INSERT of the key replaces the entry. The deleter drops the
// entry later: see drop.go. Then the object is retired, and is reused a few epochs later: see
// retired.go.
//
// A value is a pair: length of the key (2 bytes), key, value. So every READ shows whether the
// object holds the key. A cache entry carries a second hash of the key, seeded with a secret of
// the client, beside the hash that all clients compute: so keys that were chosen to collide in
// the common hash are not mistaken for each other.
type Store struct {
	// The pool's layout. It never changes.
	*plan
	// Objects that this client owns: no other client knows them.
	objects
	// The caller owns the endpoint: Close leaves it open.
	ep rdma.Endpoint
	// c operates on registers, and dir on the directory. Each has an allocator of its own: values
	// for out-of-place values, index for the directory's buckets.
	c             *Client
	dir           *directory.Client
	index, values *buffers.Worker
	// ticks are the numbers that this identity has used, for timestamps and for changes of the
	// directory. They stay below the durable ceiling.
	ticks   *kit.Numbers
	ceiling *quorum.Ceiling
	// cache maps a key's hash to what the client knows of the key. It is a hint: each access
	// verifies the key, and that the object still exists.
	cache *locations.Cache[cached]
	// secret seeds the second hash of keys in the cache.
	secret uint64
	// changes is the id of the client's last change of the directory, in ticks. It only grows.
	changes uint64
	// member is the worker's membership in the pool's view; the zero Member if the worker is alone.
	member *kit.Member
	// stale: a verb was fenced off, so the next operation joins the view first.
	stale bool
	// proven is when the last write began that succeeded, or when the last READ, or lookup, began
	// that proved a cached object to exist: see mayOutdate.
	proven time.Duration
	// inVain is until when the client does not wait for what it may ask the master for, since none
	// began lately: by the request, of the bits buffers.AskSweep and buffers.AskFence.
	inVain [4]time.Duration
	// pendingDrops are the dying entries that the client has yet to drop, the oldest first.
	pendingDrops []pendingDrop
	// droppedIn is the epoch in which the client dropped them last: an epoch begins because some
	// client may be short of objects.
	droppedIn uint64
	// pair is the pair that the operation at work writes. It is reused by the next operation.
	pair []byte

	// Counters: hits and misses of the cache, and operations on the directory.
	hits, misses, accesses uint64
}

// cached is what a client knows of a key: its object, as a register.
type cached struct {
	Register
	// location names the object in the directory.
	location uint64
	// secret is the hash of the key that is seeded with Store.secret.
	secret uint64
}

const (
	// entryBytes is the size of a cache entry as section 7.1 accounts it. entryBytesABD is that
	// of an entry without metadata words: DM-ABD's and RAW's.
	entryBytes    = 32
	entryBytesABD = 24
	// dying is a bit of an entry's location. It is set once a DELETE of the key was chosen, and is
	// never cleared: the entry is dropped.
	dying = 1 << 63
	// turns bounds how often an operation finds that its key was deleted and inserted again
	// meanwhile.
	turns = 1000
)

// OpenStore returns a worker's view of the pool that ep reaches. The caller owns ep. It opens again
// if an epoch began meanwhile and fenced off its verbs. The error wraps ErrParams when the Timeout
// is above the pool's, and rdma.ErrFull when the pool has no identity for the client.
func OpenStore(ep rdma.Endpoint, o StoreOptions) (*Store, error) {
	for range turns { // in each an epoch has begun, so turns are enough
		s, err := openStore(ep, o)
		if o.alone || !errors.Is(err, rdma.ErrStale) {
			return s, err
		}
	}
	return nil, errStopped
}

// openStore is an attempt to open. The ceiling is read before the view is joined as a member, and
// numbers are counted above it, so that no timestamp of an earlier holder of the identity is used
// again. The first region to take objects from differs between clients.
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
		return nil, fmt.Errorf("open %s: client %d: the pool was made for %d clients: %w",
			name, id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("open %s: a timeout of %v: the pool was made for %v at most: %w",
			name, o.Timeout, l.Timeout, ErrParams)
	}
	s := &Store{plan: l, ep: ep, secret: ep.Rand().Uint64(), pair: make([]byte, 0, keyHeader+l.PairBytes)}
	if err := s.openCeiling(quorum.Options{Slow: o.Slow, Timeout: o.Timeout}); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	s.changes = s.ticks.Used()
	s.region, s.scans = id%l.Regions, make([]scan, l.Regions)
	s.index, s.values = l.index.Open(ep, l.nodes, o.Timeout), l.values.Open(ep, l.nodes, o.Timeout)
	if !o.alone {
		if s.member, err = kit.Join(ep); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		s.ceiling.Rejoin = s.member.Join
		s.index.Follow(s.member)
		s.values.Follow(s.member)
		s.member.FollowSweeps(s.lastSweep)
	}
	s.c, err = Open(ep, l.layout, s.values,
		Options{Writer: id - 1, Slow: o.Slow, Timeout: o.Timeout, Use: s.use, Member: s.member})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	s.dir = directory.Open(ep, l.dir, s.index, directory.Options{Slow: o.Slow, Timeout: o.Timeout, Member: s.member})
	s.member = cmp.Or(s.member, new(kit.Member))
	s.values.SetHedgeDelay(s.c.quorum.HedgeDelay)
	s.index.SetHedgeDelay(s.dir.HedgeDelay)
	s.cache, s.proven = newCache(o, uint64(l.Regions)*uint64(l.Objects)), ep.Now()
	return s, nil
}

// newCache returns a cache of the budget, or smaller where the pool cannot hold as many keys.
func newCache(o StoreOptions, keys uint64) *locations.Cache[cached] {
	entry := entryBytes
	if o.Apart || o.Raw {
		entry = entryBytesABD
	}
	return locations.New[cached](locations.Enough(*cmp.Or(o.CacheBytes, new(DefaultCache)), entry, keys), entry)
}

// use reserves a timestamp i below the ceiling, before any verb contains it. i stays the same for
// several of the finest ticks when writers share words, so the last of these is reserved.
func (s *Store) use(i uint64) error { return s.ticks.Use((i+1)<<s.layout.groupBits - 1) }

// fresh returns a register of which nothing is cached. The directory named its object in the epoch
// named. The writer's timestamps for it begin above all that its identity has used.
func (s *Store) fresh(o Object, named uint64) Register {
	k := NewRegister(o, s.ticks.Used()>>s.layout.groupBits)
	k.Known(named)
	return k
}

// change returns an id for a change of the directory: ticks, and in the lowest 16 bits the
// identity. No client has used it before, and it is higher than this identity's earlier ones: the
// ceiling covers it, too.
func (s *Store) change() (uint64, error) {
	s.changes = max(s.changes+1, uint64(max(s.ep.Now(), 0))>>tickBits)
	if err := s.ticks.Use(s.changes); err != nil {
		return 0, err
	}
	return s.changes<<16 | uint64(s.ep.Client()), nil
}

// MaxPair returns the largest sum of a key's and a value's length in bytes.
func (s *Store) MaxPair() int { return s.PairBytes }

// encode makes the pair to be written. The error wraps client.ErrTooLarge.
func (s *Store) encode(key, value []byte) error {
	if len(key) > maxKey || len(key)+len(value) > s.PairBytes {
		return fmt.Errorf("store a key of %d bytes with a value of %d (together at most %d): %w",
			len(key), len(value), s.PairBytes, client.ErrTooLarge)
	}
	s.pair = append(s.pair[:0], byte(len(key)), byte(len(key)>>8))
	s.pair = append(append(s.pair, key...), value...)
	return nil
}

// valueOf returns the value in a pair, a part of pair; false: the pair holds another key.
func valueOf(pair, key []byte) ([]byte, bool) {
	if len(pair) < keyHeader+len(key) || int(le.Uint16(pair)) != len(key) ||
		!bytes.Equal(pair[keyHeader:keyHeader+len(key)], key) {
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

// find returns the cache entry of a key, valid until the cache changes; nil: there is none. It
// counts a hit or a miss.
func (s *Store) find(hash uint64, key []byte) *cached {
	if e := s.cache.Find(hash); e != nil && e.secret == seeded(s.secret, key) {
		s.hits++
		return e
	}
	s.misses++
	return nil
}

// remember puts a key into the cache, which may evict another one.
func (s *Store) remember(hash uint64, key []byte, location uint64, k Register) *cached {
	e := s.cache.Put(hash)
	*e = cached{k, location, seeded(s.secret, key)}
	return e
}

var (
	errNotFound = fmt.Errorf("the directory does not have it: %w", client.ErrNotFound)
	// errMoved is wrapped when a key was deleted after the directory named its object. The
	// operation asks the directory again.
	errMoved = errors.New("the key was deleted meanwhile")
	// errStopped ends an operation that lost to DELETE and INSERT of its key as often as turns.
	errStopped = fmt.Errorf("the key is deleted and inserted again and again: %w", rdma.ErrTimeout)
)

// locate asks the directory for a key, reads its pair, and caches its object. Several entries may
// have the key's hash: the pair decides. The error wraps client.ErrNotFound if no entry is the
// key's, and errMoved if an object was deleted after the lookup, which may have been the key's.
//
// A dying entry of the hash gets its tombstone first. Otherwise the answer "not found" would come
// before the DELETE has ended the object, and another client with a cached location could still
// read the value afterwards.
func (s *Store) locate(hash uint64, key []byte) (*cached, []byte, error) {
	now := s.member.Epoch
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
			// Its key is not known any more: it may be this one, inserted again meanwhile.
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

// read reads the pair at a location that the directory named in the epoch named; false: the object
// holds another key. INSERT writes an object before the directory names it, so an empty one, or a
// location that the pool does not have, is damage.
func (s *Store) read(location uint64, key []byte, named uint64) (k Register, value []byte, ok bool, err error) {
	o, placed := s.place(location)
	if !placed {
		return k, nil, false, fmt.Errorf("the directory names object %#x: %w", location, client.ErrDamaged)
	}
	k = s.fresh(o, named)
	pair, err := s.c.Read(&k)
	if errors.Is(err, ErrEmpty) {
		return k, nil, false, fmt.Errorf("the directory names object %#x, which is empty: %w",
			location, client.ErrDamaged)
	}
	value, ok = valueOf(pair, key)
	return k, value, ok, err
}

// finish makes sure that the object of a dying entry has its tombstone at a majority. The directory
// named the entry in the epoch named. The READ before it may find the tombstone already there; it
// also reads the client's word, which the CAS of the tombstone expects. It may lack a buffer to
// write a tuple back. The tombstone needs none, and a sweep that frees buffers comes here first.
func (s *Store) finish(location, named uint64) error {
	o, ok := s.place(location &^ dying)
	if !ok {
		return fmt.Errorf("the directory names object %#x: %w", location, client.ErrDamaged)
	}
	k := s.fresh(o, named)
	if _, err := s.c.Read(&k); err != nil && !errors.Is(err, ErrEmpty) && !errors.Is(err, client.ErrFull) {
		if errors.Is(err, ErrGone) {
			return nil
		}
		return err
	}
	return s.c.writeTombstone(&k)
}

// Get returns the value of a key, valid until the next call. The store owns it. The error wraps
// client.ErrNotFound.
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

// get is an attempt at GET: first by the cached location, and by the directory if the key is not
// there, or the object was deleted, or was last known too long ago.
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
		// The entry is outdated, or the object is another key's.
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

// Update replaces the value of a key that exists. The error wraps client.ErrNotFound, or
// client.ErrUncertain when the outcome is unknown.
func (s *Store) Update(key, value []byte) error {
	return s.persist("update", func() error { return s.update(key, value) })
}

// update is an attempt at UPDATE. A cached object that a second fence may reach is read first, so
// that the WRITE cannot end with an unknown outcome: see mayOutdate. RAW has no such READ and asks
// the directory. An object that is gone, or outdated without effect, is looked up again.
func (s *Store) update(key, value []byte) error {
	if err := s.encode(key, value); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	hash, now := xxhash.Sum64(key), s.ep.Now()
	// now is before each READ below: what the READ proves holds at least since then.
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
		if err == nil || !errors.Is(err, ErrGone) &&
			(!errors.Is(err, ErrOutdated) || errors.Is(err, client.ErrUncertain)) {
			return err
		}
		s.cache.Drop(hash)
	}
	return errStopped
}

// Close gives back what the worker holds in the pool: it drops its dying entries, retires the
// objects that it owns, frees its buffers, and lowers its ceiling to the numbers that it used.
// What fails is left to a sweep. The endpoint stays open.
func (s *Store) Close() error {
	s.dropPending(0)
	s.closeRetired()
	s.c.Close()
	s.dir.Close()
	err := errors.Join(s.index.Close(), s.values.Close())
	// The next holder of the identity is not ahead of all clocks then. If that fails, the ceiling
	// stays higher than necessary, which is safe.
	s.ceiling.Lower(s.ticks.Used())
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
