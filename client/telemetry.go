package client

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Two readings of a clock take 90 ns, and an operation on shared memory less than a microsecond. So
// of a worker's fast operations only the first quota of a second are timed, and then one of 256 on
// average, which stands for those before it; behind one that took slow or longer the next is timed,
// too.
const (
	slow      = 20 * time.Microsecond
	quota     = 1000
	leastSkip = 192 // operations that are not timed
	// up to as many more: the last bits of a clock draw how many, so that no pattern of operations is hit
	skipMask = 127
)

// worker is a store with its endpoint, and what a DB that tells counts of it.
type worker struct {
	store Store
	ep    rdma.Endpoint
	meter *Meter         // nil: what is counted is not told
	count *rdma.Counters // of the endpoint

	// Of operations since they were handed over; owed are those before, that the next one of their
	// kind to be timed stands for, too.
	ops   [telemetry.Kinds]telemetry.Ops
	owed  [telemetry.Kinds]uint64
	quota int           // operations that are timed however fast they are
	skip  int           // operations until the next one that is timed; negative: this one is
	trips uint64        // of the endpoint when the last operation ended
	start time.Duration // of the operation, when it is timed

	// What follows is guarded by the DB's mutex.
	round uint64        // of the last handing over
	began time.Duration // of the operation that runs, by the DB's clock; 0: none does
}

// begin is called before each operation.
func (w *worker) begin() {
	if w.skip--; w.skip < 0 {
		w.start = w.ep.Now()
	}
}

// end counts an operation by how it ended.
func (w *worker) end(kind telemetry.Kind, err error) {
	if err != nil || w.skip < 0 {
		w.endSlowly(kind, err)
		return
	}
	w.answered(&w.ops[kind])
}

func (w *worker) answered(o *telemetry.Ops) {
	o.OK++
	o.Trips += w.count.Trips - w.trips
	w.trips = w.count.Trips
}

// endSlowly is end of an operation that was timed, or answered otherwise than well.
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

// untimed returns how many operations were answered and have no latency yet.
func (w *worker) untimed(kind telemetry.Kind) uint64 {
	o := &w.ops[kind]
	n := w.owed[kind] + o.OK
	if o.Latency != nil {
		n -= o.Latency.Count()
	}
	return n
}

// Answers reports whether an operation that ended with err was answered: well, or with an error
// that is part of the contract.
func Answers(err error) bool {
	return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists)
}

// handOver adds what the worker counted to p.
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

// book is what a DB tells of its workers. It is guarded by the DB's mutex.
type book struct {
	publisher *Publisher // nil: nothing is told, and nothing counted
	round     uint64     // workers that are idle, or become so, hand over what they counted before it
	now       time.Duration
	workers   map[*worker]bool
	recent    *telemetry.Process // what was handed over since the publisher took it
	spare     *telemetry.Process // the publisher's alone: it counts nothing
}

func newBook() book {
	return book{workers: map[*worker]bool{}, recent: new(telemetry.Process), spare: new(telemetry.Process)}
}

// joined notes that there is a worker more.
func (b *book) joined(w *worker) {
	if b.publisher != nil {
		w.round, w.quota = b.round, quota
		b.workers[w] = true
	}
}

// took notes that a worker was taken for an operation.
func (b *book) took(w *worker) { w.began = b.now }

// gave notes that the operation is over.
func (b *book) gave(w *worker) {
	w.began = 0
	if w.round != b.round {
		w.round, w.quota = b.round, quota
		w.handOver(b.recent)
	}
}

// left notes that a worker is about to leave.
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

// Tell implements Subject. Workers in the midst of an operation have told what they had done before
// the last round began.
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

// collectIdle has one idle worker hand over what it counted; false: all have. One at a time keeps
// operations from waiting.
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
