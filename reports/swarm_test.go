package reports

import "testing"

// TestSwarm does the quick size of the report; its longest parts with FARKV_REPORTS=all.
func TestSwarm(t *testing.T) {
	if raced {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := but(Swarm, "load", "clients", "words")
	r := report(t, Swarm, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	agrees(t, Swarm, audit(t, r))
}

// TestSwarmSystems leaves systems out.
func TestSwarmSystems(t *testing.T) {
	if list := systems("raw", "fusee"); len(list) != 2 || list[0].store != "swarm" || list[1].store != "dm-abd" {
		t.Errorf("systems are %v", list)
	}
}
