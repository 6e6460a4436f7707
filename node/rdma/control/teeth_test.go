package control_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "what a node said before a look counts for nothing in it", In: "Control.heardSince",
		At: "$a.$asked2 >= $asked", Do: "true", Test: "TestAttendance"},
	{Rule: "an offer is no longer than one may be", In: "Pool.mail",
		At: "$le.Uint32($body[36:]) <= MaxOffer", Do: "true", Test: "TestOffersFromNodes"},
	{Rule: "nor than what comes", In: "Pool.mail",
		At: "int($le.Uint32($body[36:])) <= len($body)-OfferMailBytes", Do: "true", Test: "TestOffersFromNodes"},
	{Rule: "nor is an answer", In: "Pool.mail",
		At: "$le.Uint32($body) <= MaxOffer", Do: "true", Test: "TestOffersFromNodes"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
