package buffers

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each; the test that is named must notice.
var mutants = []teeth.Mutant{
	{Rule: "a stack's tag rises", In: "stack.then",
		At: "($s>>16 + 1)", Do: "$s >> 16", Test: "TestSameBundleAgain"},
	{Rule: "a bundle is taken by a CAS that succeeded", In: "Worker.pop",
		At: "case $swapped:", Do: "default:", Test: "TestOneOwnerInVirtualTime"},
	{Rule: "what a CAS did not give back is kept", In: "Worker.settle",
		At: "$l.$put($l.$out...)", Test: "TestOneOwner"},
	{Rule: "what is given back is no longer the worker's", In: "Worker.push",
		At: "$l.$head += $n + 1", Test: "TestOneOwner"},
	{Rule: "the bundle itself is free once", In: "Worker.pop",
		At: "append($list, $pointer)", Do: "append($list, $pointer, $pointer)", Test: "TestOneOwner"},
	{Rule: "the bundle is not in its own list", In: "Worker.push",
		At: "$l.$out[:$n]", Do: "$l.$out[1 : $n+1]", Test: "TestOneOwner"},
	{Rule: "the oldest is used first", In: "list.take",
		At: "$p := $l.$free[$l.$head]; $l.$head++",
		Do: "$p := $l.$free[len($l.$free)-1]; $l.$free = $l.$free[:len($l.$free)-1]", Test: "TestFull"},
	{Rule: "a worker keeps a bounded number of buffers", In: "Worker.Give",
		At: "$l.$len() > $w.$mostKept()", Do: "$l.$len() > 1<<20", Test: "TestGivenBack"},
	{Rule: "what others gave back is taken first", In: "Worker.refill",
		At: "$ok, $err := $w.$pop($l)", Do: "$ok, $err := false, error(nil)", Test: "TestGivenBack"},
	{Rule: "a bundle has its checksum", In: "decodeBundle",
		At: "$le.Uint64($p) != xxhash.Sum64($p[8:$bundleBytes($n)])", Do: "false", Test: "TestDamagedStack"},
	{Rule: "pointers begin at 1", In: "Worker.grow",
		At: "$first + $i + 1", Do: "$first + $i", Test: "TestFull"},
	{Rule: "what a worker has is its own for one epoch", In: "Worker.busy",
		At: "$w.$epoch != $w.$member.$Epoch", Do: "$w.$epoch > $w.$member.$Epoch", Test: "TestSweep"},
	{Rule: "what is replaced under a busy view has no owner", In: "Worker.Give",
		At: "if $w.$busy() { $*body }", Do: "if $w.$busy() && pointer == 0 { $*body }", Test: "TestSweep"},
	{Rule: "under a busy view only new buffers are taken", In: "Worker.refill",
		At: "if !$busy { $*body }", Do: "if $busy = false; !$busy { $*body }", Test: "TestSweep"},
	{Rule: "a worker under a busy view gives nothing back", In: "Worker.Close",
		At: "if $w.$busy() { $*body }", Do: "if $w.$busy() && $w.ep == nil { $*body }", Test: "TestSweep"},
	{Rule: "what is free is no garbage", In: "Sweeper.Garbage",
		At: "!$known[$p] && !$named($p)", Do: "!$named($p)", Test: "TestSweep"},
	{Rule: "what is named is no garbage", In: "Sweeper.Garbage",
		At: "!$known[$p] && !$named($p)", Do: "!$known[$p]", Test: "TestSweep"},
	{Rule: "all garbage is given back", In: "Sweeper.Free",
		At: "for $l.$len() > 0 { $*body }", Do: "if $l.$len() > 0 { $*body }", Test: "TestSweep"},
	{Rule: "earlier epochs are fenced off", In: "sweeping.sweep",
		At: "$m.$f.Fence($busy.$Epoch)", Do: "$m.$f.Fence(v.$Epoch)", Test: "TestSweep"},
	{Rule: "what was handed out is counted before the epoch begins", In: "sweeping.sweep",
		At:   "$garbage, $err := $m.$s.Garbage(0, $segment, func($p uint16) bool { $*body })",
		Do:   "$m.$s.Count(0); $garbage, $err := $m.$s.Garbage(0, $segment, func($p uint16) bool { $*body })",
		Test: "TestSweep"},
	{Rule: "a sweep is asked for again in the same epoch", In: "Worker.refill",
		At: "$w.Ask($l.$node, AskSweep)", Do: "if $w.stats.Lost++; $w.stats.Lost == 1 { $w.Ask($l.$node, AskSweep) }",
		Test: "TestAskedAgain"},
	{Rule: "what failed half way has no owner", In: "Worker.settle",
		At: "$w.$stats.$Lost += uint64(len($l.$out))", Nth: "1/2", Do: "$l.put($l.$out...)", Test: "TestPushFails"},
	{Rule: "a worker that closes waits for one timeout", In: "Worker.giveBack",
		At: "min($began+$w.$timeout, $now+$w.$timeout/$turns)", Do: "$began + 9*$w.$timeout",
		Test: "TestCloseIsBounded"},
	{Rule: "a chunk ends with its array", Pkg: "../../node", In: "serveGrow",
		At: "min($want, $items-$used)", Do: "$want", Test: "TestFull"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
