package reports

import "testing"

// TestRowan does the quick size of the report; its longest parts, nine tenths of it, with
// FARKV_REPORTS=all.
func TestRowan(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := but(Rowan, "stores", "reads", "objects", "load", "entries", "replicas", "threads", "resharding")
	r := report(t, Rowan, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Rowan, audit(t, r))
}
