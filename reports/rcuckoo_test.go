package reports

import "testing"

// TestRcuckoo does the quick size of the report; its longest parts with FARKV_REPORTS=all.
func TestRcuckoo(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := but(Rcuckoo, "load", "failures")
	r := report(t, Rcuckoo, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Rcuckoo, audit(t, r))
}
