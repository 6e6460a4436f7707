package search

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule of the search in tables that grow each.
var mutants = []teeth.Mutant{
	{Rule: "a row that was not made is no place", In: "Search.resolve",
		At: "$r != nil && $l.$Belongs($id, $segment, $r)", Do: "$r != nil", Test: "TestNotMade"},
	{Rule: "a view's contradictions are read again", In: "Search.resolve",
		At: "return max($id, $next), nil", Do: "return min($id, $next), r", Test: "TestContradiction"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
