package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// carvingMutants break one rule of size classes each.
var carvingMutants = []teeth.Mutant{
	{Rule: "a unit changes its class when the client holds all of it", In: "extents.hold",
		At: "$err == nil && !$b.Op($op).Swapped()", Do: "$err == nil && $op == 0 && !$b.Op($op).Swapped()"},
	{Rule: "what is used is not held", In: "layout.holdable",
		At: "$m&1 != 0", Do: "$m&1 > 1", Test: "TestPinned"},
	{Rule: "the first mark is released last", In: "extents.release",
		At: "[]bool{false, true}", Do: "[]bool{true, false}"},
	{Rule: "moves land before what they name is held", In: "extents.hold",
		At: "$x.addMoves($b, $shard, $units)", Do: "$b.Read($x.handAt($shard, $x.id, $x.Classes), 8)"},
	{Rule: "a change that was begun goes on", In: "extents.finishUnit",
		At: "$u.$marks[0] == 0 || !$changed", Do: "true", Test: "TestCutCarving"},
	{Rule: "a change that was not begun is undone", In: "extents.finishUnit",
		At: "$u.$marks[0] == 0 || !$changed", Do: "$u.$marks[0] == 0", Test: "TestCutCarving"},
	{Rule: "what is free keeps its stamp's number", In: "withClass",
		At: "$stamp&(1<<$classShift-1)", Do: "$stamp&(1<<16-1)", Test: "TestUnitsChange"},
	{Rule: "a client that frees its hands has nothing in them", In: "extents.refill",
		At: "$st.$of[$i].$hand = $st.$of[$i].$hand[:0]", Do: "_ = $i", Test: "TestLostClaim"},
	{Rule: "a client gives its other hands back before it says that the pool is full", In: "extents.seek",
		At: "$n == 0", Nth: "2/2", Do: "$n >= 0", Test: "TestPinned"},
	{Rule: "a takeover gives what is free its unit's class", In: "Store.freeMark",
		At: "max($class, 0)", Do: "0", Test: "TestTakeover"},
}

var carvingSuite = teeth.Suite{Test: "TestClassesAtEveryCrash", Env: []string{"FARKV_SEEDS=40"}}

func TestCarvingMutants(t *testing.T) { carvingSuite.Run(t, carvingMutants) }
