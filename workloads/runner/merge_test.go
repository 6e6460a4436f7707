package runner

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads"
)

// measured is a result with the given durations of READ, of which failed ones failed, as a file has
// it.
func measured(t *testing.T, started time.Time, seconds float64, ok, failed []time.Duration) *Result {
	t.Helper()
	var good, bad workloads.Histogram
	for _, d := range ok {
		good.Record(d)
	}
	for _, d := range failed {
		bad.Record(d)
	}
	l := distribution(&bad)
	r := &Result{Version: Version, Database: "fusee", Phase: "run", Unit: "us", Started: started, Seconds: seconds,
		Threads:    4,
		Operations: uint64(len(ok)), Failed: uint64(len(failed)), Counters: &Counters{Trips: 7},
		Terms: &Terms{Threads: 4}}
	r.Calls = []Call{
		{Name: "READ", Latency: distribution(&good), Failed: &l, Trips: 2, FailedTrips: 1, Error: "refused"},
		{Name: totalCall, Latency: Summarize(&good), Trips: 2},
	}
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadResult(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// Runs of two processes give what one gives that measures the same calls: its counts and
// percentiles, and no mean of them.
func TestMerge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var fast, slow, failed []time.Duration
	for range 10_000 {
		fast = append(fast, time.Duration(random.IntN(20_000)+1_000))
	}
	for range 100 {
		slow = append(slow, time.Duration(random.IntN(1e9)+1e6))
		failed = append(failed, time.Duration(random.IntN(1e6)))
	}
	a := measured(t, began, 2, fast, nil)
	b := measured(t, began.Add(time.Second), 3, slow, failed)
	whole := measured(t, began, 4, append(append([]time.Duration(nil), fast...), slow...), failed)
	got, err := Merge([]*Result{a, b})
	if err != nil {
		t.Fatal(err)
	}
	if got.Seconds != 4 || got.Threads != 8 || got.Terms.Threads != 8 || got.Operations != 10_100 ||
		got.Failed != 100 ||
		got.Throughput != 2525 || got.Counters.Trips != 14 || !got.Started.Equal(began) || a.Terms.Threads != 4 {
		t.Errorf("%+v", got)
	}
	for i, want := range whole.Calls {
		have := got.Calls[i]
		if have.Name != want.Name || have.Trips != want.Trips || have.FailedTrips != want.FailedTrips ||
			have.Error != want.Error {
			t.Errorf("%+v, want %+v", have, want)
		}
		if !same(have.Latency, want.Latency) {
			t.Errorf("%s: %+v, want %+v", want.Name, have.Latency, want.Latency)
		}
	}
	if !same(*got.Call("READ").Failed, *whole.Call("READ").Failed) {
		t.Error("failed calls differ")
	}
}

// same reports whether two distributions have the same buckets and percentiles, and means within
// the width of a bucket.
func same(a, b Latency) bool {
	if math.Abs(a.Mean-b.Mean) > b.Mean/100 {
		return false
	}
	a.Mean, b.Mean = 0, 0
	return reflect.DeepEqual(a, b)
}

func TestMergeRefuses(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := func() *Result { return measured(t, began, 1, []time.Duration{1000}, nil) }
	other, lost := one(), one()
	other.Database = "swarm"
	lost.Calls[0].Latency.Buckets = nil
	for want, all := range map[string][]*Result{
		"there are none": nil, "number 2 of run swarm": {one(), other},
		"READ of number 2: the buckets hold 0 of 1 calls": {one(), lost},
	} {
		if _, err := Merge(all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
