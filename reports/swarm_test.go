package reports

import "testing"

// TestSwarm does the quick size of the whole report.
func TestSwarm(t *testing.T) {
	if raced {
		report(t, Swarm, "latency")
		return
	}
	r := report(t, Swarm)
	if len(r.Parts) != len(Swarm.Parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	claims := audit(t, r)
	holding(t, Swarm, claims, "trips-fusee", "update-fusee", "update-fusee-p90", "one-fusee")
}
