package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Pool lists a pool's clients, and fences them off: the part of an rdma.Fabric that repair needs.
type Pool interface {
	Clients() []rdma.Client
	RevokeLife(c rdma.Client) error
}

// Options of a worker. Zero values mean defaults.
type Options struct {
	CacheBytes *int          // of the table cache (section 3.2.3), 0 for none; default 64 KiB
	Timeout    time.Duration // of an operation; default, and at most, what the pool was made for
	// Failure is the failure timer (section 4.1): a client that neither moves nor lets go of a lock
	// for as long is fenced off; default 100 ms, and at most a quarter of the timeout. Clients that
	// the pool knows to be dead do not get that much.
	Failure time.Duration
	// Ticketless has the worker try again for a lock that it did not get, as the paper's clients do.
	Ticketless bool
	// Pool lets the worker repair what others left locked. nil: that is the pool's keeper's business
	// alone, and operations wait for it.
	Pool Pool
}

const (
	// DefaultCache is the default of Options.CacheBytes.
	DefaultCache   = 64 << 10
	defaultFailure = 100 * time.Millisecond
	failureShare   = 4
)

// Store is one worker's view of an RCuckoo pool. It implements client.Store and is not safe for
// concurrent use.
//
// What it relies on, of package rdma: verbs to one node take effect in the order in which they were
// posted, but for READs and atomics, which later verbs may pass unless these are fenced. So
//
//   - the WRITE of an intent lands before the masked CAS behind it takes a lock;
//   - the READs of rows behind a masked CAS are fenced;
//   - redo, rows (from the path's end to its beginning) and the masked CAS that lets go land in this order;
//   - the WRITE that ends the intent is posted when the masked CAS that let go has completed, as it could pass it.
//
// What a crash leaves, whichever verb was the last one, see intent.go, redo.go and repair.go.
type Store struct {
	*worker
	bound
	pace kit.Retry // paces an operation that waits for other clients
}

// bound is what an operation passes to all that it calls: Stores of one worker differ in it alone.
type bound struct {
	each  time.Duration // for a node
	until time.Duration // for all of the operation
	// pulse shows others, at the leader, that the worker is alive; nil: nothing waits for it, or there
	// are no backups.
	pulse func(*Store) error
}

// worker is a client's state.
type worker struct {
	*layout
	ep      rdma.Endpoint
	id      rdma.ClientID
	opt     Options
	view    *kit.Member // in the pool's view
	shards  []standing
	locks   locks
	search  *search
	levels  *levels // of its search
	cache   *cache
	changes [maxSteps]change // of the operation at work
	spare   []byte           // its entry
	taken   ref              // and the extent of its value; zero: none
	takenIn int              // its shard
	extents *extents
	value   []byte // outlives the batch that it was read in
	vigil   vigil
	pacing  pacing
	mending mending
	// condemned is a client that was fenced off, whatever the pool says: the one that the keeper
	// recovers.
	condemned rdma.ClientID
	// ending is the WRITE that ended the last intent, of endingSeq in shard endingIn.
	ending  *rdma.Batch
	reaches int    // how often the operation at work has waited for a node
	beats   uint64 // of its intents, while backups keep it waiting
	// takeoverPending are shards whose leader is not known to have taken over, as the view was busy
	// when it was joined.
	takeoverPending []bool
	endingIn        int
	endingSeq       uint64
	pendingCleanup  []int         // shards where earlier operations left something: see settle.go
	nextCleanup     time.Duration // when that is tried again
	stats           Stats
}

// standing is a worker's state in a shard.
type standing struct {
	seq uint64 // of its last intent
	// dirty: an operation failed at a moment of which it is not known what it left. Until that is
	// settled no other begins.
	dirty  bool
	given  bool        // and others may bring it to its end
	flying *rdma.Batch // what it had in flight; nil: nothing
	leased []uint32    // words whose repair was cut off
}

// Stats count what leaves the common case. They only grow.
type Stats struct {
	Torn     uint64 // rows that were read while they were written
	Waits    uint64 // tries for a lock that another client had, and looks at its queue
	Repairs  uint64 // repairs that this worker brought to their end
	Fenced   uint64 // clients that it fenced off for that
	Rolled   uint64 // rows that it wrote for them
	Searches uint64 // INSERTs that searched the table again
	Divided  uint64 // rows that it divided
	// Paths are the cuckoo paths that were written, by how many rows they had, less one.
	Paths [maxSteps]uint64
}

var _ client.Store = (*Store)(nil)

// Open returns a worker's view of the pool that ep reaches.
func Open(ep rdma.Endpoint, o Options) (*Store, error) {
	for range joins {
		s, err := open(ep, o)
		if !errors.Is(err, rdma.ErrStale) {
			return s, err
		}
		if _, err := ep.Join(); err != nil { // it is no store yet, which could miss that a leader changed
			return nil, fmt.Errorf("open %s: %w", Format, err)
		}
	}
	return nil, fmt.Errorf("open %s: %w", Format, errEpochs)
}

// joins bounds how often an operation joins the pool's view: an epoch has begun each time.
const joins = 1000

var errEpochs = fmt.Errorf("the pool's view changes again and again: %w", rdma.ErrTimeout)

func open(ep rdma.Endpoint, o Options) (*Store, error) {
	l, v, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	o.Failure = cmp.Or(o.Failure, defaultFailure)
	o.Failure = min(o.Failure, o.Timeout/failureShare) // so that an operation outlives a few
	id := ep.Client()
	switch {
	case int(id) > l.Clients:
		return nil, fmt.Errorf("open %s: client %d: the pool was made for %d clients: %w", Format, id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("open %s: a timeout of %v: the pool was made for %v at most: %w", Format, o.Timeout, l.Timeout, ErrParams)
	}
	w := &worker{layout: l, view: v, ep: ep, id: id, opt: o, pacing: pacing{hold: firstPause}}
	w.shards, w.spare, w.value = make([]standing, l.Shards), make([]byte, l.entryBytes), make([]byte, 0, l.ExtentBytes)
	w.extents = newExtents(l, ep, o.Timeout)
	s := w.bounded(bound{each: o.Timeout})
	s.enter()
	v.Follow(s.applyView)
	s.search, s.cache = newSearch(l), newCache(l, *cmp.Or(o.CacheBytes, new(DefaultCache)))
	s.levels = s.search.levels
	if err := errors.Join(s.standings(), s.readGrowths()); err != nil {
		return nil, fmt.Errorf("open %s: %w", Format, err)
	}
	return s, nil
}

// standings reads where the identity's last holder stood: sequences go on above its own.
func (s *Store) standings() error {
	b := s.ep.Batch()
	defer b.Release()
	for i := range s.shards {
		b.Read(s.intentAt(i, s.id), 8)
	}
	if err := s.ep.Post(b.As(stepReadIntents)); err != nil {
		return err
	}
	if err := s.ep.Wait(b, rdma.All, s.each); err != nil {
		return err
	}
	for i := range s.shards {
		op := b.Op(i)
		if errors.Is(op.Err, rdma.ErrNodeDown) {
			s.shards[i].dirty = true // it is asked again before anything is done there
			continue
		}
		if op.Err != nil {
			return op.Err
		}
		word := le.Uint64(op.Buf)
		s.shards[i].seq = max(s.shards[i].seq, word>>1)
		s.shards[i].dirty = s.shards[i].dirty || !idle(word)
	}
	return nil
}

// Stats returns the worker's counters.
func (s *Store) Stats() Stats { return s.stats }

// pathNames are of Stats.Paths.
var pathNames = [maxSteps]string{
	"paths of 1 row", "paths of 2 rows", "paths of 3 rows", "paths of 4 rows", "paths of 5 rows", "paths of 6 rows",
}

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	to = append(to,
		telemetry.Counter{Name: "second searches in vain", Count: s.stats.Searches},
		telemetry.Counter{Name: "lock retries", Count: s.stats.Waits},
		telemetry.Counter{Name: "torn rows", Count: s.stats.Torn},
		telemetry.Counter{Name: "repairs", Count: s.stats.Repairs},
		telemetry.Counter{Name: "clients fenced off", Count: s.stats.Fenced},
		telemetry.Counter{Name: "rows repaired", Count: s.stats.Rolled},
		telemetry.Counter{Name: "rows divided", Count: s.stats.Divided},
		telemetry.Counter{Name: "cache hits", Count: s.cache.hits},
		telemetry.Counter{Name: "cache misses", Count: s.cache.misses},
	)
	for i, n := range s.stats.Paths {
		to = append(to, telemetry.Counter{Name: pathNames[i], Count: n})
	}
	return to
}

// bounded returns the worker as what an operation calls sees it.
func (w *worker) bounded(b bound) *Store {
	s := &Store{worker: w, bound: b}
	s.pace = kit.Retry{Env: w.ep, Pause: forLocks(w.opt.Failure), Over: s.over}
	return s
}

// begin sets an operation's limit in time.
func (s *Store) begin() {
	s.until, s.pulse, s.reaches = s.ep.Now()+s.opt.Timeout, nil, 0
}

// left is how long the operation at work may still take.
func (s *Store) left() time.Duration { return max(s.until-s.ep.Now(), 0) }

// over reports whether the operation at work has used up its time.
func (s *Store) over() bool { return s.left() == 0 }

// do posts a batch as a step of the protocol and waits for it. A verb that is in flight when that
// takes too long may land at any time: the error wraps rdma.ErrTimeout then, and the batch is the
// caller's still.
func (s *Store) do(step rdma.Step, b *rdma.Batch) error {
	if s.pulse != nil {
		return s.doAlive(step, b)
	}
	return rdma.Do(s.ep, b.As(step), s.each)
}

// Close gives back what the worker holds in the pool. What an operation left of which it is not
// known what became of it is settled first; when that is impossible the error wraps
// client.ErrUncertain.
func (s *Store) Close() error {
	s.begin()
	s.ended(true)
	var errs []error
	untouched := make([]bool, len(s.shards))
	for i, st := range s.shards { // what is there of a node that does not answer is only what the worker knows of
		untouched[i] = st.flying == nil && len(st.leased) == 0 && (!st.dirty || st.seq == 0) && !s.extents.hasClaims(i)
	}
	if err := s.standings(); err != nil && !(s.Replicas > 1 && errors.Is(err, rdma.ErrStale)) { // behind what is in flight
		errs = append(errs, err)
	}
	for i := range s.shards {
		err := s.leave(i)
		for n := 0; n < joins && s.Replicas > 1 && err != nil && s.retryable(i, err); n++ {
			err = s.leave(i)
		}
		if err != nil && !(untouched[i] && errors.Is(err, rdma.ErrNodeDown)) {
			errs = append(errs, fmt.Errorf("shard %d: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}

// leave settles what the worker left in a shard, and gives back what it has there.
func (s *Store) leave(shard int) error {
	if err := s.settled(shard); err != nil {
		return err
	}
	_, err := s.extents.leave(shard, s.id)
	return err
}
