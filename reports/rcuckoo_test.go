package reports

import "testing"

// TestRcuckoo does the quick size of the whole report.
func TestRcuckoo(t *testing.T) {
	if raced {
		report(t, Rcuckoo, "distances", "spans")
		return
	}
	r := report(t, Rcuckoo)
	if len(r.Parts) != len(Rcuckoo.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Rcuckoo, audit(t, r))
}
