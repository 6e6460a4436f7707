package runner

import (
	"context"
	"time"

	"github.com/farkv/farkv/workloads"
)

// Progress is what happened since the one before.
type Progress struct {
	Elapsed, Interval time.Duration    // the interval without its part of the warm-up
	Operations        uint64           // that ended since the start
	Ended             workloads.Counts // in the interval
	// Calls are those that workers told of within the interval. A worker tells of its calls between
	// two operations: those before one that is slow come with a later interval. The callee has them
	// until it returns.
	Calls *[workloads.Ops]workloads.Measure
}

// Interval is an entry of a Result's series. From and To are seconds since the start, the warm-up
// included. OK and Failed are the operations that ended between them, by kind; kinds of which none
// did are left out.
type Interval struct {
	From   float64           `json:"from"`
	To     float64           `json:"to"`
	OK     map[string]uint64 `json:"ok"`
	Failed map[string]uint64 `json:"failed,omitempty"`
}

// mostIntervals bounds a series: three hours of status lines a second. Of a longer run neighbors
// are joined.
const mostIntervals = 10_000

// interval is what ended between two moments since the start.
type interval struct {
	from, to time.Duration
	ended    workloads.Counts
}

// clock cuts a run into intervals. It is not safe for concurrent use.
type clock struct {
	live   []workloads.LiveCounts // by worker
	warm   time.Duration          // what ended before is not counted
	least  time.Duration          // the first interval behind it lasts as long, or is joined with the next
	last   time.Duration
	before workloads.Counts // up to last
	series []interval
}

// tick ends an interval. One that begins with the end of the warm-up and would be short does not
// end; an empty one is returned instead.
func (c *clock) tick(now time.Duration) interval {
	if c.last <= c.warm && now > c.warm && now-c.warm < c.least {
		return interval{from: c.warm, to: c.warm}
	}
	return c.cut(now)
}

// cut ends an interval, however short it is.
func (c *clock) cut(now time.Duration) interval {
	var sum workloads.Counts
	for i := range c.live {
		one := c.live[i].Load()
		sum.Add(&one)
	}
	i := interval{from: max(c.last, c.warm), to: now, ended: sum.Since(&c.before)}
	c.last, c.before = now, sum
	if i.to <= i.from {
		return i
	}
	if len(c.series) == mostIntervals {
		c.series = joinPairs(c.series)
	}
	c.series = append(c.series, i)
	return i
}

// joinPairs makes one interval of each two. The number of intervals is even.
func joinPairs(all []interval) []interval {
	for i := range len(all) / 2 {
		one := all[2*i]
		one.to = all[2*i+1].to
		one.ended.Add(&all[2*i+1].ended)
		all[i] = one
	}
	return all[:len(all)/2]
}

func (c *clock) intervals() []Interval {
	all := make([]Interval, len(c.series))
	for i, s := range c.series {
		all[i] = Interval{From: seconds(s.from), To: seconds(s.to), OK: byName(&s.ended.OK),
			Failed: byName(&s.ended.Failed)}
	}
	return all
}

func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

func byName(counts *[workloads.Ops]uint64) map[string]uint64 {
	m := map[string]uint64{}
	for op, n := range counts {
		if n > 0 {
			m[workloads.Op(op).String()] = n
		}
	}
	return m
}

// handOver bounds the wait for workers that are in the middle of an operation, and with them for
// the latencies of their calls before: it is short beside an interval.
const handOver = 50 * time.Millisecond

// gather has the workers hand over what they measured.
func (r *run) gather() {
	r.gathering.Lock()
	defer r.gathering.Unlock()
	until := time.Now().Add(handOver)
	r.handed.Store(0)
	r.epoch.Add(1)
	for time.Now().Before(until) && r.handed.Load() < r.busy.Load() {
		time.Sleep(time.Millisecond)
	}
}

// report cuts the run into intervals, and calls Progress for each.
func (r *run) report(stopped context.Context) {
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		select {
		case <-stopped.Done():
			return
		case <-tick.C:
		}
		if r.busy.Load() == 0 {
			return // what is left is closing
		}
		now := time.Since(r.began)
		i := r.clock.tick(now)
		if i.to <= i.from && now > r.WarmUp {
			continue // too little of it is behind the warm-up for a line
		}
		r.gather()
		all, _ := r.clock.before.Ended()
		r.mu.Lock()
		if r.Progress != nil {
			r.Progress(Progress{Elapsed: now, Interval: max(i.to-i.from, 0), Operations: all, Ended: i.ended,
				Calls: &r.interval.Calls})
		}
		r.interval.Reset()
		r.mu.Unlock()
	}
}
