package exchange

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "no copy is complete without it", In: "Exchanger.copy", At: "$c.held = $x.term.Term", Do: "_ = c",
		Test: "TestDamagedEntry"},
	{Rule: "what is read for others is verified", Pkg: "../state", In: "Server.ReadBlock",
		At: "!$ok", Nth: "2/2", Do: "n < 0",
		Test: "TestDamagedEntry"},
	{Rule: "digests have the terms of pairs", In: "Exchanger.compare", At: "$c.digest.Terms += uint64($f.Term)", Do: "",
		Test: "TestCompares"},
	{Rule: "and their versions", In: "Exchanger.compare", At: "$c.digest.Versions += $f.Version", Do: "",
		Test: "TestCompares"},
	{Rule: "what is copied comes behind what is given", In: "Exchanger.Step",
		At: "!$x.gave", Do: "!$x.term.TakesPart()", Test: "TestGives"},
	{Rule: "so does a target", Pkg: "../state", In: "Term.Differed",
		At: "$before.Arriving($shard) && $*lives", Do: "false",
		Test: "TestDifferedTarget"},
	{Rule: "unless its source died", Pkg: "../state", In: "Term.Differed", At: "$t.Member($*source) != nil", Do: "true",
		Test: "TestDifferedTarget"},
	{Rule: "and its source copies all once more", In: "Exchanger.begin", At: "$c.target != ($*is)", Do: "false",
		Test: "TestDifferedTarget"},
	{Rule: "what is live is counted", Pkg: "../state", In: "Space.IsDead",
		At: "$s.named[$segment] == 0", Do: "s.live[segment] == 0",
		Test: "TestDamagedIsLeft"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
