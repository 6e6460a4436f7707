package runner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farkv/farkv/workloads"
)

// timed is a database in which calls take time. It notes when they ended. Every tenth update
// fails. Worker 0 hangs in its call after three intervals.
type timed struct {
	nothing
	began time.Time
	mu    sync.Mutex
	ended []ending
}

type ending struct {
	at     time.Duration
	kind   string
	failed bool
}

type timedDB struct {
	nothing
	*timed
	worker, calls int
}

const (
	callTime = 7300 * time.Microsecond // no multiple of it is one of a second, below 73
	hangs    = 2500 * time.Millisecond
)

func (d *timed) Open(worker int) (workloads.DB, error) {
	return &timedDB{timed: d, worker: worker}, nil
}
func (d *timed) Close() error { return nil }

func (d *timedDB) call(kind string) error {
	d.calls++
	took := callTime
	if d.worker == 0 && d.calls == int(3*time.Second/callTime) {
		took = hangs
	}
	time.Sleep(took)
	e := ending{time.Since(d.began), kind, kind == "UPDATE" && d.calls%10 == 0}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timed.ended = append(d.timed.ended, e)
	if e.failed {
		return errors.New("every tenth")
	}
	return nil
}

func (d *timedDB) Read([]byte, *workloads.Record) error   { return d.call("READ") }
func (d *timedDB) Update([]byte, *workloads.Record) error { return d.call("UPDATE") }
func (d *timedDB) Close() error                           { return nil }

// between counts the calls that ended in an interval, by kind.
func (d *timed) between(from, to time.Duration) (ok, failed map[string]uint64) {
	ok, failed = map[string]uint64{}, map[string]uint64{}
	for _, e := range d.ended {
		switch {
		case e.at <= from || e.at > to:
		case e.failed:
			failed[e.kind]++
		default:
			ok[e.kind]++
		}
	}
	return ok, failed
}

// TestLinesCountWhatEnded: a worker that hangs for two and a half intervals keeps nothing from its
// line, neither its own operations before nor those of others.
func TestLinesCountWhatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &timed{began: time.Now()}
		c := configure(t, d, "threadcount=3", "operationcount=0", "maxexecutiontime=8.5", "measurement.interval=1",
			"readproportion=0.5", "updateproportion=0.5", "fieldcount=1")
		var lines []interval
		c.Progress = func(p Progress) {
			lines = append(lines, interval{p.Elapsed - p.Interval, p.Elapsed, p.Ended})
			if all, _ := p.Ended.Ended(); all == 0 || p.Interval != time.Second {
				t.Errorf("%v: %d operations in %v", p.Elapsed, all, p.Interval)
			}
		}
		res, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) != 8 || len(res.Series) != 9 {
			t.Fatalf("%d lines, %d entries of the series, want 8 and the rest", len(lines), len(res.Series))
		}
		for i, l := range lines {
			ok, failed := d.between(l.from, l.to)
			if got := byName(&l.ended.OK); !maps.Equal(got, ok) {
				t.Errorf("%v to %v: %v ended well, the line has %v", l.from, l.to, ok, got)
			}
			if got := byName(&l.ended.Failed); !maps.Equal(got, failed) {
				t.Errorf("%v to %v: %v failed, the line has %v", l.from, l.to, failed, got)
			}
			if s := res.Series[i]; s.From != l.from.Seconds() || s.To != l.to.Seconds() || !maps.Equal(s.OK, ok) ||
				!maps.Equal(s.Failed, failed) {
				t.Errorf("the series has %+v of line %d", s, i)
			}
		}
		sum := uint64(0)
		for _, s := range res.Series {
			for _, n := range slices.Concat(slices.Collect(maps.Values(s.OK)), slices.Collect(maps.Values(s.Failed))) {
				sum += n
			}
		}
		if sum != res.Operations || sum != uint64(len(d.ended)) {
			t.Errorf("%d operations in the series, %d in the result, and there were %d", sum, res.Operations,
				len(d.ended))
		}
	})
}

// TestNoSliverBehindTheWarmUp: a tick that comes just behind the warm-up's end ends no interval,
// and what ended before it is in the next one.
func TestNoSliverBehindTheWarmUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configure(t, &timed{began: time.Now()}, "threadcount=2", "operationcount=0", "maxexecutiontime=3",
			"measurement.interval=1", "warmuptime=1.8", "readproportion=1", "updateproportion=0", "fieldcount=1")
		var lines []string
		c.Progress = func(p Progress) { lines = append(lines, fmt.Sprint(p.Interval, " to ", p.Elapsed)) }
		res, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"0s to 1s", "1.2s to 3s", "1s to 4s"}; len(lines) < 3 || !slices.Equal(lines[:3], want) {
			t.Errorf("lines of %q, want %q first", lines, want)
		}
		sum := uint64(0)
		for _, s := range res.Series {
			sum += s.OK["READ"]
		}
		if first := res.Series[0]; first.From != 1.8 || first.To != 3 || sum != res.Operations ||
			len(res.Series) != len(lines) {
			t.Errorf("%d operations, and the series: %+v", res.Operations, res.Series)
		}
	})
}

// TestSeriesIsBounded: of a run that is longer than the series, all of it stays counted.
func TestSeriesIsBounded(t *testing.T) {
	c := clock{live: make([]workloads.LiveCounts, 1)}
	const ticks = 3*mostIntervals + 1
	for i := range ticks {
		c.live[0].Add(workloads.OpRead, false)
		c.live[0].Add(workloads.OpRead, false)
		c.tick(time.Duration(i+1) * time.Second)
	}
	end, sum := 0.0, uint64(0)
	for _, s := range c.intervals() {
		if s.From != end || s.To <= s.From {
			t.Fatalf("%+v begins behind %v", s, end)
		}
		end, sum = s.To, sum+s.OK["READ"]
	}
	if n := len(c.series); n > mostIntervals || end != ticks || sum != 2*ticks {
		t.Errorf("%d intervals up to %v with %d operations", n, end, sum)
	}
}

// The results file has a line for each interval.
func TestSeriesInTheFile(t *testing.T) {
	r := Result{Version: Version, Series: []Interval{
		{To: 1, OK: map[string]uint64{"READ": 5, "UPDATE": 6}},
		{From: 1, To: 2, OK: map[string]uint64{}, Failed: map[string]uint64{"READ": 1}},
	}}
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`  { "from": 0, "to": 1, "ok": { "READ": 5, "UPDATE": 6 } },`,
		`  { "from": 1, "to": 2, "ok": {}, "failed": { "READ": 1 } }`,
	} {
		if !slices.Contains(strings.Split(string(text), "\n"), line) {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	back, err := ReadResult(strings.NewReader(string(text)))
	if err != nil || fmt.Sprint(back.Series) != fmt.Sprint(r.Series) {
		t.Errorf("read %+v: %v", back, err)
	}
}
