package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/search"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Pool lists a pool's clients, and fences them off: the part of an rdma.Fabric that repair needs.
type Pool interface {
	Clients() []rdma.Client
	// RevokeLife returns when no verb that c posted can land any more. Only this life of the
	// identity is
	// fenced off: a client that has the identity since is not.
	RevokeLife(c rdma.Client) error
}

// Options of a worker. Zero values mean defaults.
type Options struct {
	CacheBytes *int          // of the table cache (section 3.2.3), 0 for none; default 64 KiB
	Timeout    time.Duration // of an operation; default, and at most, what the pool was made for
	// Failure is the failure timer (section 4.1): a client that holds a lock and makes no progress
	// for as long is fenced off. Default 100 ms, and at most a quarter of the timeout. If the pool
	// knows that the client is dead, half of that is enough.
	Failure time.Duration
	// Ticketless: the worker tries again for a lock that it did not get, as the paper's clients do.
	Ticketless bool
	// Pool lets the worker repair what others left locked. nil: only the pool's master repairs, and
	// operations wait for it.
	Pool Pool
}

const (
	// DefaultCache is the default of Options.CacheBytes.
	DefaultCache = 64 << 10
	// defaultFailure is the default of Options.Failure. failureShare bounds it to a quarter of
	// the timeout: an operation that waits for a failed client still has time to repair and to go
	// on.
	defaultFailure = 100 * time.Millisecond
	failureShare   = 4
)

// Store is one worker's view of an RCuckoo pool. It implements client.Store and is not safe for
// concurrent use.
//
// It relies on the order that package rdma promises: verbs to one node take effect in the order
// in which they were posted. READs and atomics are the exception: later verbs may pass them
// unless the later verbs are fenced. So
//
//   - the WRITE of an intent lands before the masked CAS behind it takes a lock;
//   - the READs of rows behind a masked CAS are fenced;
//   - the redo, the rows (from the path's end to its beginning) and the masked CAS that releases
//     the locks land in this order;
//   - the WRITE that ends the intent is posted after the masked CAS that released the locks has
//     completed, as the WRITE could pass that CAS.
//
// For what a crash after each of these verbs leaves, see intent.go, redo.go and repair.go.
type Store struct {
	*worker
	bound
	pace kit.Retry // paces an operation that waits for other clients
}

// bound holds the limits that an operation passes to all that it calls. Stores of one worker
// differ in it alone: see bounded.
type bound struct {
	// each is how long one batch may wait for its nodes.
	each time.Duration
	// until is when the operation has used up its time, on the endpoint's clock.
	until time.Duration
	// pulse sends a heartbeat to the leader while a batch takes long, so that no other client
	// takes the worker for a failed one. nil: no client waits for the worker, or there are no
	// backups.
	pulse func(*Store) error
}

// worker is a client's state. One operation is at work at a time.
type worker struct {
	table *table.Layout
	ep    rdma.Endpoint
	// id is at least 1 and at most Params.Clients. The membership gives it to one living client
	// at a time.
	id rdma.ClientID
	// opt has no zero durations: open fills in the defaults.
	opt Options
	// view is the worker's membership in the pool's view; ApplyView follows it.
	view *kit.Member
	// shards has an element for each shard.
	shards []standing
	locks  locks
	search *search.Search
	// levels is what is known of growth. The worker and its search share it.
	levels *table.Levels
	cache  *search.Cache
	// changes are those of the operation at work. A redo holds as many.
	changes [table.MaxSteps]table.Change
	// spare is the buffer in which the operation at work encodes its new entry: EntryBytes of it.
	spare []byte
	// taken is the extent of the value that the operation at work brings. zero: the value is
	// inline, or the operation has taken no extent yet.
	taken table.Ref
	// takenIn is the shard of taken.
	takenIn int
	extents *extents.Client
	// value is the buffer of Get's result. It outlives the batch that the value was read in, and
	// the next Get overwrites it.
	value   []byte
	vigil   vigil
	pacing  pacing
	mending mending
	// condemned is a client that counts as fenced off, whatever the pool says: the one that the
	// master recovers. 0: none.
	condemned rdma.ClientID
	// ending is the WRITE that ended the last intent, of endingSeq in shard endingIn. The worker
	// owns the batch until ended releases it. nil: none is in flight.
	ending *rdma.Batch
	// reaches is how often the operation at work has waited for an unreachable node. It sets the
	// next pause.
	reaches int
	// beats counts the heartbeats that the worker sent while backups kept it waiting. It only
	// grows, so no two of these heartbeats are equal.
	beats uint64
	// takeoverPending are the shards that have a leader which is not known to have taken over, as
	// the view was busy when the worker joined it. Nothing is read from these shards meanwhile.
	takeoverPending []bool
	endingIn        int
	endingSeq       uint64
	// pendingCleanup are the shards where earlier operations left something: see settle.go.
	pendingCleanup []int
	// nextCleanup is when the worker tries again to settle them.
	nextCleanup time.Duration
	stats       Stats
}

// standing is a worker's state in a shard.
type standing struct {
	// seq is the sequence of the last intent. It only grows, and goes on above that of the
	// identity's last holder.
	seq uint64
	// dirty: an operation failed, and it is not known what it left. No other operation begins in
	// the shard until that is settled.
	dirty bool
	// given: the failed operation is given up, so that others may complete it. See abandon.
	given bool
	// flying is the failed operation's batch with verbs that may still land. The shard owns it
	// until it has landed. nil: nothing is in flight.
	flying *rdma.Batch
	// leased are the words of a repair that was interrupted. The worker may hold their leases.
	leased []uint32
}

// Stats count what leaves the common case. They only grow.
type Stats struct {
	// Torn counts reads of rows that were being written.
	Torn uint64
	// Waits counts tries for a lock that another client held, and looks at its queue.
	Waits uint64
	// Repairs counts the repairs that this worker completed.
	Repairs uint64
	// Fenced counts the clients that it fenced off for repairs.
	Fenced uint64
	// Rolled counts the rows that it wrote to complete operations of other clients, or its own.
	Rolled uint64
	// Searches counts the paths that INSERTs tried after a first one had failed.
	Searches uint64
	// Divided counts the rows that it divided.
	Divided uint64
	// Paths counts the cuckoo paths that were written: element i those of i+1 rows.
	Paths [table.MaxSteps]uint64
}

var _ client.Store = (*Store)(nil)

// Open returns a worker's view of the pool that ep reaches. The caller owns ep and closes it
// after the Store. The error wraps rdma.ErrFull when the pool was made for fewer clients,
// ErrParams when it was made for shorter timeouts, and rdma.ErrTimeout when its view never stops
// changing.
func Open(ep rdma.Endpoint, o Options) (*Store, error) {
	for range joins {
		s, err := open(ep, o)
		if !errors.Is(err, rdma.ErrStale) {
			return s, err
		}
		if _, err := ep.Join(); err != nil { // there is no Store yet that could miss a change of leader
			return nil, fmt.Errorf("open %s: %w", table.Format, err)
		}
	}
	return nil, fmt.Errorf("open %s: %w", table.Format, errEpochs)
}

// joins bounds how often an operation joins the pool's view: an epoch has begun each time.
const joins = 1000

var errEpochs = fmt.Errorf("the pool's view changes again and again: %w", rdma.ErrTimeout)

// open is one try of Open. The error wraps rdma.ErrStale when the view changed meanwhile.
func open(ep rdma.Endpoint, o Options) (*Store, error) {
	l, v, err := table.Read(ep)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", table.Format, err)
	}
	o.Timeout = cmp.Or(o.Timeout, l.Timeout)
	o.Failure = cmp.Or(o.Failure, defaultFailure)
	o.Failure = min(o.Failure, o.Timeout/failureShare) // so that an operation outlives a few failed clients
	id := ep.Client()
	switch {
	case int(id) > l.Clients: // it has no records in the pool
		return nil, fmt.Errorf("open %s: client %d: the pool was made for %d clients: %w",
			table.Format, id, l.Clients, rdma.ErrFull)
	case o.Timeout > l.Timeout:
		return nil, fmt.Errorf("open %s: a timeout of %v: the pool was made for %v at most: %w",
			table.Format, o.Timeout, l.Timeout, table.ErrParams)
	}
	w := &worker{table: l, view: v, ep: ep, id: id, opt: o, pacing: pacing{hold: firstPause}}
	w.shards, w.spare, w.value = make([]standing, l.Shards), make([]byte, l.EntryBytes), make([]byte, 0, l.ExtentBytes)
	w.extents = extents.New(l, ep, o.Timeout)
	s := w.bounded(bound{each: o.Timeout})
	// From here on each change of the view reaches the worker, so it cannot miss that a leader
	// changed.
	s.enter()
	v.Follow(s.applyView)
	s.search, s.cache = search.New(l), search.NewCache(l, *cmp.Or(o.CacheBytes, new(DefaultCache)))
	s.levels = s.search.Levels
	if err := errors.Join(s.standings(), s.readGrowths()); err != nil {
		return nil, fmt.Errorf("open %s: %w", table.Format, err)
	}
	return s, nil
}

// standings reads the state of the identity's intent in each shard. The worker's sequences go on
// above those of the identity's last holder, so that no record of that holder is taken for the
// worker's. A shard with an intent that is not idle is dirty: an operation was cut off there.
func (s *Store) standings() error {
	b := s.ep.Batch()
	defer b.Release()
	for i := range s.shards {
		b.Read(s.table.IntentAt(i, s.id), 8)
	}
	if err := s.ep.Post(b.As(steps.ReadIntents)); err != nil {
		return err
	}
	if err := s.ep.Wait(b, rdma.All, s.each); err != nil {
		return err
	}
	for i := range s.shards {
		op := b.Op(i)
		if errors.Is(op.Err, rdma.ErrNodeDown) {
			s.shards[i].dirty = true // it is read again before anything is done there
			continue
		}
		if op.Err != nil {
			return op.Err
		}
		// Close calls this, too: the worker's own sequence may be above the word that landed.
		word := le.Uint64(op.Buf)
		s.shards[i].seq = max(s.shards[i].seq, word>>1)
		s.shards[i].dirty = s.shards[i].dirty || !table.Idle(word)
	}
	return nil
}

// Stats returns the worker's counters.
func (s *Store) Stats() Stats { return s.stats }

// pathNames are the names of the counters in Stats.Paths.
var pathNames = [table.MaxSteps]string{
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
		telemetry.Counter{Name: "cache hits", Count: s.cache.Hits},
		telemetry.Counter{Name: "cache misses", Count: s.cache.Misses},
	)
	for i, n := range s.stats.Paths {
		to = append(to, telemetry.Counter{Name: pathNames[i], Count: n})
	}
	return to
}

// bounded returns a Store of the same worker with other limits. It shares all state but the limits.
func (w *worker) bounded(b bound) *Store {
	s := &Store{worker: w, bound: b}
	s.pace = kit.Retry{Env: w.ep, Pause: forLocks(w.opt.Failure), Over: s.over}
	return s
}

// begin starts an operation: it sets the time limit, and no heartbeat is needed yet.
func (s *Store) begin() {
	s.until, s.pulse, s.reaches = s.ep.Now()+s.opt.Timeout, nil, 0
}

// left is how long the operation at work may still take.
func (s *Store) left() time.Duration { return max(s.until-s.ep.Now(), 0) }

// over reports whether the operation at work has used up its time.
func (s *Store) over() bool { return s.left() == 0 }

// do posts a batch as a step of the protocol and waits for it. When that takes too long the error
// wraps rdma.ErrTimeout, and verbs that are in flight may land at any time. The caller owns the
// batch, in each case.
func (s *Store) do(step rdma.Step, b *rdma.Batch) error {
	if s.pulse != nil {
		return s.doAlive(step, b)
	}
	return rdma.Do(s.ep, b.As(step), s.each)
}

// Close gives back what the worker holds in the pool. First it settles operations of unknown
// outcome; when that is impossible the error wraps client.ErrUncertain. A shard on a dead node
// where the worker left nothing is no error.
func (s *Store) Close() error {
	s.begin()
	s.ended(true) // if the last intent is not idle, its shard is settled below
	var errs []error
	untouched := make([]bool, len(s.shards))
	for i, st := range s.shards { // a node that does not answer holds no more than what the worker knows of
		untouched[i] = st.flying == nil && len(st.leased) == 0 && (!st.dirty || st.seq == 0) && !s.extents.HasClaims(i)
	}
	// These READs are posted behind what is in flight.
	if err := s.standings(); err != nil && !(s.table.Replicas > 1 && errors.Is(err, rdma.ErrStale)) {
		errs = append(errs, err)
	}
	for i := range s.shards {
		err := s.leave(i)
		for n := 0; n < joins && s.table.Replicas > 1 && err != nil && s.retryable(i, err); n++ {
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

// leave settles what the worker left in a shard, and gives back the extents that it has claimed
// there.
func (s *Store) leave(shard int) error {
	if err := s.settled(shard); err != nil {
		return err
	}
	_, err := s.extents.Leave(shard, s.id)
	return err
}
