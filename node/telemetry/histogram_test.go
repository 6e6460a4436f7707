package telemetry

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsAreSoundAndFine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, 1<<topBits-1).Draw(t, "ns"))
		from, to := bounds(bucket(d))
		if d < from || d >= to {
			t.Fatalf("%d is in the bucket from %d to %d", d, from, to)
		}
		if width := to - from; width > 1 && float64(width) > 0.008*float64(from) {
			t.Fatalf("the bucket from %d to %d is too wide", from, to)
		}
	})
	for i := range buckets - 1 {
		_, to := bounds(i)
		if next, _ := bounds(i + 1); next != to || bucket(to) != i+1 {
			t.Fatalf("bucket %d ends at %d, the next begins at %d", i, to, next)
		}
	}
	for _, d := range []time.Duration{1 << topBits, math.MaxInt64} {
		if bucket(d) != buckets-1 {
			t.Errorf("%d is not in the last bucket", d)
		}
	}
	if bucket(-1) != 0 {
		t.Error("a clock that went back is not 0")
	}
}

func TestPercentilesAreThoseOfTheValues(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var one, other Histogram
	var all []time.Duration
	sum := 0.0
	for i := range 100_000 {
		d := time.Duration(math.Exp(r.NormFloat64()*2+8)) + 1
		all = append(all, d)
		sum += float64(d)
		if i%3 == 0 {
			one.Record(d)
		} else {
			other.Record(d)
		}
	}
	one.Merge(&other)
	one.Merge(new(Histogram))
	slices.Sort(all)
	for _, p := range []float64{0.001, 1, 50, 90, 95, 99, 99.9, 99.99, 100} {
		want := all[max(int(p/100*float64(len(all))+0.5)-1, 0)]
		if got := one.Percentile(p); math.Abs(float64(got-want)) > 0.01*float64(want)+1 {
			t.Errorf("%v-th percentile is %d, want %d", p, got, want)
		}
	}
	if one.Min() != all[0] || one.Max() != all[len(all)-1] || one.Count() != uint64(len(all)) {
		t.Errorf("min %d max %d count %d", one.Min(), one.Max(), one.Count())
	}
	if mean := sum / float64(len(all)); math.Abs(one.Mean()-mean) > 1e-6*mean {
		t.Errorf("mean %f, want %f", one.Mean(), mean)
	}
	n := uint64(0)
	one.Buckets(func(_, _ time.Duration, k uint64) bool { n += k; return true })
	if n != one.Count() {
		t.Errorf("buckets hold %d of %d", n, one.Count())
	}
	var none Histogram
	if none.Percentile(50) != 0 || none.Mean() != 0 {
		t.Error("an empty histogram has values")
	}
}

func BenchmarkRecord(b *testing.B) {
	var h Histogram
	for i := range b.N {
		h.Record(time.Duration(i & 0xffff))
	}
}

func TestHistogramAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var before, h, got Histogram
		for _, ns := range rapid.SliceOf(rapid.Int64Range(0, 1<<topBits-1)).Draw(t, "ns") {
			h.Record(time.Duration(ns))
			if ns%2 == 0 {
				before.Record(time.Duration(ns))
			}
		}
		text, err := json.Marshal(&h)
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil || got.counts != h.counts || got.n != h.n || got.sum != h.sum {
			t.Fatalf("%s, %v", text, err)
		}
		rest := h.Sub(&before)
		rest.Merge(&before)
		if rest.counts != h.counts || rest.n != h.n {
			t.Fatal("the difference and what was subtracted are not the whole")
		}
	})
	if err := new(Histogram).UnmarshalJSON([]byte(`{"buckets":[[999999,1]]}`)); err == nil {
		t.Error("a bucket that there is none of was read")
	}
}
