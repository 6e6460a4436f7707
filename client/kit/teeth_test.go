package kit_test

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each; the test that is named must notice.
var mutants = []teeth.Mutant{
	{Rule: "a primary stays as long as its node lives", In: "Replicas",
		At: "$since[$at-1] > $from", Do: "$since[$at-1] < $from", Test: "TestReplicas"},
	{Rule: "what is lost is not listed", In: "Place",
		At: "!$lost", Do: "!$lost || true", Test: "TestReplicas"},
	{Rule: "the way back from a stand-in leads to the first node", Pkg: "../../node/rdma", In: "View.Original",
		At: "$n = int($s) - 1", Do: "return int($s) - 1", Test: "TestReplicas"},
	{Rule: "numbers begin above the ceiling", In: "OpenNumbers",
		At: "$n.$used = max($n.$used, $word)", Test: "TestClientDies"},
	{Rule: "a ceiling is raised before what it allows is used", In: "Numbers.Use",
		At: "$to > $n.$limit", Do: "false", Test: "TestNumbers"},
	{Rule: "a raise that failed allows nothing", In: "Numbers.Use",
		At: "if $err := $*raise; $err != nil { $*fail }", Do: "if $err := $*raise; $err != nil && to == 0 { $*fail }",
		Test: "TestNumbers"},
	{Rule: "time is over before the pause", In: "Retry.Again",
		At: "$r.Over != nil && $r.Over()", Do: "false", Test: "TestRetry"},
	{Rule: "pauses have a bound", In: "Doubling",
		At: "min($pause, $most)", Do: "$pause", Test: "TestPauses"},
	{Rule: "what is resolved is forgotten", In: "Unresolved.Resolve",
		At: "!$try($op)", Do: "$try($op) || true", Test: "TestUnresolved"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
