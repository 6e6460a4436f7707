package eval

import (
	"strings"
	"testing"
)

// TestSum: the sum of verdicts agrees with its numbers.
func TestSum(t *testing.T) {
	one := Verdict{Outcome: Holds}
	for want, claims := range map[string][]Verdict{
		"Of 1 statement 1 holds and 0 differ, ":                           {one},
		"Of 3 statements 2 hold and 1 differs, 0 of them":                 {one, one, {Outcome: Differs}},
		"Of 1 statement 0 hold and 0 differ, 0 of them for a reason that": {{Outcome: Fitted}},
	} {
		if got := (&Report{Parts: []*Part{{Claims: claims}}}).sum(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
