package workloads

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// moments are the mean and the standard deviation of numbers.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x int) { m.n, m.sum, m.squares = m.n+1, m.sum+float64(x), m.squares+float64(x*x) }

func (m *moments) are(t *testing.T, what string, mean, deviation float64) {
	t.Helper()
	gotMean := m.sum / m.n
	got := math.Sqrt(max(m.squares/m.n-gotMean*gotMean, 0))
	if math.Abs(gotMean-mean) > 0.01*mean || math.Abs(got-deviation) > 0.02*deviation {
		t.Errorf("%s: %.2f bytes with a deviation of %.2f, want %.2f and %.2f", what, gotMean, got, mean, deviation)
	}
}

// TestObjectSizes compares what is loaded, and what an update writes, with the table of the paper.
// A constant size fails.
func TestObjectSizes(t *testing.T) {
	for name, want := range map[string]struct{ key, keyDeviation, value, valueDeviation float64 }{
		"zippydb": {47.9, 3.7, 42.9, 26.1}, "up2x": {10.45, 1.4, 46.8, 11.6}, "udb": {27.1, 2.6, 126.7, 22.1},
	} {
		c := with(t, "objectsizes="+name)
		var keys, checked, drawn moments
		longest := 0
		r := seeded(8)
		for n := range int64(200_000) {
			key := c.Key(n)
			keys.add(len(key))
			checked.add(c.ValueBytes(key))
			length := c.lengths.next(r)
			drawn.add(length)
			longest = max(longest, len(key)+max(length, c.ValueBytes(key)))
			if least := c.LeastPairBytes(); len(key)+length < least {
				t.Fatalf("%s: record %d of %d bytes, less than %d", name, n, len(key)+length, least)
			}
		}
		keys.are(t, name+": keys", want.key, want.keyDeviation)
		checked.are(t, name+": values that follow from keys", want.value, want.valueDeviation)
		drawn.are(t, name+": values", want.value, want.valueDeviation)
		if most := c.PairBytes(); longest > most || longest < most*3/4 {
			t.Errorf("%s: a record of %d bytes, of at most %d", name, longest, most)
		}
	}
}

// TestSizedKeysDiffer compares what keys have in any length: keys of one length would differ by
// nothing else.
func TestSizedKeysDiffer(t *testing.T) {
	for name := range sizesOf {
		hashed, ordered := with(t, "objectsizes="+name), with(t, "objectsizes="+name, "insertorder=ordered")
		seen := map[string]bool{}
		for n := range int64(100_000) {
			seen[string(hashed.Key(n)[:keyDigits])] = true
		}
		if len(seen) != 100_000 {
			t.Errorf("%s: %d keys of 100,000 records", name, len(seen))
		}
		rapid.Check(t, func(t *rapid.T) {
			a := rapid.Int64Range(0, 2*maxRecords).Draw(t, "a")
			b := a + 1<<rapid.IntRange(0, 40).Draw(t, "distance")
			if string(hashed.Key(a)[:keyDigits]) == string(hashed.Key(b)[:keyDigits]) {
				t.Fatalf("%s and %s", hashed.Key(a), hashed.Key(b))
			}
			if key := hashed.Key(a); string(key) != string(hashed.Key(a)) || len(key) != len(ordered.Key(a)) {
				t.Fatalf("%s is %s again, and ordered %s", key, hashed.Key(a), ordered.Key(a))
			}
			if string(ordered.Key(a)) >= string(ordered.Key(b)) {
				t.Fatalf("ordered %s before %s", ordered.Key(a), ordered.Key(b))
			}
		})
	}
}

// TestSizedKeysStay: what one version loads, another must find; and so must another kind of
// machine.
func TestSizedKeysStay(t *testing.T) {
	for name, want := range map[string]string{
		"zippydb": "6RSTjoI_y-KNG7wnl1rlbwYLDjyV7zgr4d2oxyy2Cvpm7R5CsDD 57",
		"up2x":    "6RSTjoI_y-K 38",
		"udb":     "6RSTjoI_y-KNG7wnl1rlbwYLDjyV 112",
	} {
		c := with(t, "objectsizes="+name)
		key := c.Key(1234567)
		if got := fmt.Sprintf("%s %d", key, c.ValueBytes(key)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
