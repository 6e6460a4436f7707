package swarm

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// storeMutants break one rule of the store each. The suite of workers that meet must notice, or the
// test that is named.
var storeMutants = []teeth.Mutant{
	{Rule: "a client that finds a dying entry ends its object first", In: "Store.locate",
		At: "if $err := $s.$finish($e.$Location, $now); $err != nil { $*body }", Do: "if false { $*body }",
		Test: "TestHalfDeleted"},
	{Rule: "an entry is marked before its object ends", In: "change.mark",
		At: "$rest[$at].$Location |= $dying"},
	{Rule: "a deleted object ends", In: "Store.remove",
		At: "$s.$c.Delete(&$c.$victim)", Do: "error(nil)"},
	{Rule: "an object ends without a buffer", In: "Store.finish",
		At: "!errors.Is($err, client.ErrFull)", Do: "true", Test: "TestEndWithoutBuffers"},
	{Rule: "a new key takes the place of a dying entry that is finished", In: "change.endObjects",
		At: "$c.$s.$finish($location, $c.$named)", Do: "error(nil)", Test: "TestHalfDeleted"},
	{Rule: "an entry of another key gives way when its object has its tombstone", In: "change.makeRoom",
		At:   "$c.met = append($c.met, $e.$Location)",
		Do:   "$c.met, $c.ended = append($c.met, $e.$Location), append($c.ended, $e.$Location)",
		Test: "TestDeadOutOfReach"},
	{Rule: "what is dead of other keys gives way", In: "Store.insert",
		At:   "if $err := $c.$makeRoom($rest); $err != nil { $*body }",
		Test: "TestCrowdedHalfDeleted"},
	{Rule: "little of what is dead stays", In: "change.sift",
		At: "$c.$hasEnded($e) || $c.$s.$isPendingDrop($e)", Do: "$c.$hasEnded($e)", Test: "TestFewDead"},
	{Rule: "a READ of RAW does not prove that an object is still there", In: "Client.Read",
		At: "return $c.$readRaw($k)", Do: "$k.met(began); return $c.$readRaw($k)", Test: "TestRawObjectAgain"},
	{Rule: "an operation waits for nodes that are out of reach", In: "Store.reach",
		At: "$now-$t.$began >= $timeout", Do: "true", Test: "TestOutOfReach"},
	{Rule: "an INSERT waits for objects when no node answers", In: "Store.refill",
		At: "$full || $rest <= 0 || !errors.Is($last, rdma.ErrTimeout)", Do: "$rest != 0", Test: "TestDrawOutOfReach"},
	{Rule: "a sweep is waited for until the timeout is over", In: "Store.nextEpoch",
		At: "max($t.$began+$timeout-$now, 0)", Do: "$timeout / 4", Test: "TestGetAwaitsSweep"},
	{Rule: "an INSERT that waited for retired objects in vain has a sweep look for others", In: "Store.again",
		At: "$s.$ask(buffers.AskSweep)", Test: "TestLeakedAmongRetired"},
	{Rule: "a sweep that has begun is waited for", In: "Store.nextEpoch",
		At: "$n < longestSweep", Do: "$n < 1", Test: "TestLongSweepIsWaitedFor"},
	{Rule: "a sweep that does not begin says nothing about epochs without one", In: "Store.nextEpoch",
		At: "$now < $s.$inVain[$what]", Do: "$now < max($s.$inVain[1], $s.$inVain[2])",
		Test: "TestRestingKeeperGrantsEpochs"},
	{Rule: "a client that waits for a sweep that has begun asks for no other one", In: "Store.nextEpoch",
		At: "if $s.member.Busy { $next-- } else { $s.$ask($what) }",
		Do: "if $s.member.Busy { $next-- }; $s.$ask($what)", Test: "TestSweepUnderWayIsNotAskedFor"},
	{Rule: "objects that were not retired are left to a sweep that is asked for", In: "Store.retire",
		At: "$s.$leaves = true", Test: "TestLeftObjectsAreSwept"},
	{Rule: "a sweep for objects that were not retired is asked for once", In: "Store.ask",
		At: "$s.$leaves = false", Test: "TestLeftObjectsAreSwept"},
	{Rule: "a sweep frees the buffers of retired objects", In: "sweep.old",
		At: "$epoch <= $w.$v.$Epoch", Do: "false", Test: "TestBuffersOfRetired"},
	{Rule: "the words of a retired object stay until clients may claim it", In: "sweep.old",
		At: "$epoch <= $w.$v.$Epoch", Do: "$epoch <= $w.$v.$Epoch + 3", Test: "TestBuffersOfRetired"},
	{Rule: "a key that is there is not inserted", In: "Store.insert",
		At: "$at >= 0", Do: "$at > 1<<30"},
	{Rule: "a key that was deleted is looked up again", In: "Store.update",
		At: "$err == nil || !errors.Is($err, ErrGone) && $*other",
		Do: "$err == nil || errors.Is($err, ErrGone) || $*other"},
	{Rule: "a pair that was written is another INSERT's no more", In: "Store.insert",
		At: "$o.$location = 0", Nth: "1/2"},
	{Rule: "a READ is of its key", In: "valueOf",
		At: "bytes.Equal($pair[$keyHeader:$keyHeader+len($key)], $key)", Do: "bytes.Equal(nil, nil)",
		Test: "TestSameHash"},
	{Rule: "a cached location is of its key", In: "Store.find",
		At: "$e != nil && $e.$secret == $seeded($s.$secret2, $key)", Do: "$e != nil", Test: "TestSameHash"},
	{Rule: "an identity goes on above its ceiling", Pkg: "../kit", In: "OpenNumbers",
		At: "$n.$used = max($n.$used, $word)", Test: "TestIdentityAgain"},
	{Rule: "a ceiling is raised before what it allows is used", Pkg: "../kit", In: "Numbers.Use",
		At: "$to > $n.$limit", Do: "false", Test: "TestIdentityAgain"},
	{Rule: "a client that closes leaves no ceiling that is ahead", Pkg: "../quorum", In: "Ceiling.Lower",
		At: "min($c.$words[$r], $to)", Do: "$c.$words[$r]", Test: "TestIdentityAgain"},
	{Rule: "a WRITE to a pair of an earlier epoch begins with a READ", In: "Store.mayOutdate",
		At: "$*outdated || $*slept", Do: "$*slept", Test: "TestUpdateOverEpochs"},
	{Rule: "a client that has slept READs before it WRITEs", In: "Store.mayOutdate",
		At: "$*outdated || $*slept", Do: "$*outdated", Test: "TestUpdateOverEpochs"},
	{Rule: "objects lie apart", In: "plan.place",
		At: "$i * $l.$stride($r)", Do: "$i * $l.$stride(1)"},
}

// storeSuite is of workers that meet, over more seeds.
var storeSuite = teeth.Suite{Test: "TestStoreContention/swarm", Env: []string{"FARKV_SEEDS=2000"}}

func TestStoreMutants(t *testing.T) { storeSuite.Run(t, storeMutants) }
