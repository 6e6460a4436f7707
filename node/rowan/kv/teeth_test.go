package kv

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// The rules that clients see broken are in client/rowan.
var mutants = []teeth.Mutant{
	{Rule: "a segment is not freed while it is read", In: "cleaner.free",
		At: "!$c.s.quiet.all($l.question)", Do: "false", Test: "TestFreed"},
	{Rule: "a cleaner waits for all readers", In: "quiet.all",
		At: "slices.Min($q.passed)", Do: "slices.Max($q.passed)", Test: "TestFreed"},
	{Rule: "no worker passes while a GET reads", In: "worker.looks",
		At: "$o.look != nil && $*began", Do: "$o == nil", Test: "TestQuiet"},
	{Rule: "nor while an answer gathers", In: "worker.pass",
		At: "$w.peer.Answered() < $w.answers", Do: "false", Test: "TestQuiet"},
	{Rule: "answers to what was read before count", In: "worker.pass",
		At: "$w.peer.Stats().Served", Do: "0", Test: "TestQuiet"},
	{Rule: "cleaners wait for no write that waits for room", In: "worker.looks",
		At: "$o.look != nil && $o.number <= $w.opsAt", Do: "$o.number <= $w.opsAt", Test: "TestQuiet"},
	{Rule: "nor while a write reads", In: "worker.looks",
		At: "$k.late", Do: "$k == nil", Test: "TestQuiet"},
	{Rule: "an append that failed is repeated", In: "rings.goOn",
		At: "$err == nil", Do: "$err == nil || true", Test: "TestRepeated"},
	{Rule: "though there is no room for PUTs", In: "rings.repeat",
		At: "$r.reserve($a, $*size, true)", Do: "$r.reserve($a, $*size, false)", Test: "TestRepeated"},
	{Rule: "and for DELs", In: "worker.send",
		At: "$w.backups.reserve($*a, $n, $del)", Do: "$w.backups.reserve($*a, $n, $del && !$del)", Test: "TestRepeated"},
	{Rule: "so is a WRITE", In: "writes.step",
		At: "$g.batch.Err() == nil", Do: "$g.batch.Err() == nil || true", Test: "TestRewritten"},
	{Rule: "entries wait for others", In: "writes.add",
		At: "n >= $x.most", Do: "n > 0", Test: "TestGathered"},
	{Rule: "for a while", In: "writes.step",
		At: "$g.batch == nil && $now >= $g.due && $err == nil", Do: "$g.batch == nil && $now < 0", Test: "TestGathered"},
	{Rule: "half of the leave is for DELs", In: "calls.reserve",
		At: "!del", Do: "false", Test: "TestLeave"},
	{Rule: "appends in flight are bounded", In: "calls.reserve",
		At: "$b.next >= $b.lowest+callWindow", Do: "false", Test: "TestLeave"},
	{Rule: "what was asked for twice is appended once", In: "calls.take",
		At: "$s.seen[$*word]>>($*bit)&1 != 0", Do: "false", Test: "TestOnce"},
	{Rule: "and never once its writer was told", In: "calls.take",
		At: "$t.number < $s.lowest || $*flies", Do: "$*flies", Test: "TestOnce"},
	{Rule: "CommitVer waits for all below", In: "shard.done",
		At: "$s.acked[$*word]>>($*bit)&1 != 0", Do: "v <= $s.version", Test: "TestCommitVer"},
	{Rule: "versions in flight are bounded", In: "shard.next",
		At: "$s.version-$s.commit >= window", Do: "false", Test: "TestCommitVer"},
	{Rule: "a tombstone stays while a PUT of its key is in memory", In: "sweep.look",
		At: "*$word |= $bit", Do: "_, _ = $word, $bit", Test: "TestSweep"},
	{Rule: "what is deleted behind the look at its PUT stays deleted", In: "sweep.step",
		At: "$err = $w.look($*segment)", Do: "$err = $w.look($*segment); $w.tombs, _ = $w.s.space.entombed()",
		Test: "TestSweep"},
	{Rule: "a sweep looks at segments in use, too", Pkg: "..", In: "Table.Held",
		At: "!$spare[$i]", Do: "!$spare[$i] && t.segments[$i].state == committed", Test: "TestSweep"},
	{Rule: "no copy comes behind a look", In: "sweep.step",
		At: "$w.s.quiet.all($w.question)", Do: "true", Test: "TestSweepWaits"},
	{Rule: "sweeps go on", In: "sweep.due",
		At: "$w.s.table.Freed()-$w.freed", Do: "$w.s.table.Freed()*0", Test: "TestSweep"},
	{Rule: "terms order records", In: "order.before",
		At: "$o.term < $p.term || $*same", Do: "$o.version < $p.version", Test: "TestOrder"},
	{Rule: "a record has one encoding", In: "parseRecord",
		At: "$second>>48 != 0", Do: "false", Test: "FuzzRecord"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
