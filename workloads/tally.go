package workloads

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
)

// Op is a kind of call that is measured.
type Op uint8

// What is measured. A ReadModifyWrite is also measured as the Read and the Update that it consists
// of.
const (
	OpRead Op = iota
	OpUpdate
	OpInsert
	OpScan
	OpReadModifyWrite
	Ops // how many kinds there are
)

var opNames = [Ops]string{"READ", "UPDATE", "INSERT", "SCAN", "READ_MODIFY_WRITE"}

func (o Op) String() string { return opNames[o] }

// Tally is what one worker measured. It is not safe for concurrent use; tallies of workers are
// merged.
type Tally struct {
	Operations uint64 // operations of the workload that ended, well or not
	Failed     uint64 // those that did not end well
	Calls      [Ops]Measure
}

// Measure is what was measured of one kind of call.
type Measure struct {
	OK     *Histogram // latencies of calls that ended well; nil: there were none
	Failed *Histogram // and of those that did not
	Err    error      // the first failure
	// Round trips of the calls that ended well, and of those that did not.
	Trips, FailedTrips uint64
	// Of the calls that failed those that the store answered, such as that there is no such key,
	// and writes of unknown outcome.
	Answered, Unknown uint64
}

func (m *Measure) record(took time.Duration, trips uint64, err error) {
	if err == nil {
		if m.OK == nil {
			m.OK = new(Histogram)
		}
		m.OK.Record(took)
		m.Trips += trips
		return
	}
	if m.Failed == nil {
		m.Failed = new(Histogram)
	}
	if m.Err == nil {
		m.Err = err
	}
	m.Failed.Record(took)
	m.FailedTrips += trips
	switch {
	case client.Answers(err):
		m.Answered++
	case errors.Is(err, client.ErrUncertain):
		m.Unknown++
	}
}

// Merge adds what o measured.
func (t *Tally) Merge(o *Tally) {
	t.Operations += o.Operations
	t.Failed += o.Failed
	for i := range t.Calls {
		m, n := &t.Calls[i], &o.Calls[i]
		m.OK, m.Failed = mergeInto(m.OK, n.OK), mergeInto(m.Failed, n.Failed)
		m.Trips += n.Trips
		m.FailedTrips += n.FailedTrips
		m.Answered += n.Answered
		m.Unknown += n.Unknown
		if m.Err == nil {
			m.Err = n.Err
		}
	}
}

func mergeInto(h, o *Histogram) *Histogram {
	if o == nil {
		return h
	}
	if h == nil {
		h = new(Histogram)
	}
	h.Merge(o)
	return h
}

// Reset forgets what was measured, but keeps the memory.
func (t *Tally) Reset() {
	t.Operations, t.Failed = 0, 0
	for i := range t.Calls {
		m := &t.Calls[i]
		if m.OK != nil {
			*m.OK = Histogram{}
		}
		if m.Failed != nil {
			*m.Failed = Histogram{}
		}
		m.Trips, m.FailedTrips, m.Err = 0, 0, nil
		m.Answered, m.Unknown = 0, 0
	}
}

// Total returns the latencies of all calls that ended well, and their trips. A ReadModifyWrite
// counts as its two calls.
func (t *Tally) Total() (h Histogram, trips uint64) {
	for op := range OpReadModifyWrite {
		if m := &t.Calls[op]; m.OK != nil {
			h.Merge(m.OK)
			trips += m.Trips
		}
	}
	return h, trips
}
