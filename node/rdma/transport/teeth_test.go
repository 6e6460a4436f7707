package transport_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "the node's proof is checked", In: "greet",
		At: `!hmac.Equal($w.$Proof, $prove($token, "node", &$mine, &$theirs, $w.$unproved()))`, Do: "false",
		Test: "TestNodeProves"},
	{Rule: "workers do not wait for a node", In: "Link.write",
		At: "len($l.$out) > 0 && $nc != nil && $l.$nc == $nc && $l.$bytes <= $most", Do: "len($l.$out) > 0 && $nc " +
			"!= nil && $l.$nc == $nc",
		Test: "TestPostNeverWrites"},
	{Rule: "nor for the next connection to it", In: "Link.write",
		At: "len($l.$out) > 0 && $nc != nil && $l.$nc == $nc && $l.$bytes <= $most", Do: "len($l.$out) > 0 && " +
			"$l.$nc != nil && $l.$bytes <= $most",
		Test: "TestPostEndsWithItsConnection"},
	{Rule: "what waits is bounded", In: "Link.Begin",
		At: "len($l.$out) > $mostQueued", Do: "false", Test: "TestQueueIsBounded"},
	{Rule: "time before a node was heard does not count", In: "ping.turn",
		At: "min($p.$still, $now-$heard)", Do: "$p.$still", Test: "TestGivesUp"},
	{Rule: "a node comes back to a port that is no other's", In: "Listen",
		At: "!$comesBack", Do: "true", Test: "TestPortIsKept"},
	{Rule: "a port that is taken is drawn again", In: "listenAtDrawn",
		At: "for range portTries { $*body }", Do: "for range 1 { $*body }", Test: "TestPortsThatAreTaken"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
