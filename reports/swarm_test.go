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
	if len(systems()) == len(allSystems) {
		complete(t, Swarm, claims)
		holding(t, Swarm, claims, "trips-raw", "get-raw", "update-raw")
	}
	holding(t, Swarm, claims,
		"trips-swarm", "trips-dm-abd", "trips-fusee", "get-swarm", "get-swarm-p1", "get-dm-abd",
		"update-swarm", "update-dm-abd", "update-fusee", "update-fusee-p90", "one-fusee", "one-fusee-a", "load-a-most", "load-b1-us",
		"load-b1-kops", "load-b-most", "load-b-flat", "load-dm-a", "load-dm-b", "clients-linear", "clients-get1", "clients-dm",
		"clients-four", "values-linear", "values-get", "values-update", "values-rate", "replicas-get", "replicas-update",
		"replicas-dm-get", "replicas-dm-put", "crash-available")
}

// TestSwarmSystems leaves systems out.
func TestSwarmSystems(t *testing.T) {
	if list := systems("raw", "fusee"); len(list) != 2 || list[0].store != "swarm" || list[1].store != "dm-abd" {
		t.Errorf("systems are %v", list)
	}
}
