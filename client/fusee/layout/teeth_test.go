package layout

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break the formats.
var mutants = []teeth.Mutant{
	{Rule: "an object is checked by its checksum", In: "Decode",
		At: "$log+$logBytes > len($p) || $le.Uint64($p[$sumAt:]) != $checksum($p[$incarnationAt:$log+$opBytes])",
		Do: "$log+$logBytes > len($p)", Test: "TestObjectTears"},
	{Rule: "pools have blocks for each class of their pairs", In: "Shape.fitBlock",
		At: "classBlocks*$sizes",
		Do: "0*$sizes", Test: "TestManySizes"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
