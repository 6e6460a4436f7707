package reports

import "testing"

// TestRcuckoo does the quick size of the whole report.
func TestRcuckoo(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	r := report(t, Rcuckoo)
	if len(r.Parts) != len(Rcuckoo.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Rcuckoo, audit(t, r))
}
