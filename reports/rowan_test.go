package reports

import "testing"

// TestRowan does the quick size of the report.
func TestRowan(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	r := report(t, Rowan)
	if len(r.Parts) != len(Rowan.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Rowan, audit(t, r))
}
