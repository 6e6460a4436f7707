package clean

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "a segment is not freed while it is read", In: "cleaner.free",
		At: "!$c.s.Quiet.All($l.question)", Do: "false", Test: "TestFreed"},
	{Rule: "a cleaner waits for all readers", Pkg: "../state", In: "Quiet.All",
		At: "$q.Of($i) < $question", Do: "q.Of(i-i) < question", Test: "TestFreed"},
	{Rule: "a tombstone stays while a PUT of its key is in memory", In: "sweep.look",
		At: "*$word |= $bit", Do: "_, _ = $word, $bit", Test: "TestSweep"},
	{Rule: "what is deleted behind the look at its PUT stays deleted", In: "sweep.step",
		At: "$err = $w.look($*segment)", Do: "$err = $w.look($*segment); $w.tombs, _ = $w.s.Space.Entombed()",
		Test: "TestSweep"},
	{Rule: "a sweep looks at segments in use, too", Pkg: "../..", In: "Table.Held",
		At: "!$spare[$i]", Do: "!$spare[$i] && t.segments[$i].state == committed", Test: "TestSweep"},
	{Rule: "no copy comes behind a look", In: "sweep.step",
		At: "$w.s.Quiet.All($w.question)", Do: "true", Test: "TestSweepWaits"},
	{Rule: "sweeps go on", In: "sweep.due",
		At: "$w.s.Table.Freed()-$w.freed", Do: "$w.s.Table.Freed()*0", Test: "TestSweep"},
	{Rule: "no tombstone is dropped of a shard that is copied", Pkg: "../state", In: "Server.MayDrop",
		At:   "!$t.incomplete($shard)",
		Do:   "true",
		Test: "TestSweepSpares"},
	{Rule: "nor before others have given what they have", Pkg: "../state", In: "Server.MayDrop",
		At:   "$s.Known.IsSettled($t.Term)",
		Do:   "true",
		Test: "TestSweepSpares"},
	{Rule: "copies keep their terms", In: "cleaner.move", At: "uint32(kv.TermOf($e))", Do: "1",
		Test: "TestCopiesKeepTerms"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
