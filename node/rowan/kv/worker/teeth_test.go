package worker

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "nothing is served while replicas are compared", In: "Worker.Begin",
		At: "!$w.term.Compare", Do: "true", Test: "TestCompared"},
	{Rule: "no worker passes while a GET reads", In: "Worker.looks",
		At: "$o.look != nil && $*began", Do: "$o == nil", Test: "TestQuiet"},
	{Rule: "cleaners wait for no write that waits for room", In: "Worker.looks",
		At: "$o.look != nil && $o.number <= $w.opsAt", Do: "$o.number <= $w.opsAt", Test: "TestQuiet"},
	{Rule: "nor while a write reads", In: "Worker.looks",
		At: "$k.late", Do: "$k == nil", Test: "TestQuiet"},
	{Rule: "a write that has to wait is no load", In: "Worker.Begin",
		At: "return $w.enqueue($o)", Do: "{ sh.Count(); return $w.enqueue($o) }", Test: "TestCounts"},
	{Rule: "an append that failed is repeated", In: "rings.goOn",
		At: "$err == nil", Do: "$err == nil || true", Test: "TestRepeated"},
	{Rule: "unless it can never succeed", In: "rings.goOn",
		At: "if state.Fatal($err) { return false, $err }", Test: "TestRefused"},
	{Rule: "though there is no room for PUTs", In: "rings.repeat",
		At: "$r.reserve($a, $*size, true)", Do: "$r.reserve($a, $*size, false)", Test: "TestRepeated"},
	{Rule: "and for DELs", In: "Worker.send",
		At: "$w.backups.reserve($*a, $n, $del)", Do: "$w.backups.reserve($*a, $n, $del && !$del)",
		Test: "TestRepeated"},
	{Rule: "so is a WRITE", In: "writes.step",
		At: "$g.acked = $failed == nil", Do: "$g.acked = $failed == nil || true", Test: "TestRewritten"},
	{Rule: "entries wait for others", In: "writes.add",
		At: "n >= $x.most", Do: "n > 0", Test: "TestGathered"},
	{Rule: "for a while", In: "writes.step",
		At: "$g.batch == nil && $now >= $g.due && $err == nil", Do: "$g.batch == nil && $now < 0",
		Test: "TestGathered"},
	{Rule: "half of the leave is for DELs", In: "calls.reserve",
		At: "!del", Do: "false", Test: "TestLeave"},
	{Rule: "a backup that has not said that it is full is not", In: "calls.reserve",
		At: "$b.full", Do: "true || b.full", Test: "TestLeave"},
	{Rule: "appends in flight are bounded", In: "calls.reserve",
		At: "$b.next < $b.lowest+callWindow", Do: "b.next > 0", Test: "TestLeave"},
	{Rule: "what was asked for twice is appended once", In: "calls.take",
		At: "$s.seen[$*word]>>($*bit)&1 != 0", Do: "false", Test: "TestOnce"},
	{Rule: "and never once its writer was told", In: "calls.take",
		At: "$t.number < $s.lowest || $*flies", Do: "$*flies", Test: "TestOnce"},
	{Rule: "what a server sent that is gone is not appended", In: "calls.take",
		At: "$c.w.term.Member($t.node) == nil", Do: "false", Test: "TestCallsOfTerms"},
	{Rule: "nor what is of an earlier term", In: "calls.take", At: "$c.turning != nil", Do: "false",
		Test: "TestCallsOfTerms"},
	{Rule: "a log goes on in a term with nothing in flight", In: "calls.turnLog", At: "len($c.taken) > 0", Do: "false",
		Test: "TestCallsOfTerms"},
	{Rule: "a GET waits for no server that others wait for", In: "Worker.Begin",
		At: "changes($r.Proc) || $source != shards.None", Do: "true || source != shards.None", Test: "TestBusy"},
	{Rule: "a worker is quiet when nothing of earlier terms is under way", In: "Worker.see",
		At: "slices.ContainsFunc($w.ops, $*of)", Do: "false", Test: "TestSee"},
	{Rule: "a damaged entry is not served", In: "Worker.match", At: "return kv.Found{}, 0, $at", Do: "_ = at",
		Test: "TestDamagedEntry"},
	{Rule: "the manager is told once", Pkg: "../state", In: "Damage.Note", At: "$m.Shard == $shard", Do: "m.Shard < 0",
		Test: "TestDamagedEntry"},
	{Rule: "in the term in which it was met", Pkg: "../state", In: "Damage.In", At: "$d.term != $term", Do: "false",
		Test: "TestDamagedEntry"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
