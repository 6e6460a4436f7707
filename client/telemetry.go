package client

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Two readings of a clock take 90 ns, and an operation on shared memory less than a microsecond. So of a worker's fast operations
// only the first quota of a second are timed, and then one of 64 on average, which stands for those before it; behind one that
// took slow or longer the next is timed, too.
const (
	slow      = 20 * time.Microsecond
	quota     = 1000
	leastSkip = 48 // operations that are not timed
	skipMask  = 31 // up to as many more: the last bits of a clock draw how many, so that no pattern of operations is hit
)

// worker is a store with its endpoint, and what a DB that tells counts of it.
type worker struct {
	store Store
	ep    rdma.Endpoint
	meter *Meter         // nil: nothing is counted
	count *rdma.Counters // of the endpoint

	// Of operations since they were handed over; untimed are those that the next one of their kind to be timed stands for.
	ops     [telemetry.Kinds]telemetry.Ops
	untimed [telemetry.Kinds]uint64
	quota   int // operations that are timed however fast they are
	skip    int
	trips   uint64        // of the endpoint when the operation began
	start   time.Duration // of the operation, when it is timed
	timed   bool

	// What follows is guarded by the DB's mutex.
	round uint64        // of the last handing over
	began time.Duration // of the operation that runs, by the DB's clock; 0: none does
}

// begin is called before each operation.
func (w *worker) begin() {
	if w.meter == nil {
		return
	}
	w.trips = w.count.Trips
	if w.timed = w.skip == 0; w.timed {
		w.start = w.ep.Now()
	} else {
		w.skip--
	}
}

// end counts an operation by how it ended.
func (w *worker) end(kind telemetry.Kind, err error) {
	if w.meter == nil {
		return
	}
	o := &w.ops[kind]
	if err == nil && !w.timed {
		o.OK++
		o.Trips += w.count.Trips - w.trips
		w.untimed[kind]++
		return
	}
	w.endSlowly(kind, o, err)
}

// endSlowly is end of an operation that was timed, or answered otherwise than well.
func (w *worker) endSlowly(kind telemetry.Kind, o *telemetry.Ops, err error) {
	took := time.Duration(0)
	if w.timed {
		now := w.ep.Now()
		switch took = now - w.start; {
		case took >= slow:
		case w.quota > 0:
			w.quota--
		default:
			w.skip = leastSkip + int(now&skipMask)
		}
	}
	switch {
	case Answers(err):
		o.OK++
		o.Trips += w.count.Trips - w.trips
		if !w.timed {
			w.untimed[kind]++
			return
		}
		if o.Latency == nil {
			o.Latency = new(telemetry.Histogram)
		}
		o.Latency.RecordN(took, 1+w.untimed[kind])
		w.untimed[kind] = 0
	case errors.Is(err, ErrUncertain):
		o.Unknown++
	default:
		o.Failed++
	}
}

// Answers reports whether an operation that ended with err was answered: well, or with an error that is part of the contract.
func Answers(err error) bool {
	return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists)
}

// handOver adds what the worker counted to p.
func (w *worker) handOver(p *telemetry.Process) {
	for k := range w.ops {
		if o := &w.ops[k]; o.OK+o.Failed+o.Unknown > 0 {
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
func (b *book) took(w *worker) {
	if b.publisher != nil {
		w.began = b.now
	}
}

// gave notes that the operation is over.
func (b *book) gave(w *worker) {
	if b.publisher == nil {
		return
	}
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

// Tell implements Subject. Workers in the midst of an operation have told what they had done before the last round began.
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

// collectIdle has one idle worker hand over what it counted; false: all have. One at a time keeps operations from waiting.
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
