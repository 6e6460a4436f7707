package eval

import "testing"

func TestColumnsWithTheSameTitle(t *testing.T) {
	for _, c := range [][2][]string{
		{{"value", "A: Mops", "GET", "B: Mops", "GET"},
			{"value", "A: Mops", "A: Mops, GET", "B: Mops", "B: Mops, GET"}},
		{{"n", "X", "p1", "p99", "Y", "p1", "p99"}, {"n", "X", "X, p1", "X, p99", "Y", "Y, p1", "Y, p99"}},
		{{"n", "A", "mean", "DM", "mean", "B", "mean", "DM", "mean"},
			{"n", "A", "A, mean", "A, DM", "A, DM, mean", "B", "B, mean", "B, DM", "B, DM, mean"}},
	} {
		p := &Part{Header: c[0]}
		for k, want := range c[1] {
			if got := p.column(k); got != want {
				t.Errorf("%q: column %d is %q, want %q", c[0], k, got, want)
			}
		}
	}
}
