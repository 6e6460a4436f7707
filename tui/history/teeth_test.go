package history_test

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "a counter that went back begins anew", In: "since",
		At: "$is < $was", Do: "false", Test: "TestRatesAreDifferences"},
	{Rule: "a history takes little", In: "History.Add",
		At: "$h.bytes > MaxBytes", Do: "$h.bytes < 0", Test: "TestHistoryIsSmall"},
	{Rule: "the last minutes are kept", In: "History.Add",
		At: "$n > LeastPoints && $h.bytes > MaxBytes", Do: "$n > 2 && $h.bytes > MaxBytes", Test: "TestHistoryIsSmall"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
