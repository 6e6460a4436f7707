package simulate

import (
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestServed: where a store has servers the records are there, and known, when measuring begins;
// clients join and leave; the same configuration gives the same result; and what setting up used
// does not count.
func TestServed(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
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

// TestPower: all nodes lose power and come back. Clients go on then: they do not wait for answers
// that do not come.
func TestPower(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-a", 8, 0)
	c.Store, c.Profile, c.Duration, c.Interval = "rowan", "rowan-testbed", 250*time.Millisecond, 10*time.Millisecond
	c.Pool = stores.Params{Nodes: 3, Records: uint64(c.Spec.RecordCount)}
	c.Faults = "power node=* at=10ms for=1ms"
	r := simulated(t, c)
	// Of a client, the write under way is uncertain, and what it sends to each of 3 nodes that it
	// finds down.
	if r.Failed == 0 || r.Failed > 8*3 {
		t.Errorf("of 8 clients %d have a write under way: %s", r.Failed, r.Error)
	}
	const most = 150_000 // a tenth of a second is how long a client waits before it looks at the configuration
	if r.LongestGap > most {
		t.Errorf("a client finished nothing for %.0f µs", r.LongestGap)
	}
	if last := r.Points[24]; last.Throughput == 0 || last.Failed > 0 {
		t.Errorf("in the end there are %+v", last)
	}
	c.Store, c.Pool = "fusee", stores.Params{Nodes: 2, Records: uint64(c.Spec.RecordCount)}
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "does not outlive") {
		t.Errorf("fusee: %v", err)
	}
}
