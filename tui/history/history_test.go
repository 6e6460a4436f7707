package history_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/tuitest"
)

func sample(at int, life, ok uint64, d ...time.Duration) *telemetry.Sample {
	t := tuitest.Begin.Add(time.Duration(at) * time.Second)
	p := telemetry.Process{Host: "a", PID: 1, Life: life, Began: tuitest.Begin.Add(-time.Hour), At: t}
	if life > 1 {
		p.Began = t.Add(-time.Second)
	}
	p.Ops[telemetry.Get].OK = ok
	p.Ops[telemetry.Get].Latency = new(telemetry.Histogram)
	for _, d := range d {
		p.Ops[telemetry.Get].Latency.Record(d)
	}
	return &telemetry.Sample{At: t, Processes: []telemetry.Process{p}}
}

func TestRatesAreDifferences(t *testing.T) {
	h := history.New()
	h.Add(sample(0, 1, 1000, 5000))
	h.Add(sample(2, 1, 1500, 5000, 9000, 9000))
	h.Add(sample(3, 2, 70, 1000)) // another process with the same number
	h.Add(sample(4, 2, 20, 1000)) // its counters went back
	want := []struct {
		ok   uint64
		rate float64
	}{{500, 250}, {70, 70}, {20, 20}}
	if len(h.Points) != len(want) {
		t.Fatalf("%d points, want %d", len(h.Points), len(want))
	}
	for i, w := range want {
		if o := h.Points[i].Ops[telemetry.Get]; o.OK != w.ok || math.Abs(o.Rate-w.rate) > 1e-9 {
			t.Errorf("point %d has %d operations, %v a second, want %d and %v", i, o.OK, o.Rate, w.ok, w.rate)
		}
	}
	if q := h.Points[0].Total; math.Abs(float64(q.P50-9000)) > 90 {
		t.Errorf("p50 is %v, want 9 µs", q.P50)
	}
}

func TestRecordReadTwiceKeepsItsRate(t *testing.T) {
	h := history.New()
	h.Add(sample(0, 1, 0))
	h.Add(sample(1, 1, 100))
	again := sample(1, 1, 100)
	again.At = again.At.Add(time.Second)
	h.Add(again)
	if p := h.Points[1]; p.Rate() != 100 || p.Sum().OK != 0 {
		t.Errorf("%v a second, %d operations, want 100 and 0", p.Rate(), p.Sum().OK)
	}
	for i := range 3 {
		later := sample(1, 1, 100)
		later.At = later.At.Add(time.Duration(2+i) * time.Second)
		h.Add(later)
	}
	if p := h.Points[len(h.Points)-1]; p.Rate() != 0 {
		t.Errorf("a process that tells nothing does %v a second", p.Rate())
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := history.New()
	for i := range 3*history.MaxPoints + 1 {
		h.Add(sample(i, 1, uint64(10*i), make([]time.Duration, i%3)...))
		if len(h.Points) > history.MaxPoints {
			t.Fatalf("%d points", len(h.Points))
		}
	}
	var ok uint64
	var span time.Duration
	for _, p := range h.Points {
		ok, span = ok+p.Sum().OK, span+p.Span
	}
	if ok != 30*history.MaxPoints || span != 3*history.MaxPoints*time.Second {
		t.Errorf("points hold %d operations in %v", ok, span)
	}
	if in := h.In(h.Points[10].At, h.Points[20].At); len(in) != 10 || !in[9].At.Equal(h.Points[20].At) {
		t.Errorf("%d points between two that are 10 apart", len(in))
	}
}

// Of many processes the last minutes are kept, and little more.
func TestHistoryIsSmall(t *testing.T) {
	const n = 500
	h := history.New()
	for _, s := range tuitest.NewPool(1, 32, 0).Samples(n) {
		h.Add(s)
	}
	if got := len(h.Points); got < history.LeastPoints/2 || got > history.LeastPoints {
		t.Errorf("%d points of %d samples, want at most %d", got, n, history.LeastPoints)
	}
	if first, last := h.Points[0], h.Points[len(h.Points)-1]; last.At.Sub(first.At)+first.Span != (n-1)*time.Second {
		t.Errorf("points from %v to %v", first.At.Add(-first.Span), last.At)
	}
}

func TestPercentilesAreThoseOfTheHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var whole telemetry.Histogram
		var parts []history.Distribution
		for range rapid.IntRange(1, 4).Draw(t, "parts") {
			s := sample(1, 2, 1)
			h := s.Processes[0].Ops[telemetry.Get].Latency
			for _, ns := range rapid.SliceOf(rapid.Int64Range(1, 1<<39)).Draw(t, "ns") {
				h.Record(time.Duration(ns))
				whole.Record(time.Duration(ns))
			}
			hist := history.New()
			hist.Add(sample(0, 1, 0))
			hist.Add(s)
			parts = append(parts, hist.Points[0].Ops[telemetry.Get].Latency)
		}
		d := history.Merge(parts...)
		if d.Count() != whole.Count() {
			t.Fatalf("%d durations, want %d", d.Count(), whole.Count())
		}
		for _, p := range []float64{1, 50, 99, 99.99, 100} {
			got, want := float64(d.Percentile(p)), float64(whole.Percentile(p))
			if math.Abs(got-want) > 0.02*want+1 {
				t.Fatalf("p%v is %v, want %v", p, got, want)
			}
		}
	})
}
