package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/locks"
	"github.com/farkv/farkv/client/rcuckoo/recovery"
	"github.com/farkv/farkv/client/rcuckoo/search"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
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
// For what a crash after each of these verbs leaves, see intent.go and redo.go of package table,
// and repair.go of package recovery.
//
// locks has the locks of the operation at work, and the rows that it reads. A GET takes no lock,
// and uses it for its READs alone. The detector has timers that go on from one operation to the
// next. extents has what the worker has claimed and no row names yet; for a crash the claim lists
// in the pool say the same. Only INSERTs search the cache, so a row that is out of date costs
// them a try (section 3.2.3).
type Store struct {
	// session has what the worker knows of the shards and of the view. The parts share it through
	// op and the detector, so what one operation leaves in a shard the next one finds.
	session *session.Session
	// op is the operation at work. There is one at a time. A part of it with other limits, such
	// as a heartbeat, is an op of its own on the same session.
	op       *session.Op
	locks    *locks.Locks
	detector *locks.Detector
	repairer *recovery.Repairer
	settler  *recovery.Settler
	extents  *extents.Client
	search   *search.Search
	cache    *search.Cache
	// levels is what is known of growth. The Store and its search share it.
	levels *table.Levels
	// changes are those of the operation at work. A redo holds as many.
	changes [table.MaxSteps]table.Change
	// spare is the buffer in which the operation at work encodes its new entry: EntryBytes of it.
	spare []byte
	// taken is the extent of the value that the operation at work brings. zero: the value is
	// inline, or the operation has taken no extent yet.
	taken table.Ref
	// takenIn is the shard of taken.
	takenIn int
	// value is the buffer of Get's result. It outlives the batch that the value was read in, and
	// the next Get overwrites it.
	value []byte
}

var _ client.Store = (*Store)(nil)

// Open returns a worker's view of the pool that ep reaches. The caller owns ep and closes it
// after the Store. The error wraps rdma.ErrFull when the pool was made for fewer clients,
// ErrParams when it was made for shorter timeouts, and rdma.ErrTimeout when its view never stops
// changing.
func Open(ep rdma.Endpoint, o session.Options) (*Store, error) {
	for range session.Joins {
		s, err := open(ep, o)
		if !errors.Is(err, rdma.ErrStale) {
			return s, err
		}
		if _, err := ep.Join(); err != nil { // there is no Store yet that could miss a change of leader
			return nil, fmt.Errorf("open %s: %w", table.Format, err)
		}
	}
	return nil, fmt.Errorf("open %s: %w", table.Format, session.ErrEpochs)
}

// open is one try of Open. First the worker joins the view and places the copies by it, then it
// follows the view, and only then it reads the intents and growth words. So what it reads is the
// leaders' of the view that it knows, or the READs fail. The error wraps rdma.ErrStale when the
// view changed meanwhile.
func open(ep rdma.Endpoint, o session.Options) (*Store, error) {
	l, v, err := table.Read(ep)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", table.Format, err)
	}
	ses, err := session.New(ep, l, v, o)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", table.Format, err)
	}
	s := &Store{session: ses, extents: extents.New(l, ep, ses.Opt.Timeout),
		spare: make([]byte, l.EntryBytes), value: make([]byte, 0, l.ExtentBytes)}
	s.op = ses.NewOp()
	s.detector = locks.NewDetector(ses)
	s.locks, s.repairer = locks.New(s.detector), recovery.NewRepairer(s.detector)
	s.settler = recovery.NewSettler(s.detector, s.repairer)
	// From here on each change of the view reaches the worker, so it cannot miss that a leader
	// changed.
	ses.Enter()
	v.Follow(s.applyView)
	// applyView needs levels. It was not called since Follow, as no verb was posted.
	s.search, s.cache = search.New(l), search.NewCache(l, *cmp.Or(o.CacheBytes, new(session.DefaultCache)))
	s.levels = s.search.Levels
	// The op has not begun: only Each bounds these READs.
	if err := errors.Join(s.op.LoadShardStates(), s.readGrowths(s.op)); err != nil {
		return nil, fmt.Errorf("open %s: %w", table.Format, err)
	}
	return s, nil
}

// Stats returns the worker's counters.
func (s *Store) Stats() session.Stats { return s.session.Stats }

// pathNames are the names of the counters in Stats.Paths.
var pathNames = [table.MaxSteps]string{
	"paths of 1 row", "paths of 2 rows", "paths of 3 rows", "paths of 4 rows", "paths of 5 rows", "paths of 6 rows",
}

// Counts implements client.Countable.
func (s *Store) Counts(to []telemetry.Counter) []telemetry.Counter {
	to = append(to,
		telemetry.Counter{Name: "second searches in vain", Count: s.session.Stats.Searches},
		telemetry.Counter{Name: "lock retries", Count: s.session.Stats.Waits},
		telemetry.Counter{Name: "torn rows", Count: s.session.Stats.Torn},
		telemetry.Counter{Name: "repairs", Count: s.session.Stats.Repairs},
		telemetry.Counter{Name: "clients fenced off", Count: s.session.Stats.Fenced},
		telemetry.Counter{Name: "rows repaired", Count: s.session.Stats.Rolled},
		telemetry.Counter{Name: "rows divided", Count: s.session.Stats.Divided},
		telemetry.Counter{Name: "cache hits", Count: s.cache.Hits},
		telemetry.Counter{Name: "cache misses", Count: s.cache.Misses},
	)
	for i, n := range s.session.Stats.Paths {
		to = append(to, telemetry.Counter{Name: pathNames[i], Count: n})
	}
	return to
}

// Close gives back what the worker holds in the pool. It reads the intents of all shards behind
// all that is in flight, so a WRITE that ended an intent and was lost shows now. First it settles
// operations of unknown outcome; when that is impossible the error wraps client.ErrUncertain. A
// shard on a dead node where the worker left nothing is no error.
//
// A crash in Close leaves no more than a crash before it: the intents, leases and claim lists in
// the pool name all that the worker still holds.
func (s *Store) Close() error {
	o := s.op.Begin()
	o.Ended(true) // if the last intent is not idle, its shard is settled below
	var errs []error
	untouched := make([]bool, len(o.Shards))
	for i, st := range o.Shards {
		// A node that does not answer holds no more than what the worker knows of. A shard that is
		// dirty with Seq 0 has no operation of this worker: its node did not answer at open, or
		// another copy leads it since.
		untouched[i] = len(st.Flying) == 0 && len(st.Leased) == 0 && (!st.Dirty || st.Seq == 0) &&
			!s.extents.HasClaims(i)
	}
	// These READs are posted behind what is in flight, on the connections that it is on, so their
	// answers show what it has left. Behind a change of the view they fail, and nothing is missed:
	// an operation of which verbs failed has left its shard dirty.
	if err := o.LoadShardStates(); err != nil && !errors.Is(err, rdma.ErrStale) {
		errs = append(errs, err)
	}
	for i := range o.Shards {
		needless := func(err error) bool { return untouched[i] && errors.Is(err, rdma.ErrNodeDown) }
		err := s.leave(o, i)
		// With replicas the node has a successor, and is waited for in each case. Retryable bounds
		// the waits in time; each join follows a change of the view.
		for n := 0; n < session.Joins && err != nil; n++ {
			if o.Table.Replicas == 1 && needless(err) || !o.Retryable(i, err) {
				break
			}
			err = s.leave(o, i)
		}
		if err != nil && !needless(err) {
			errs = append(errs, fmt.Errorf("shard %d: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w: %w", client.ErrUncertain, err)
	}
	return nil
}

// leave settles what the worker left in a shard, and gives back the extents that it has claimed
// there. The extents come last: until an operation of unknown outcome is settled, a row may come
// to name the one that it took.
func (s *Store) leave(o *session.Op, shard int) error {
	if err := s.settler.Settled(o, shard); err != nil {
		return err
	}
	_, err := s.extents.Leave(shard, o.ID)
	return err
}
