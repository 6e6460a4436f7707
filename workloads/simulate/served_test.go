package simulate

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// TestServed: where a store has servers the records are there, and known, when measuring begins; clients join and
// leave; the same configuration gives the same result; and what setting up used does not count.
func TestServed(t *testing.T) {
	c := config(t, "ycsb-a", 8, 4000)
	c.Store, c.Profile, c.Known, c.Memory = "rowan", "rowan-testbed", true, true
	c.Pool = stores.Params{Nodes: 3}
	c.Pool.Records = uint64(c.Spec.RecordCount)
	c.Changes = []Change{{At: 100 * time.Microsecond, Clients: 3}, {At: 200 * time.Microsecond, Clients: -2}}
	r := simulated(t, c)
	if r.Failed > 0 || r.Operations != 4000 || r.Error != "" {
		t.Fatalf("%d operations, %d failed: %s", r.Operations, r.Failed, r.Error)
	}
	if again := simulated(t, c); text(t, r) != text(t, again) {
		t.Errorf("it differs:\n%s\n%s", text(t, r), text(t, again))
	}
	for _, m := range r.Machines {
		for _, p := range m.Parts() {
			if p.Busy > 1 {
				t.Errorf("node %d (compute %t): %s is busy for %.0f %% of the time", m.Node, m.Compute, p.Name,
					100*p.Busy)
			}
		}
	}
	if m := r.Machines[0]; m.Messages < 1000 {
		t.Errorf("node 0 has served %.0f messages a second", m.Messages)
	}
}
