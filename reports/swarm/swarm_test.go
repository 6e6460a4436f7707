package swarm

import (
	"testing"

	"github.com/farkv/farkv/reports/eval/evaltest"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { evaltest.Main(m) }

// TestSwarm does the quick size of the report; its longest parts with FARKV_REPORTS=all.
func TestSwarm(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := evaltest.But(Paper, "load", "clients", "words")
	r := evaltest.Run(t, Paper, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	evaltest.Agrees(t, Paper, evaltest.Audit(t, r))
}

// TestSwarmSystems leaves systems out.
func TestSwarmSystems(t *testing.T) {
	if list := systems("raw", "fusee"); len(list) != 2 || list[0].store != "swarm" || list[1].store != "dm-abd" {
		t.Errorf("systems are %v", list)
	}
}
