package quorum

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each; the test that is named must notice.
var mutants = []teeth.Mutant{
	{Rule: "a step that was fenced looks at no answer of before", In: "Quorum.rejoin",
		At: "$f.$left = 0", Test: "TestFenced"},
	{Rule: "a step that was fenced asks again", In: "Quorum.rejoin",
		At: "$q.$again |= $f.$left", Nth: "1/2", Test: "TestFenced"},
	{Rule: "what a step has read outlives a fence", In: "Quorum.rejoin",
		At: "$f.$left.Len() == $f.$n || !$f.$posted", Do: "true", Test: "TestRejoinsWhenFull"},
	{Rule: "other replicas make up for one that refuses", In: "Quorum.judge",
		At: "$q.$err = ErrRefused; $q.$widen()", Do: "$q.$err = ErrRefused", Test: "TestVerdicts"},
	{Rule: "a node that failed is asked last", In: "Quorum.fail",
		At: "$q.MarkSlow($at[$r].Node())", Test: "TestShun"},
	{Rule: "a chain that had no effect was asked in vain", In: "Quorum.judge",
		At: "$q.unsent |= Only($r)", Test: "TestUnsent"},
	{Rule: "a chain of which a verb may have landed was not", In: "Quorum.judge",
		At: "$b.HadNoEffect($ch.$First, $ch.$End)", Do: "$b.HadNoEffect($ch.$First, $ch.$First+1)", Test: "TestUnsent"},
	{Rule: "what was asked in vain stays so while others are asked", In: "Quorum.send",
		At: "$q.unsent &^= $to", Nth: "2/2", Do: "$q.unsent = 0", Test: "TestUnsent"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
