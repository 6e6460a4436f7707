package extents

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// carvingMutants break one rule of size classes each.
var carvingMutants = []teeth.Mutant{
	{Rule: "a unit changes its class when the client holds all of it", In: "Client.hold",
		At: "$err == nil && !$b.Op($op).Swapped()", Do: "$err == nil && $op == 0 && !$b.Op($op).Swapped()"},
	{Rule: "what is used is not held", In: "Client.holdable",
		At: "$m&1 != 0", Do: "$m&1 > 1", Test: "TestPinned"},
	{Rule: "the first mark is released last", In: "Client.release",
		At: "[]bool{false, true}", Do: "[]bool{true, false}"},
	{Rule: "moves land before what they name is held", In: "Client.hold",
		At: "$x.addMoves($b, $shard, $units)", Do: "$b.Read($x.table.ClaimsAt($shard, $x.id, $x.table.Classes), 8)"},
	{Rule: "a change that was begun goes on", In: "Client.finishUnit",
		At: "$u.$marks[0] == 0 || !$changed", Do: "true", Test: "TestCutCarving"},
	{Rule: "a change that was not begun is undone", In: "Client.finishUnit",
		At: "$u.$marks[0] == 0 || !$changed", Do: "$u.$marks[0] == 0", Test: "TestCutCarving"},
	{Rule: "what is free keeps its stamp's number", Pkg: "../table", In: "WithClass",
		At: "$stamp&(1<<$classShift-1)", Do: "$stamp&(1<<16-1)", Test: "TestUnitsChange"},
	{Rule: "what is freed by the claim list is claimed no more", In: "Client.refill",
		At: "$st.$of[$i].$claimed = $st.$of[$i].$claimed[:0]", Do: "_ = $i", Test: "TestLostClaim"},
	{Rule: "claims that may have been given back are looked for in the claim list", In: "Client.endClaims",
		At: "$st.$opened = false", Do: "", Test: "TestFreeingFails"},
	{Rule: "a client gives its other claims back before it says that the pool is full", In: "Client.seek",
		At: "$n == 0", Nth: "2/2", Do: "$n >= 0", Test: "TestPinned"},
}

// claimMutants break one rule of claims each, and of what frees the extents of clients that are
// gone.
var claimMutants = []teeth.Mutant{
	{Rule: "what is claimed is in the hand before", In: "Client.claim",
		At: "$b.Chain(); $x.$addClaims($b, $shard, $class, $hints)",
		Do: "$b.Chain(); $b.Read($x.table.ClaimsAt($shard, $x.id, $class), 8)", Test: "TestClaimLists"},
	{Rule: "a claim is its client's", Pkg: "../table", In: "NextStamp",
		At: "($stamp>>16+1)<<16 | uint64($c)", Do: "($stamp>>16 + 1) << 16", Test: "TestExtentsAtEveryCrash"},
	{Rule: "two looks find no row that names what is freed", In: "Client.look",
		At:   "$both && $u.$look && $x.$table.$Version($r1) == $u.$first && $x.$table.$Version($r2) == $u.$second",
		Do:   "$both",
		Test: "TestClaimsOfMovingKeys"},
	{Rule: "what a row names is not freed", In: "Client.look",
		At: "if $named1 || $named2 { continue }", Do: "if $named1 || $named2 && false { continue }",
		Test: "TestClaimLists"},
	{Rule: "rows that change all the time do not delay what is freed when the key has another value", In: "Client.look",
		At: "$has1 || $has2 || $*unchanged", Do: "$has1 && $has2 || $*unchanged", Test: "TestBusyRows"},
	{Rule: "nor when the extent has no value of the use", In: "Client.rescue",
		At: "case $le.Uint64($p[$table.$StampAt:]) != $r.$Stamp:", Do: "case false:", Test: "TestBusyRows"},
	{Rule: "rows that change are looked at as long as there is time", In: "Client.rescue",
		At: "$x.$ep.Now() < $until", Do: "false", Test: "TestRowsRest"},
	{Rule: "claims that may be under way are waited for", In: "Client.reclaim",
		At: "$read.Fence = true", Do: "$read.Fence = false", Test: "TestUnknownOutcome"},
	{Rule: "an extent in doubt is looked for", In: "Client.resolve",
		At: "len($st.$doubts) == 0", Do: "len($st.$doubts) >= 0", Test: "TestClaimLists"},
}

var carvingSuite = teeth.Suite{Test: "TestClassesAtEveryCrash", Env: []string{"FARKV_SEEDS=40"}}

func TestCarvingMutants(t *testing.T) { carvingSuite.Run(t, carvingMutants) }

func TestClaimMutants(t *testing.T) { carvingSuite.Run(t, claimMutants) }
