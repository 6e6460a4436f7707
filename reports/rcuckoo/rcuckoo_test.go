package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/reports/eval/evaltest"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { evaltest.Main(m) }

// TestRcuckoo does the quick size of the report; its longest parts with FARKV_REPORTS=all.
func TestRcuckoo(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("runs are as TestFusee's; run without -race")
	}
	parts := evaltest.But(Paper, "load", "failures")
	r := evaltest.Run(t, Paper, parts...)
	if len(r.Parts) != len(parts) {
		t.Fatalf("%d parts", len(r.Parts))
	}
	evaltest.Agrees(t, Paper, evaltest.Audit(t, r))
}
