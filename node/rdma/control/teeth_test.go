package control_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "what a node said before a look counts for nothing in it", In: "Control.heardSince",
		At: "$a.$asked2 >= $asked", Do: "true", Test: "TestAttendance"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
