package reports

import "testing"

// TestRTX does the quick size of the report; its longest parts with FARKV_REPORTS=all.
func TestRTX(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := but(RTX, "trees", "choices", "tables", "steps")
	r := report(t, RTX, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, RTX, audit(t, r))
}
