package client

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Reading a clock twice takes 90 ns, and an operation on shared memory less than a microsecond. So
// only the first quota of a worker's fast operations in a second are timed. After them one of 256
// on average is timed, which stands for those before it. After an operation that took slow or
// longer the next one is timed, too.
const (
	slow  = 20 * time.Microsecond
	quota = 1000
	// The least number of operations that are not timed.
	leastSkip = 192
	// The number rises by up to as many more. The last bits of a clock decide, so that no pattern
	// of operations is favored.
	skipMask = 127
)

// worker is a store with its endpoint, and what a DB counts of it. It belongs to the operation that
// took it, and while it is idle to whatever holds the DB's mutex.
type worker struct {
	store Store
	ep    rdma.Endpoint
	meter *Meter         // nil: nothing is published
	count *rdma.Counters // of the endpoint

	// Operations since the last hand-over, by kind. owed counts those before it that have no
	// latency yet: the next one of their kind that is timed stands for them, too.
	ops  [telemetry.Kinds]telemetry.Ops
	owed [telemetry.Kinds]uint64
	// Operations that are still timed however fast they are.
	quota int
	// Operations until the next one that is timed; negative: the current one is.
	skip int
	// Trips of the endpoint when the last operation ended.
	trips uint64
	// When the current operation began, if it is timed.
	start time.Duration

	// The fields below are guarded by the DB's mutex. round is the round of the last hand-over.
	// began is when the current operation began, by the DB's clock; 0: there is none.
	round uint64
	began time.Duration
}

// begin is called before each operation. It reads the clock only if the operation is timed.
func (w *worker) begin() {
	if w.skip--; w.skip < 0 {
		w.start = w.ep.Now()
	}
}

// end counts an operation by its outcome.
func (w *worker) end(kind telemetry.Kind, err error) {
	if err != nil || w.skip < 0 {
		w.endSlowly(kind, err)
		return
	}
	w.answered(&w.ops[kind])
}

// answered counts an operation that was answered, with its trips. So trips of operations that
// failed count for none: see endSlowly.
func (w *worker) answered(o *telemetry.Ops) {
	o.OK++
	o.Trips += w.count.Trips - w.trips
	w.trips = w.count.Trips
}

// endSlowly is end for an operation that was timed, or that failed. Which operation is timed next
// depends on this one: skip is 0, for the next one, after a slow operation and while the quota of
// the round lasts.
func (w *worker) endSlowly(kind telemetry.Kind, err error) {
	took, timed := time.Duration(0), w.skip < 0
	if timed {
		now := w.ep.Now()
		switch took, w.skip = now-w.start, 0; {
		case took >= slow:
		case w.quota > 0:
			w.quota--
		default:
			w.skip = leastSkip + int(now&skipMask)
		}
	}
	o := &w.ops[kind]
	switch {
	case Answers(err):
		w.answered(o)
		if timed {
			if o.Latency == nil {
				o.Latency = new(telemetry.Histogram)
			}
			o.Latency.RecordN(took, w.untimed(kind))
		}
		return
	case errors.Is(err, ErrUncertain):
		o.Unknown++
	default:
		o.Failed++
	}
	w.trips = w.count.Trips
}

// untimed returns the number of operations that were answered and have no latency yet. The latency
// that is recorded next counts for all of them, so a histogram has as many entries as there were
// operations, up to those that the next round owes.
func (w *worker) untimed(kind telemetry.Kind) uint64 {
	o := &w.ops[kind]
	n := w.owed[kind] + o.OK
	if o.Latency != nil {
		n -= o.Latency.Count()
	}
	return n
}

// Answers reports whether an operation with this error was answered: it succeeded, or its error is
// part of the contract.
func Answers(err error) bool {
	return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists)
}

// handOver adds the worker's counts to p. The caller holds the DB's mutex, and no operation uses
// the worker.
func (w *worker) handOver(p *telemetry.Process) {
	for k := range w.ops {
		if o := &w.ops[k]; o.OK+o.Failed+o.Unknown > 0 {
			w.owed[k] = w.untimed(telemetry.Kind(k))
			p.Ops[k].Add(o)
			o.Reset()
		}
	}
	w.meter.Collect(p)
}

// book is what a DB publishes about its workers. The DB's mutex guards it. Rounds make it complete:
// the last Tick before a report begins one, and each worker hands over once in it, at the end of an
// operation or when Tell finds it idle.
type book struct {
	publisher *Publisher // nil: nothing is published, and nothing counted
	// Idle workers, and those that become idle, hand over what they counted before this round.
	round   uint64
	now     time.Duration
	workers map[*worker]bool
	// What was handed over since the publisher took it.
	recent *telemetry.Process
	// An empty one, which the publisher alone uses.
	spare *telemetry.Process
}

func newBook() book {
	return book{workers: map[*worker]bool{}, recent: new(telemetry.Process), spare: new(telemetry.Process)}
}

// joined notes a new worker.
func (b *book) joined(w *worker) {
	if b.publisher != nil {
		w.round, w.quota = b.round, quota
		b.workers[w] = true
	}
}

// took notes that a worker was taken for an operation.
func (b *book) took(w *worker) { w.began = b.now }

// gave notes that the worker's operation is over.
func (b *book) gave(w *worker) {
	w.began = 0
	if w.round != b.round {
		w.round, w.quota = b.round, quota
		w.handOver(b.recent)
	}
}

// left notes that a worker is leaving. Its counts would be lost otherwise.
func (b *book) left(w *worker) {
	if b.publisher != nil {
		w.handOver(b.recent)
		delete(b.workers, w)
	}
}

// Tick implements Subject.
func (db *DB) Tick(now time.Duration, last bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.book.now = now
	if last {
		db.book.round++
	}
}

// Tell implements Subject. A worker in the middle of an operation has handed over what it did
// before the last round began. It adds up without the mutex: recent is no other goroutine's once it
// was replaced by spare.
func (db *DB) Tell(p *telemetry.Process) {
	b := &db.book
	for db.collectIdle() {
	}
	db.mu.Lock()
	recent := b.recent
	b.recent, b.spare = b.spare, recent
	p.Workers = len(b.workers)
	p.Oldest = 0
	for w := range b.workers {
		if w.began > 0 {
			p.Oldest = max(p.Oldest, b.now-w.began)
		}
	}
	db.mu.Unlock()
	p.Add(recent)
	recent.Reset()
}

// collectIdle makes one idle worker hand over its counts. It reports false if all have. One worker
// at a time, so that operations do not wait long for the mutex.
func (db *DB) collectIdle() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, w := range db.idle {
		if w.round != db.book.round {
			db.book.gave(w)
			return true
		}
	}
	return false
}
