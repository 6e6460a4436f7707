package dtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Options of a Worker.
type Options struct {
	// Timeout bounds a transaction with all its attempts, and its waits for a
	// recovery; 1 s by default. What was decided by then is finished within as
	// long again.
	Timeout time.Duration
	// Unlogged transactions write no log. What one of them has changed when its
	// client dies stays locked, or is lost, for ever. It is there to measure what
	// the log costs, and for nothing else.
	Unlogged bool
}

// Detection is how often a pool's master should look for dead clients
// (cluster.Options.Tick). With this value it finds them as fast as rTX's leases
// expire: 8 ms in the figures of the rTX paper (section 6.4).
const Detection = 8 * time.Millisecond

// These are errors that callers branch on, beside client.ErrUncertain,
// client.ErrFull, client.ErrTooLarge, client.ErrDamaged, and those of package
// rdma. An error that wraps rdma.ErrTimeout, and not client.ErrUncertain, ends a
// transaction that changed nothing.
var (
	// ErrNoObject ends a Read, Write, Free or Lock of an object that is not there.
	ErrNoObject = errors.New("no such object")
	// ErrRetired ends all transactions of a worker if its identity has used up
	// its sequences. Each attempt that locks something takes one, so this takes
	// decades.
	ErrRetired = errors.New("client has used up its transactions")
	// ErrTooMany ends a transaction that changes more objects than Shape.Writes,
	// or takes more bytes of log than Shape.Log.
	ErrTooMany = errors.New("transaction changes too many objects")
)

// Stats count what a worker did. They only grow.
type Stats struct {
	// Commits counts transactions that changed something.
	Commits uint64
	// Retries counts closures that were run again.
	Retries uint64
	// Waits counts locks of others that were waited for.
	Waits uint64
	// Torn counts READs of objects that were torn.
	Torn uint64
	// Freed counts locks that were released because their transaction is over.
	Freed uint64
	// Recovered counts clients that were recovered.
	Recovered uint64
	// Replayed counts commits that were finished from their logs.
	Replayed uint64
	// Claims and Scans count chunks that were claimed and scanned.
	Claims, Scans uint64
}

// Worker runs transactions, one at a time, with an endpoint of its own. It is not
// safe for concurrent use. A client that has several operations in flight has
// several workers. Each has an identity, and so a log.
type Worker struct {
	*Layout
	ep  rdma.Endpoint
	opt Options
	id  rdma.ClientID
	// numbers hands out sequences, and keeps the durable ceiling above them.
	numbers *kit.Numbers
	// view follows the pool's membership.
	view *kit.Member
	// conflicts and waits are copied by each transaction and each wait.
	conflicts, waits kit.Retry
	// trips have the time of a transaction.
	trips kit.Trips
	// shared: all transactions until the next Span have this time together.
	shared bool
	tx     Tx
	// pendingReleases are releases of locks that may be held still, or may yet be.
	pendingReleases []swap
	// pending are transactions of unknown outcome.
	pending kit.Unresolved[pending]
	// unreplayed are clients of which the worker keeps the claim, since a WRITE of a
	// replay may land late.
	unreplayed map[rdma.ClientID]bool
	memory     memory
	// each are the objects that Each reads.
	each []reading
	// seenData is what Look has returned.
	seenData []byte
	stats    Stats
}

// swap is a CAS of a lock that is done until its outcome is known. The old word
// is that of one transaction, so the CAS takes effect once at most, however often
// it is done.
type swap struct {
	at       rdma.Addr
	old, new Version
}

// Open returns a worker of an endpoint, which has an identity of 1 to
// Shape.Clients. It recovers what an earlier holder of the identity has left. The
// endpoint stays the caller's, and must not be used otherwise until Close.
func Open(ep rdma.Endpoint, l *Layout, o Options) (*Worker, error) {
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	w := &Worker{Layout: l, ep: ep, opt: o, id: ep.Client(), unreplayed: map[rdma.ClientID]bool{}}
	w.trips = kit.NewTrips(ep, kit.NewBudget(ep, o.Timeout, 0), errTime)
	if w.id == 0 || int(w.id) > l.Clients {
		return nil, fmt.Errorf("open as client %d of 1 to %d: %w", w.id, l.Clients, rdma.ErrFull)
	}
	// Pauses differ between clients, so that two of them do not collide again and
	// again. A late transaction makes no pauses between its attempts.
	own := time.Duration(w.id%8) * time.Microsecond
	pause := kit.Spread(own, kit.Doubling(2*time.Microsecond, 500*time.Microsecond))
	w.conflicts = kit.Retry{Env: ep, Pause: kit.Unless(w.late, pause), Over: w.trips.Over}
	w.waits = kit.Retry{Env: ep, Pause: kit.Doubling(time.Microsecond, 250*time.Microsecond), Over: w.trips.Over}
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
	return w, nil
}

// sequencesAhead is how many sequences a worker reserves at a time. So many
// transactions take one WRITE of the ceiling.
const sequencesAhead = 1 << 12

// ceiling is the durable number above all sequences of a client, in its log.
func (w *Worker) ceiling(c rdma.ClientID) kit.Ceiling {
	return &kit.Everywhere{At: []rdma.Addr{w.log(c).Add(ceilingAt)}, Batch: w.ep.Batch, Do: w.trips.Do}
}

// number returns a sequence above all those that any holder of the identity has
// had.
func (w *Worker) number() (uint64, error) {
	n := w.numbers.Used() + 1
	if n > w.maxSequence {
		return 0, fmt.Errorf("client %d has used all %d: %w", w.id, w.maxSequence, ErrRetired)
	}
	return n, w.numbers.Use(n)
}

// Stats returns the counters.
func (w *Worker) Stats() Stats { return w.stats }

// Close gives back what the worker holds in the pool. The endpoint stays open. If
// Close fails, the client is to be fenced off and recovered, as client.Leave
// does.
func (w *Worker) Close() error {
	w.trips.Begin()
	err := w.leave()
	// rejoin bounds it in time.
	for err != nil && w.rejoin(err) {
		err = w.leave()
	}
	if err != nil {
		return fmt.Errorf("close client %d: %w", w.id, err)
	}
	return nil
}

// leave ends what transactions have left, and gives back the chunks that the
// pool's tables say the client has. A crash in between leaves the other chunks to
// Recover.
func (w *Worker) leave() error {
	if err := w.settle(); err != nil {
		return err
	}
	if err := w.releasePending(); err != nil {
		return err
	}
	if w.memory.table.Late {
		return fmt.Errorf("a node may hand a chunk out to it yet: %w", client.ErrUncertain)
	}
	// Other clients wait for the claim until this worker is recovered itself.
	if len(w.unreplayed) > 0 {
		return fmt.Errorf("it has not recovered all clients that it has claimed: %w", client.ErrUncertain)
	}
	list, err := w.chunksOf(w.id)
	if err != nil {
		return err
	}
	w.memory.open(w)
	return w.memory.table.Free(&w.chunks, list)
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

// lateShare: a transaction is late when this part of its time has passed, one of
// so many.
const lateShare = 8

// late reports whether the transaction is late.
func (w *Worker) late() bool { return w.trips.Used(lateShare) }

// begin begins the span of a transaction, unless Span has begun one.
func (w *Worker) begin() {
	if !w.shared {
		w.trips.Begin()
	}
}

// errTime ends what has used up its time.
var errTime = fmt.Errorf("transaction %w", rdma.ErrTimeout)

// rejoin reports whether it is useful to go on after an error: see
// kit.Member.Rejoin.
func (w *Worker) rejoin(err error) bool { return w.view.Rejoin(err, w.trips.Left(), w.opt.Timeout) }
