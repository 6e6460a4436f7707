package runner

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/workloads"
)

// Merge returns the result of runs that several processes made together, as if one had made them:
// it adds what they counted, bucket by bucket, and takes percentiles of the sum. It lasts from the
// first start to the last end, by the clocks of the processes' machines. What does not add up is
// left out: the series, processor time and the device's counters. Errors say which results are not
// of one run.
func Merge(all []*Result) (*Result, error) {
	if len(all) == 0 {
		return nil, errors.New("merge results: there are none")
	}
	first := all[0]
	sum := &Result{Version: Version, Database: first.Database, Phase: first.Phase, Unit: first.Unit, Seed: first.Seed,
		Started: first.Started, Properties: first.Properties}
	if first.Terms != nil {
		terms := *first.Terms
		terms.Threads = 0
		sum.Terms = &terms
	}
	end := sum.Started
	var calls []string
	for i, r := range all {
		if r.Database != first.Database || r.Phase != first.Phase || r.Unit != first.Unit {
			return nil, fmt.Errorf("merge results: the first one is of %s %s in %s, and number %d of %s %s in %s",
				first.Phase, first.Database, first.Unit, i+1, r.Phase, r.Database, r.Unit)
		}
		if r.Started.Before(sum.Started) {
			sum.Started = r.Started
		}
		if e := r.Started.Add(time.Duration(r.Seconds * 1e9)); e.After(end) {
			end = e
		}
		sum.addTotals(r)
		for _, c := range r.Calls {
			if !slices.Contains(calls, c.Name) {
				calls = append(calls, c.Name)
			}
		}
	}
	sum.Seconds = end.Sub(sum.Started).Seconds()
	sum.Throughput = float64(sum.Operations) / sum.Seconds
	return sum, sum.mergeCalls(calls, all)
}

// addTotals adds what is counted for all kinds of calls.
func (r *Result) addTotals(o *Result) {
	r.Threads += o.Threads
	r.Target += o.Target
	r.Operations += o.Operations
	r.Failed += o.Failed
	r.Interrupted = r.Interrupted || o.Interrupted
	if o.Problem != "" {
		r.Problem = strings.TrimPrefix(r.Problem+"; "+o.Problem, "; ")
	}
	if r.Terms != nil {
		r.Terms.Threads += o.Threads
	}
	if o.Counters == nil {
		return
	}
	if r.Counters == nil {
		r.Counters = new(Counters)
	}
	c, d := r.Counters, o.Counters
	c.Trips += d.Trips
	c.Doorbells += d.Doorbells
	c.Reads += d.Reads
	c.Writes += d.Writes
	c.Atomics += d.Atomics
	c.Sends += d.Sends
	c.Calls += d.Calls
	c.BytesRead += d.BytesRead
	c.BytesWrote += d.BytesWrote
}

const totalCall, modifyCall = "TOTAL", "READ_MODIFY_WRITE"

// mergeCalls merges calls by their names; of TOTAL there are no buckets, and it is the sum of the
// others.
func (r *Result) mergeCalls(names []string, all []*Result) error {
	var total workloads.Histogram
	var trips float64
	for _, name := range names {
		if name == totalCall {
			continue
		}
		c, h, t, err := mergeCall(name, all)
		if err != nil {
			return err
		}
		c.Throughput = float64(c.Latency.Count) / r.Seconds
		r.Calls = append(r.Calls, c)
		if name != modifyCall {
			total.Merge(h)
			trips += t
		}
	}
	if slices.Contains(names, totalCall) {
		c := Call{Name: totalCall, Latency: Summarize(&total), Throughput: float64(total.Count()) / r.Seconds}
		c.Trips = trips / max(float64(total.Count()), 1)
		r.Calls = append(r.Calls, c)
	}
	return nil
}

// mergeCall merges one kind of call, and returns its histogram and its trips, too.
func mergeCall(name string, all []*Result) (Call, *workloads.Histogram, float64, error) {
	sum := Call{Name: name}
	ok, failed := new(workloads.Histogram), new(workloads.Histogram)
	var trips, failedTrips float64
	for i, r := range all {
		c := r.Call(name)
		if c == nil {
			continue
		}
		err := c.Latency.addTo(ok)
		trips += c.Trips * float64(c.Latency.Count)
		if c.Failed != nil && err == nil {
			err = c.Failed.addTo(failed)
			failedTrips += c.FailedTrips * float64(c.Failed.Count)
		}
		if err != nil {
			return sum, nil, 0, fmt.Errorf("merge results: %s of number %d: %w", name, i+1, err)
		}
		if sum.Error == "" {
			sum.Error = c.Error
		}
	}
	sum.Latency, sum.Trips = distribution(ok), trips/max(float64(ok.Count()), 1)
	if failed.Count() > 0 {
		l := distribution(failed)
		sum.Failed, sum.FailedTrips = &l, failedTrips/float64(failed.Count())
	}
	return sum, ok, trips, nil
}

// addTo adds what l counted to h, in the buckets in which it was counted. The least and the
// greatest are exact.
func (l *Latency) addTo(h *workloads.Histogram) error {
	var n uint64
	for _, b := range l.Buckets {
		n += uint64(b[2])
	}
	if n != l.Count {
		return fmt.Errorf("the buckets hold %d of %d calls", n, l.Count)
	}
	nanoseconds := func(us float64) time.Duration { return time.Duration(math.Round(us * 1e3)) }
	for i, b := range l.Buckets {
		n := uint64(b[2])
		if i == 0 && n > 0 {
			h.Record(nanoseconds(l.Min))
			n--
		}
		if i == len(l.Buckets)-1 && n > 0 {
			h.Record(nanoseconds(l.Max))
			n--
		}
		if n > 0 {
			h.RecordN((nanoseconds(b[0])+nanoseconds(b[1]))/2, n)
		}
	}
	return nil
}
