package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Options of a Worker. Fields that are zero get the paper's values.
type Options struct {
	// Drift is the part of a lease that allows for clocks and schedulers; 8 ms by
	// default (section 6.1). All clients of a pool should have the same.
	Drift time.Duration
	// Timeout bounds a transaction with all its attempts; 1 s by default. What
	// was decided by then is finished within as long again.
	Timeout time.Duration
	// Quarantine is for how long a buffer is not used again after the last object
	// that named it. It bounds how soon a tag comes back. By default a tag comes
	// back after an hour at the earliest, or when each use of a buffer waits for
	// Drift: see README, "Widths".
	Quarantine time.Duration
	// Flat makes all leases as long as Drift: they do not grow with what a
	// transaction expects to take. So the regulation of section 4.3 is off.
	Flat bool
	// Late is for how long a transaction waits for locks of others before it
	// makes the lock that it meets wanted. Only late transactions lock a wanted
	// one next. An eighth of Timeout by default.
	Late time.Duration
	// Log keeps a log of transactions that change one object, too: OPT1 is off.
	Log bool
}

// These are errors that callers branch on, beside client.ErrUncertain,
// client.ErrFull, client.ErrTooLarge, client.ErrDamaged, and those of package
// rdma. An error that wraps rdma.ErrTimeout, and not client.ErrUncertain, ends a
// transaction that changed nothing.
var (
	// ErrNoObject ends a Read, Write, Free or Lock of an object that is not
	// there.
	ErrNoObject = errors.New("no such object")
	// ErrRetired ends all transactions of a worker if its identity has used up
	// its sequences. Each attempt that locks something takes one, so this takes
	// years.
	ErrRetired = errors.New("client has used up its transactions")
	// ErrTooMany ends a transaction that changes more objects than Shape.Writes.
	ErrTooMany = errors.New("transaction changes too many objects")
)

// Stats count what a worker did. They only grow.
type Stats struct {
	// Commits counts transactions that changed something, and Alone those of them
	// that changed one object without a log.
	Commits, Alone uint64
	// Retries counts closures that were run again.
	Retries uint64
	// Waits counts locks of others that were waited for, and Wanted those of them
	// that were made wanted.
	Waits  uint64
	Wanted uint64
	// Freed counts locks that were released because their transaction is over.
	Freed uint64
	// Aborted counts transactions of others that were aborted.
	Aborted uint64
	// Stolen counts locks of OPT1 that were repaired.
	Stolen uint64
	// Finished counts commits of others that were taken over.
	Finished uint64
	// Lost counts own transactions that other clients aborted, or of which they
	// released a lock.
	Lost uint64
	// Claims and Scans count chunks that were claimed and scanned.
	Claims, Scans uint64
}

// Worker runs transactions, one at a time, with an endpoint of its own. It is not
// safe for concurrent use. A client that has several operations in flight has
// several workers (the paper's coroutines). Each has an identity, and so a log.
type Worker struct {
	*session
	*repairer
	// numbers hands out sequences, and keeps the durable ceiling above them.
	numbers *kit.Numbers
	// conflicts and waits are copied by each transaction and each wait.
	conflicts, waits kit.Retry
	// state is the word of the own log as it was seen last. Other clients may
	// have changed it since.
	state state
	// shared: all transactions until the next Span have this time together.
	shared bool
	tx     Tx
	// releases are batches that release locks, which no transaction waits for.
	releases []*rdma.Batch
	// pending are transactions of unknown outcome.
	pending kit.Unresolved[pending]
	memory  memory
	watch   watch
	// each are the objects that Each reads.
	each []reading
	// seenData is what Look has returned.
	seenData []byte
}

// session is how a worker reaches the pool, and the time that its transaction has.
type session struct {
	*Layout
	ep  rdma.Endpoint
	opt Options
	id  rdma.ClientID
	// view follows the pool's membership.
	view *kit.Member
	// trips have the time of a transaction.
	trips kit.Trips
	stats Stats
}

// tagLife is the time after which a tag of a buffer comes back at the earliest,
// if tags are not narrow. It is far above the time for which a verb can be in
// flight.
const tagLife = time.Hour

// Open returns a worker of an endpoint, which has an identity of 1 to
// Shape.Clients. It recovers what an earlier holder of the identity has left. The
// endpoint stays the caller's, and must not be used otherwise until Close.
func Open(ep rdma.Endpoint, l *Layout, o Options) (*Worker, error) {
	if o.Drift <= 0 {
		o.Drift = 8 * time.Millisecond
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.Quarantine <= 0 {
		o.Quarantine = min(tagLife/time.Duration(l.maxTag+1), o.Drift)
	}
	o.Quarantine = max(o.Quarantine, 1)
	if o.Late <= 0 {
		o.Late = o.Timeout / 8
	}
	s := &session{Layout: l, ep: ep, opt: o, id: ep.Client()}
	s.trips = kit.NewTrips(ep, kit.NewBudget(ep, o.Timeout, 0), errTime)
	w := &Worker{session: s, repairer: &repairer{session: s}}
	if w.id == 0 || int(w.id) > l.Clients {
		return nil, fmt.Errorf("open as client %d of 1 to %d: %w", w.id, l.Clients, rdma.ErrFull)
	}
	w.conflicts, w.waits = conflicts(w), waits(w)
	w.tx.w = w
	w.memory.open(w)
	w.trips.Begin()
	var err error
	if w.view, err = kit.Join(ep); err != nil {
		return nil, err
	}
	if w.numbers, err = kit.OpenNumbers(w.ceiling(w.id), sequencesAhead); err != nil {
		return nil, fmt.Errorf("read the ceiling of client %d: %w", w.id, err)
	}
	// All verbs of the earlier holder have landed: the identity was not free
	// before.
	if err := w.Recover(w.id); err != nil {
		return nil, err
	}
	w.state, err = w.readState(w.id)
	return w, err
}

// sequencesAhead is how many sequences a worker reserves at a time. So many
// transactions take one WRITE of the ceiling.
const sequencesAhead = 1 << 12

// ceiling is the durable number above all sequences of a client, in its log.
func (s *session) ceiling(c rdma.ClientID) kit.Ceiling {
	return &kit.Everywhere{At: []rdma.Addr{s.log(c).Add(ceilingAt)}, Batch: s.ep.Batch, Do: s.trips.Do}
}

// Stats returns the counters.
func (w *Worker) Stats() Stats { return w.stats }

// Close gives back what the worker holds in the pool. The endpoint stays open. If
// Close fails the client is to be recovered.
func (w *Worker) Close() error {
	w.trips.Begin()
	err := w.leave()
	for err != nil && w.rejoin(err) {
		err = w.leave()
	}
	if err != nil {
		return fmt.Errorf("close client %d: %w", w.id, err)
	}
	return nil
}

// leave finishes all transactions, and then does what recovers a client. So locks
// that failed to be released are of transactions that are over, and a crash in
// between leaves what Recover completes.
func (w *Worker) leave() error {
	if err := w.settle(); err != nil {
		return err
	}
	if w.memory.table.Late {
		return fmt.Errorf("a node may hand a chunk out to it yet: %w", client.ErrUncertain)
	}
	w.memory.open(w)
	return w.endClient(w.id, isMeant)
}

// Span begins a span of Options.Timeout for all that the worker does until the
// next Span. So an operation of an index that takes several transactions takes no
// longer than one of them would. Without Span each transaction has its own time.
func (w *Worker) Span() {
	w.trips.Begin()
	w.shared = true
}

// Over reports whether the time of a Span is over.
func (w *Worker) Over() bool { return w.trips.Over() }

// begin begins the span of a transaction, unless Span has begun one.
func (w *Worker) begin() {
	w.reap()
	if !w.shared {
		w.trips.Begin()
	}
}

// errTime ends what has used up its time.
var errTime = fmt.Errorf("transaction %w", rdma.ErrTimeout)

// land waits for all verbs that are in flight. Until they have landed the client
// must not do what they could undo. Releases come first, since they may leave
// other batches in flight.
func (w *Worker) land() error {
	for n := len(w.releases) - 1; n >= 0; n-- {
		b := w.releases[n]
		if err := w.trips.Finish(b); err != nil {
			return err
		}
		w.releases = w.releases[:n]
		w.releaseWanted(b)
		b.Release()
	}
	return w.trips.Land(nil)
}

// mostReleases bounds the batches of releases that are in flight.
const mostReleases = 16

// resume is what a transaction begins with: it settles what earlier transactions
// have left. It does not wait for releases of their locks. These may land at any
// time, since each expects a word that no other lock has.
func (w *Worker) resume() error {
	if len(w.trips.InFlight) > 0 || len(w.pending) > 0 || len(w.releases) > mostReleases {
		return w.settle()
	}
	return nil
}

// reap releases batches of releases that have landed.
func (w *Worker) reap() {
	list := w.releases
	w.releases = w.releases[:0]
	for _, b := range list {
		if b.Finished() {
			w.releaseWanted(b)
			b.Release()
			continue
		}
		w.releases = append(w.releases, b)
	}
}

// rejoin reports whether it is useful to go on after an error: see
// kit.Member.Rejoin.
func (s *session) rejoin(err error) bool { return s.view.Rejoin(err, s.trips.Left(), s.opt.Timeout) }

// readState reads the word of a client's log.
func (s *session) readState(c rdma.ClientID) (state, error) {
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	op := b.Read(s.log(c).Add(stateAt), 8)
	if err := s.trips.Do(stepReadLog, b); err != nil {
		return 0, fmt.Errorf("read the log of client %d: %w", c, err)
	}
	return state(op.Word(0)), nil
}
