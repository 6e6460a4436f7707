package directory

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The suite of contention must notice, over enough seeds, or the test
// that is named.
var mutants = []teeth.Mutant{
	// Paxos.
	{Rule: "a majority is more than half", In: "Client.majority",
		At: "quorum.Majority($c.$Replicas)", Do: "max(1, $c.$Replicas/2)"},
	{Rule: "no client accepts without a majority's promises", In: "Client.attempt",
		At: "if $err := $c.$prepare(); $err != nil { $*body }",
		Do: "if $err := $c.$prepare(); $err != nil && !passing($err) { $*body }"},
	{Rule: "what was promised to another is no promise", In: "Client.prepare",
		At: "$op.Swapped()", Do: "$op.Swapped() || Word($op.Result) == promise(c.promise, k.word.pointer())"},
	{Rule: "a replica that promised a higher round accepts nothing", In: "Client.above",
		At: "$k.$word >= $accept($c.$promise, 0)", Do: "false"},
	{Rule: "a round is above all that is known", In: "Client.prepare",
		At: "$c.$replicas[$r].$word.$round() + 1", Do: "$c.$replicas[$r].$word.$round()"},
	{Rule: "the base is the highest that was accepted", In: "Client.newest",
		At: "!$counts($k) || $k.since < $round", Do: "!$counts($k) || $k.since < $round || n > 0 && $k.since > $round"},
	{Rule: "the base is that of the replicas that promised", In: "Client.attempt",
		At: "$c.$base.$round != $round", Do: "false"},
	{Rule: "a decision is made again when its base changed", In: "Client.attempt",
		At: "!$settled || $decided != $round", Do: "!$settled || $decided > $round", Seed: 1936},
	{Rule: "a promise tells what was accepted before", In: "replica.meet",
		At: "$k.$since, $k.$sure = $w.$since2()", Do: "$k.$since, _ = $w.$since2(); $k.$sure = true"},
	{Rule: "a promise keeps what was accepted", In: "Client.prepare",
		At: "$k.$word.pointer()", Do: "0"},
	{Rule: "a promised word does not tell when its value was accepted", In: "Word.since",
		At: "case $w.$accepted():", Do: "case $w.pointer() != 0:"},
	// Lookups.
	{Rule: "a lookup's majority agrees", In: "Client.look",
		At: "$n < $c.$majority()", Nth: "2/2", Do: "$n < 1"},
	{Rule: "what lies in place is whole", In: "whole",
		At: "$le.Uint64($p) == xxhash.Sum64($p[8:])", Do: "true"},
	{Rule: "a value is of its word's round", In: "Client.find",
		At: "!$ok || $roundOf($v) != $round", Do: "!$ok"},
	{Rule: "a value is of its bucket", In: "whole",
		At: "$tag>>8 != $bucket || $n > Slots", Do: "$n > Slots", Test: "TestValues"},
	{Rule: "what was found outlives its batch", In: "Client.lookFurther",
		At: "$c.$save()"},
	{Rule: "replicas that lag are made up for", In: "Client.lookFurther",
		At: "$rest.Len() < $need", Do: "true", Test: "TestLagging"},
	{Rule: "nodes that are silent are not asked to make up for others", In: "Client.lookFurther",
		At: "$c.$replicas[$r].$known || $c.$quorum.IsSlow($c.$at[$r].Node())", Do: "$c.$replicas[$r].$known",
		Test: "TestLagging"},
	{Rule: "a lookup settles what it cannot read", In: "Client.try",
		At: "$settled && $ch.$decide == nil", Nth: "1/2", Do: "($settled || c.has) && $ch.$decide == nil"},
	{Rule: "a lookup mends what lies in place", In: "Client.load",
		At: "$c.$mend()", Test: "TestMended"},
	// Changes.
	{Rule: "a change that was helped is done", In: "Client.decide",
		At: "case $c.$base.$has($ch.$id):", Do: "case false:"},
	{Rule: "a change that may have been forgotten is uncertain", In: "Client.decide",
		At: "$ch.$sent && !$c.$base.$tells($ch.$id, $ch.$first)", Do: "false", Test: "TestHelped"},
	{Rule: "changes are known for as long as they are remembered", In: "value.tells",
		At: "$first + $remembered", Do: "$first + $remembered + 1", Test: "TestHelped"},
	{Rule: "a client's change takes the place of its change before", In: "value.add",
		At: "$i < $remembered-1 && $v.$ids[$i] != 0 && $clientOf($v.$ids[$i]) != $clientOf($id)",
		Do: "$i < $remembered-1 && $v.$ids[$i] != 0", Test: "TestNeverForgotten"},
	{Rule: "the client that has not changed a bucket for longest is forgotten", In: "value.add",
		At: "copy($v.$ids[1:$i+1], $v.$ids[:$i]); $v.$ids[0] = $id", Do: "$v.$ids[$i] = $id", Test: "TestRemembered"},
	{Rule: "a client's change before tells that this one was not made", In: "value.tells",
		At: "$other == 0 || $clientOf($other) == $clientOf($id)",
		Do: "$clientOf($other) == $clientOf($id)", Test: "TestNeverForgotten"},
	{Rule: "the lowest number counts", In: "Client.accept",
		At: "!$ch.$sent || $c.$next.$changes < $ch.$first", Do: "!$ch.$sent", Test: "TestNumberedTwice"},
	{Rule: "a change is refused for what is chosen", In: "Client.attempt",
		At:   "$err = $c.$accept($ch, $final)",
		Do:   "if $final && $ch.refused != nil { return true, $ch.refused }; $err = $c.$accept($ch, $final)",
		Test: "TestRefusalIsChosen"},
	{Rule: "what was sent may have taken effect", In: "change.failed",
		At: "$ch.$sent", Do: "false", Test: "TestNodesDieUnderAChange"},
	{Rule: "a bucket has room for its slots", In: "Client.decide",
		At: "len($next) > Slots", Do: "len($next) > Slots+1", Test: "TestTrips"},
	{Rule: "each batch has its own copy of a value", In: "Client.offer",
		At: "$b.Len() == 0", Do: "c.encoded == nil"},
	// Buffers.
	{Rule: "a CAS that succeeds takes what the word named", In: "Client.took",
		At: "Word($op.$Expect).$pointer()", Do: "0"},
	{Rule: "what a word names is not given away", In: "Client.took",
		At: "$c.$spares[$r] = Word($op.$Expect).$pointer()",
		Do: "if w := Word($op.$Expect).$pointer(); w != 0 { $c.alloc.Give($c.at[$r].Node(), $c.bucket, w) }"},
	{Rule: "a buffer with a chain in flight has no owner", In: "Client.owned",
		At: "$c.$spares[$r] = 0"},
	{Rule: "buffers in flight come back", In: "Client.accept",
		At: "$c.$unresolved.Keep(&$c.$quorum, $c.$bucket)"},
	{Rule: "an unresolved CAS takes what the word named", In: "Client.landed",
		At: "$cas.Swapped()", Do: "false"},
	{Rule: "a buffer comes before a promise", In: "Client.attempt",
		At: "$ch.$decide != nil || errors.Is($err, rdma.ErrStale)", Do: "errors.Is($err, rdma.ErrStale)",
		Test: "TestFull"},
	{Rule: "a change that was sent is refused when it can take effect no more", In: "change.loose",
		At: "$ch.$sent && $ch.$refused != nil", Do: "false", Test: "TestRefusedBehindAnAttempt"},
	{Rule: "what is chosen needs no buffer to be told", In: "Client.attempt",
		At: "(!$final || $ch.$loose() || $n < $c.$majority())", Do: "$n >= 0", Test: "TestFull"},
	{Rule: "what was not sent is known", In: "Client.owned",
		At: "$c.$offered&$m == 0 || $c.$quorum.Unsent()&$m != 0", Do: "$c.$offered&$m == 0", Test: "TestNothingSent"},
	{Rule: "a buffer in hand is its client's for one epoch", In: "Client.follow",
		At: "$c.$spares = [quorum.MaxReplicas]uint16{}", Test: "TestEpochUnderAChange"},
	{Rule: "a change goes on in the epoch that it began in", In: "Client.gather",
		At: "$c.$moved()", Do: "false", Test: "TestEpochUnderAChange"},
	{Rule: "an accept that sends nothing has nothing in flight", In: "Client.gather",
		At: "$c.$quorum.Forget()", Test: "TestRefusedAccept"},
	{Rule: "nothing at all agrees with no promise", In: "Client.agreed",
		At: "$k.$known && ($k.$word == 0 || $k.$word.$accepted())", Do: "$k.sure", Test: "TestWalkIsLast"},
	// Liveness, and walks.
	{Rule: "the wait for another proposer is bounded", In: "Client.wait",
		At: "$busy && $p.$idle <= $maxIdleLooks && $p.$tries < $maxYields", Do: "$busy", Test: "TestChangeOfTheDead"},
	{Rule: "a silent node is waited for briefly", In: "Client.prepare",
		At: "$c.briefly", Do: "$c.gather", Test: "TestSilentNodeIsNotAwaited"},
	{Rule: "a walk waits for its own accepts to buckets that were not settled", In: "Client.settle",
		At: "$c.Land()", Do: "error(nil)"},
	{Rule: "a walk waits for its own accepts before it reads many buckets", In: "Client.eachRun",
		At: "$c.Land()", Do: "error(nil)"},
	{Rule: "a walk knows which nodes did not answer", In: "Client.Walk",
		At: "!$k.$known", Do: "false", Test: "TestWalk"},
	{Rule: "a walk settles what no majority agrees on", In: "Client.Walk",
		At: "$met && $n >= $c.$majority()", Do: "met && n > 0", Test: "TestWalkIsLast"},
	{Rule: "a walk goes on behind a fence", In: "Client.Walk",
		At: "$err != nil && !errors.Is($err, rdma.ErrStale)", Do: "err != nil || errors.Is(err, rdma.ErrStale)",
		Test: "TestFenceUnderAWalk"},
	{Rule: "what a walk has read was asked of the nodes that answered by then", In: "Client.eachRun",
		At: "slices.Clone($silent)", Do: "slices.Clip(silent)", Test: "TestNodeDiesUnderAWalk"},
	{Rule: "a walk reads many buckets in a trip", In: "Client.Walk",
		At: "$met && $n >= $c.$majority()", Do: "met && n < 0", Test: "TestWalkTrips"},
	{Rule: "a walk looks for a value that does not lie in place", In: "Client.Walk",
		At: "$settled, $err = $c.$load($round)", Do: "settled, err = c.has || round == 0, nil", Test: "TestWalkTrips"},
}

// suite is contention's, over more seeds.
var suite = teeth.Suite{
	Test: "TestContention/3_replicas", Flags: []string{"-rapid.nofailfile"}, Env: []string{"FARKV_SEEDS=6000"},
	Seen: caught,
}

// caught matches what a test prints when it has found a violation.
var caught = regexp.MustCompile(`not linearizable|operations failed|is used twice|is lost|is there|want an error|` +
	`a lookup (behind it )?took|` +
	`took \d+ trips|an operation took|took long|lookup took|changes by others|is taken for|(is|are) known|` +
	`a change was refused|a walk round|view has changed|buffers of a change|` +
	`was brought along|entries, and|damaged|meet others|` +
	`buffers leaked|other clients changed|: full|worker panicked`)

func TestMutants(t *testing.T) { suite.Run(t, mutants) }
