package reports

import "testing"

// TestRcuckoo does the quick size of the whole report. What of the paper has to hold at any size is listed; of what may
// differ the report has to say why.
func TestRcuckoo(t *testing.T) {
	if raced {
		report(t, Rcuckoo, "distances", "spans")
		return
	}
	r := report(t, Rcuckoo)
	if len(r.Parts) != len(Rcuckoo.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	claims := audit(t, r)
	complete(t, Rcuckoo, claims)
	holding(t, Rcuckoo, claims, "fill-rises", "spans-32", "spans-256", "locks-global", "locks-single", "load-get", "load-update", "inserts-median", "inserts-fusee-flat",
		"entries-insert", "extents-link", "device-us", "failures-grain", "failures-works")
}
