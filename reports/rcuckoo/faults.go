package rcuckoo

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// Intervals of a run with failures. In the first ones the locks of dead clients are not freed yet.
const (
	failIntervals = 10
	settling      = 7
)

// failGrains are rows a lock.
var failGrains = []int{2, paperLocked, 64}

func failureCases(s *size) (list []eval.Trial) {
	add := func(rate float64, grain int) {
		list = append(list, s.trial("rcuckoo", "a", eval.Key(rate, grain), func(o *virtual.Simulation) {
			o.Records = s.smaller * paperFull / 100
			o.Own = o.Own.With(stores.Values{tableRows: s.failRows, rowsPerLock: grain, failureTimer: s.failTimer})
			o.Ops, o.WarmUp, o.Duration, o.Interval, o.Failures = 0, 0, s.failFor, s.failFor/failIntervals, rate
		}))
	}
	for i, rate := range s.failures {
		for _, grain := range failGrains {
			if grain == paperLocked || i == 0 || i == len(s.failures)-1 {
				add(rate, grain)
			}
		}
	}
	for _, timer := range s.timers {
		t := s.trial("rcuckoo", "a", eval.Key("stranded", timer), func(o *virtual.Simulation) {
			o.Records, o.WarmUp = s.smaller*paperFull/100, 0
			o.Set(failureTimer, timer)
			o.Ops, o.Failures, o.Duration = 0, 1/(4*timer).Seconds(), strandings*4*timer
		})
		t.Stranded = true
		list = append(list, t)
	}
	return list
}

// strandings is how many repairs of what a dead client left are timed.
const strandings = 100

// steady is the mean throughput when as many locks are freed as are left.
func steady(r *simulate.Result) float64 { return eval.MeanThroughput(r, settling, failIntervals) }

func failureTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"failures a second"}
	for _, grain := range failGrains {
		p.Header = append(p.Header, fmt.Sprintf("Mops, %d rows a lock", grain))
	}
	p.Header = append(p.Header, "UPDATE, p50", "p99", "the longest", "failed")
	first, last := s.failures[0], s.failures[len(s.failures)-1]
	failed := uint64(0)
	for _, rate := range s.failures {
		row := []eval.Cell{eval.Text("%g", rate)}
		for _, grain := range failGrains {
			cell := eval.Cell{}
			if x := r[eval.Key(rate, grain)]; x != nil {
				cell = eval.Mops(steady(x))
				failed += x.Failed
			}
			row = append(row, cell)
		}
		x := r[eval.Key(rate, paperLocked)]
		u := x.Call("UPDATE")
		p.Rows = append(p.Rows, append(row, eval.FineMicros(u.At(0.5)), eval.FineMicros(u.At(0.99)),
			eval.FineMicros(u.Latency.Max), eval.Text("%d", x.Failed)))
	}
	loss := func(rate float64, grain int) float64 {
		return eval.Change(steady(r[eval.Key(first, grain)]), steady(r[eval.Key(rate, grain)]))
	}
	text, least := "", 1.0 // of what there is without failures
	for _, rate := range s.failures[1:] {
		text += fmt.Sprintf(", %+.1f %% with %g", loss(rate, paperLocked), rate)
		if rate <= paperFailures {
			least = min(least, 1+loss(rate, paperLocked)/100)
		}
	}
	p.Claim("failures-500", eval.More(least, 0.9), text[2:], eval.Unknown(""))
	p.Claim("failures-grain", eval.More(100+loss(last, failGrains[0]), 100+loss(last, failGrains[2])),
		fmt.Sprintf("with %g a second %+.1f %% with %d rows a lock, %+.1f %% with %d, %+.1f %% with %d", last,
			loss(last, failGrains[0]), failGrains[0], loss(last, failGrains[1]), failGrains[1],
			loss(last, failGrains[2]),
			failGrains[2]), eval.Unknown(""))
	p.Claim("failures-works", eval.Is(failed == 0), fmt.Sprintf("%d operations failed", failed), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("A failure is a client, one more than the %d, that sends %s of the verbs of an INSERT and dies. "+
			"A table of %d rows, so that there are as many locks as in the paper's if it has 12,500,000, with only "+
			"%d records; a failure timer of %v. Throughput is that of the time from %v to %v; the latencies, in "+
			"microseconds, are of all of it, and of %d rows a lock.",
			paperCrowd, "2 to 6", s.failRows, s.smaller*paperFull/100, s.failTimer, s.failFor*settling/failIntervals,
			s.failFor, paperLocked))
	for _, timer := range s.timers {
		c := r[eval.Key("stranded", timer)].Call("INSERT")
		p.Notes = append(p.Notes,
			fmt.Sprintf("A client that is alone needs %.2f ms at the median, %.2f at the most, to insert what one "+
				"that died began to insert, with a timer of %v.", c.At(0.5)/1e3, c.Latency.Max/1e3, timer))
	}
	short, long := s.timers[0], s.timers[1] // one twice as long as the other
	left := 2*r[eval.Key("stranded", short)].Call("INSERT").Latency.Mean - r[eval.Key("stranded", long)].Call(
		"INSERT").Latency.Mean
	p.Notes = append(p.Notes,
		fmt.Sprintf("Were the timer 0 that would be %.0f µs on the average, by the line through %v and %v: so long a "+
			"repair takes, the INSERT included. A client that the pool knows to be dead is given half of the timer, "+
			"from when the first blocked client looks.", left, short, long))
}

// paperFailures is the number of failures a second up to which throughput remains high (section
// 5.4).
const paperFailures = 500

// timers of stranded clients.
var stranding = []time.Duration{time.Millisecond, 2 * time.Millisecond, 10 * time.Millisecond, paperTimer}
