package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Options of a Worker. The zero value has the paper's.
type Options struct {
	// Drift is the part of a lease that is there for clocks and schedulers; 8 ms by default (section
	// 6.1). All clients of a pool should have the same.
	Drift time.Duration
	// Timeout bounds a transaction with all its retries; 1 s by default. What was decided by then is
	// brought to its end within as long again.
	Timeout time.Duration
	// Quarantine is how long a buffer is not used again once no object names it. It bounds how soon
	// tags come back: by default behind an hour, or when each use waits for Drift: see README,
	// "Widths".
	Quarantine time.Duration
	// Flat leaves out of the leases of its locks what their transactions expect to take: without the
	// regulation of section 4.3.
	Flat bool
	// Late is for how long a transaction waits for locks of others, before a lock that it meets
	// becomes wanted: none locks that one next which is not late. An eighth of Timeout by default.
	Late time.Duration
	// Log keeps a log of transactions that change one object, too: without OPT1.
	Log bool
}

// What callers branch on, beside client.ErrUncertain, client.ErrFull, client.ErrTooLarge,
// client.ErrDamaged, and those of package rdma. An error that wraps rdma.ErrTimeout and not
// client.ErrUncertain ends a transaction that changed nothing.
var (
	// ErrNoObject ends a Read, Write, Free or Lock of an object that is not there.
	ErrNoObject = errors.New("no such object")
	// ErrRetired ends all transactions of a worker whose identity has used up its sequences: after
	// years, as each transaction takes one.
	ErrRetired = errors.New("client has used up its transactions")
	// ErrTooMany ends a transaction that changes more objects than Shape.Writes.
	ErrTooMany = errors.New("transaction changes too many objects")
)

// Stats count what a worker did. They only grow.
type Stats struct {
	Commits, Alone uint64 // transactions that changed something; of them those of one object without a log
	Retries        uint64 // closures that were run again
	Waits          uint64 // locks of others that were waited for
	Wanted         uint64 // of them those that became wanted
	Freed          uint64 // locks that were released since their transaction is over
	Aborted        uint64 // transactions of others that were aborted
	Stolen         uint64 // locks of OPT1 that were repaired
	Finished       uint64 // commits of others that were taken over
	Lost           uint64 // own transactions that others aborted, or whose locks they released
	Claims, Scans  uint64 // chunks that were claimed and scanned
}

// Worker runs transactions, one at a time, with an endpoint of its own. It is not safe for
// concurrent use. A client that has several operations in flight has several workers (the paper's
// coroutines): each has an identity, and so a log.
type Worker struct {
	*Layout
	ep      rdma.Endpoint
	opt     Options
	id      rdma.ClientID
	numbers *kit.Numbers
	view    *kit.Member
	// Each transaction, and each wait, has a copy.
	conflicts, waits kit.Retry
	state            state         // of the own log, as it was met last
	spare            time.Duration // that is left of a transaction's time, as of looked
	shared           bool          // by all transactions, until the next Span
	looked           time.Duration
	sent             bool // the last batch was posted
	tx               Tx
	flying           []*rdma.Batch // that a wait gave up
	releases         []*rdma.Batch // of locks, that are not waited for
	pending          kit.Unresolved[pending]
	memory           memory
	watch            watch
	record           record // that was read last
	each             []reading
	seenData         []byte // by Look
	stats            Stats
}

// tagLife is behind which time a tag of a buffer comes back at the earliest, where tags are not
// narrow. It is far above the time for which a verb can be on its way.
const tagLife = time.Hour

// Open returns a worker of an endpoint, whose identity is 1 to Shape.Clients.
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
	w := &Worker{Layout: l, ep: ep, opt: o, id: ep.Client()}
	if w.id == 0 || int(w.id) > l.Clients {
		return nil, fmt.Errorf("open as client %d of 1 to %d: %w", w.id, l.Clients, rdma.ErrFull)
	}
	w.conflicts, w.waits = conflicts(w), waits(w)
	w.tx.w = w
	w.memory.open(w)
	w.extend()
	var err error
	if w.view, err = kit.Join(ep); err != nil {
		return nil, err
	}
	if w.numbers, err = kit.OpenNumbers(w.ceiling(w.id), sequencesAhead); err != nil {
		return nil, fmt.Errorf("read the ceiling of client %d: %w", w.id, err)
	}
	if err := w.Recover(w.id); err != nil { // what an earlier holder left; all of its verbs have landed
		return nil, err
	}
	w.state, err = w.readState(w.id)
	return w, err
}

// sequencesAhead is how many sequences a worker reserves at a time: one WRITE more for so many
// transactions.
const sequencesAhead = 1 << 12

func (w *Worker) ceiling(c rdma.ClientID) kit.Ceiling {
	return &kit.Everywhere{At: []rdma.Addr{w.log(c).Add(ceilingAt)}, Batch: w.ep.Batch, Do: w.do}
}

// Stats returns the counters.
func (w *Worker) Stats() Stats { return w.stats }

// Close gives back what the worker holds in the pool. The endpoint stays open. When it fails, the
// client is to be recovered.
func (w *Worker) Close() error {
	w.extend()
	err := w.leave()
	for err != nil && w.rejoin(err) {
		err = w.leave()
	}
	if err != nil {
		return fmt.Errorf("close client %d: %w", w.id, err)
	}
	return nil
}

func (w *Worker) leave() error {
	if err := w.settle(); err != nil {
		return err
	}
	if w.memory.table.Late {
		return fmt.Errorf("a node may hand a chunk out to it yet: %w", client.ErrUncertain)
	}
	list, err := w.chunksOf(w.id)
	if err != nil {
		return err
	}
	w.memory.open(w)
	return w.freeChunks(list)
}

// extend begins a new span of time.
func (w *Worker) extend() { w.spare, w.looked = w.opt.Timeout, w.ep.Now() }

// Span begins a span of Options.Timeout for all that the worker does from now on, until the next
// one: an operation of an index that takes several transactions takes no longer than one would.
// Without it each has its own.
func (w *Worker) Span() {
	w.extend()
	w.shared = true
}

// Over reports whether the time of a Span is over.
func (w *Worker) Over() bool { return w.over() }

// begin begins the span of a transaction.
func (w *Worker) begin() {
	w.reap()
	if !w.shared {
		w.extend()
	}
}

// timeShares is into how many parts a transaction's time falls. What passes between two looks at
// the clock counts as one part at most: the clock may have been set.
const timeShares = 4

// left returns how much of the time is left.
func (w *Worker) left() time.Duration {
	now := w.ep.Now()
	w.spare -= min(max(now-w.looked, 0), w.opt.Timeout/timeShares)
	w.looked = now
	return w.spare
}

func (w *Worker) over() bool { return w.left() <= 0 }

// errTime ends what has used up its time.
var errTime = fmt.Errorf("transaction %w", rdma.ErrTimeout)

// do posts a batch as a step of the protocol and waits for all of it, as long as there is time;
// with none left it posts nothing.
func (w *Worker) do(step rdma.Step, b *rdma.Batch) error {
	w.sent = false
	left := w.left()
	if left <= 0 {
		return errTime
	}
	if b.Len() == 0 {
		return nil
	}
	if err := w.ep.Post(b.As(step)); err != nil {
		return err
	}
	w.sent = true
	if err := w.ep.Wait(b, rdma.All, left); err != nil {
		return err
	}
	return b.Err()
}

// drop releases a batch once nothing of it is in flight.
func (w *Worker) drop(b *rdma.Batch) {
	if b.Finished() {
		b.Release()
		return
	}
	w.flying = append(w.flying, b)
}

// land waits for verbs that are in flight. Until they have landed the client must not do what they
// could undo.
func (w *Worker) land() error {
	for _, list := range []*[]*rdma.Batch{&w.releases, &w.flying} { // what the first leave is in the second
		for n := len(*list) - 1; n >= 0; n-- {
			b := (*list)[n]
			if err := w.ep.Wait(b, rdma.All, max(w.left(), 1)); err != nil && !b.Finished() {
				return err
			}
			*list = (*list)[:n]
			if list == &w.releases {
				w.releaseWanted(b)
			}
			b.Release()
		}
	}
	return nil
}

// mostReleases bounds the releases of locks that are in flight.
const mostReleases = 16

// resume is what a transaction begins with: it settles what earlier ones have left. Releases of
// their locks may land whenever they do, since each expects a word that no other lock has; so they
// are not waited for.
func (w *Worker) resume() error {
	if len(w.flying) > 0 || len(w.pending) > 0 || len(w.releases) > mostReleases {
		return w.settle()
	}
	return nil
}

// reap looks at releases of locks that have landed.
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

// rejoin reports whether it makes sense to go on behind an error: see kit.Member.Rejoin.
func (w *Worker) rejoin(err error) bool { return w.view.Rejoin(err, w.left(), w.opt.Timeout) }

func (w *Worker) readState(c rdma.ClientID) (state, error) {
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.Read(w.log(c).Add(stateAt), 8)
	if err := w.do(stepReadLog, b); err != nil {
		return 0, fmt.Errorf("read the log of client %d: %w", c, err)
	}
	return state(op.Word(0)), nil
}

// swap is a CAS of one word. It returns the word before, and whether it was swapped.
func (w *Worker) swap(step rdma.Step, at rdma.Addr, old, new uint64) (before uint64, ok bool, err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	op := b.CompareSwap(at, old, new)
	if err := w.do(step, b); err != nil {
		return 0, false, err
	}
	return op.Result, op.Swapped(), nil
}
