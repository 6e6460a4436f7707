package workloads

import (
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Share is one worker's part of a run.
type Share struct {
	Worker, Workers int
	Load            bool          // insert the records of the Spec instead of running its mix
	Ops             int64         // operations of a run after the warm-up; 0: until Until, or until Poll says no
	First, Period   time.Duration // intended start of the first operation, and between two; Period 0: no pace
	Until           time.Duration // no operation starts later; 0: no limit
	Warm            time.Duration // what starts before is not measured, nor counted
	// Poll is called before each operation, with what was measured so far, which it may take away
	// and reset. When it returns false the worker stops.
	Poll func(*Tally) bool
	// Pick, where it is not nil, is given the number of each record that is to be read or updated,
	// and returns that of the one which is read or updated instead.
	Pick func(int64) int64
	// Failed, where it is not nil, is told of each call that fails.
	Failed func(Op, error)
	// Live, where it is not nil, counts the operations that are measured when they end; Poll passes
	// them on later.
	Live *LiveCounts
}

// SplitOps returns how many of total operations worker i of n does.
func SplitOps(total int64, i, n int) int64 {
	share := total / int64(n)
	if int64(i) < total%int64(n) {
		share++
	}
	return share
}

// Worker drives one DB. It is not safe for concurrent use.
type Worker struct {
	core  *Core
	db    DB
	env   Env
	rnd   *rand.Rand
	keys  chooser
	share Share
	count *rdma.Counters
	tally Tally

	key    []byte
	values [][]byte // a buffer for each field
	put    Record   // what is written
	got    Record   // what is read
	expect []byte

	due    time.Duration // intended start of the operation about to start; negative: as soon as it can
	start  time.Duration // of the call that runs, or its intended start
	end    time.Duration // of the last call
	trips  uint64        // of the worker when the call started
	done   int64         // operations that started after the warm-up
	record bool          // this one did
	undone int64         // the number of a record that could not be inserted, to be tried again; -1: none
}

// NewWorker returns the worker of a share.
func NewWorker(c *Core, db DB, env Env, s Share) *Worker {
	w := &Worker{core: c, db: db, env: env, rnd: env.Rand(), share: s, count: db.Counters(), undone: -1, due: -1}
	if w.count == nil {
		w.count = new(rdma.Counters)
	}
	w.keys = c.chooser(s.Worker, s.Workers)
	memory := make([]byte, c.FieldCount*c.FieldLength)
	w.values = make([][]byte, c.FieldCount)
	for i := range w.values {
		w.values[i], memory = memory[:c.FieldLength:c.FieldLength], memory[c.FieldLength:]
	}
	w.put.Values = make([][]byte, c.FieldCount)
	w.got.Values = make([][]byte, c.FieldCount)
	return w
}

// Tally returns what was measured since the last reset.
func (w *Worker) Tally() *Tally { return &w.tally }

// Run does the worker's share.
func (w *Worker) Run() {
	s := &w.share
	w.end = w.env.Now()
	for i := int64(0); w.goesOn(i); i++ {
		if s.Period > 0 {
			if ahead := w.due - w.end; ahead > 0 {
				w.rest(true)
				w.env.Sleep(ahead)
				w.rest(false)
				if s.Poll != nil && !s.Poll(&w.tally) {
					return
				}
			}
		}
		w.record = s.Warm == 0 || max(w.end, w.due) >= s.Warm
		op, err := OpInsert, error(nil)
		if s.Load {
			err = w.load(i)
		} else {
			op, err = w.operate()
		}
		if w.record {
			w.done++
			w.tally.Operations++
			if err != nil {
				w.tally.Failed++
			}
			if s.Live != nil {
				s.Live.Add(op, err != nil)
			}
		}
		if s.Load && err != nil {
			return // what is left out now would be missed by every run
		}
	}
}

// rest records whether the worker waits until its next operation is due.
func (w *Worker) rest(rests bool) {
	if w.share.Live != nil {
		w.share.Live.Rest(rests)
	}
}

// goesOn reports whether operation i is to be done, and when it is due.
func (w *Worker) goesOn(i int64) bool {
	s := &w.share
	if s.Period > 0 {
		w.due = s.First + time.Duration(i)*s.Period
	}
	switch {
	case s.Load && int64(s.Worker)+i*int64(s.Workers) >= w.core.InsertCount:
		return false
	case !s.Load && s.Ops > 0 && w.done >= s.Ops:
		return false
	case s.Until > 0 && max(w.end, w.due) >= s.Until:
		return false
	}
	return s.Poll == nil || s.Poll(&w.tally)
}

// begin starts the clock of a call. The first call of a paced operation starts when it was intended
// to: the time for which a slow database keeps it waiting counts.
func (w *Worker) begin() {
	w.start = w.due
	if w.due < 0 {
		w.start = w.env.Now()
	}
	w.due = -1
	w.trips = w.count.Trips
}

// finish stops the clock of a call, records how it ended, and passes that on.
func (w *Worker) finish(op Op, err error) error {
	w.end = w.env.Now()
	return w.note(op, err)
}

func (w *Worker) note(op Op, err error) error {
	if w.record {
		w.tally.Calls[op].record(w.end-w.start, w.count.Trips-w.trips, err)
	}
	if err != nil && w.share.Failed != nil {
		w.share.Failed(op, err)
	}
	return err
}
