package cm_test

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "members know a term before it is committed", In: "Manager.known",
		At: "$a == nil || $a.term < $m.c.Term", Do: "a == nil"},
	{Rule: "all of them", In: "Manager.known",
		At: "$a == nil || $a.term < $m.c.Term", Do: "a != nil && a.term < m.c.Term"},
	{Rule: "nothing is served before the commit", In: "Server.Serves", At: "!$s.c.Committed", Do: "false"},
	{Rule: "a server answers when nothing is under way", In: "Server.answer", At: "!$s.store.Quiet()", Do: "false"},
	{Rule: "the dead are left out", In: "Manager.gone", At: "$v.Gone($member.Node)", Do: "false"},
	{Rule: "what may be stored yet is stored first", In: "Manager.read",
		At: "$m.pending != nil", Do: "false", Seed: 23},
	{Rule: "what may have been stored is read again", In: "Manager.store",
		At: "$m.c, $m.pending, $m.why = nil, $next, $why", Do: "m.pending = next"},
	{Rule: "a server that waits for a commit looks for it", In: "Server.Step",
		At: "$s.c != nil && !$s.c.Committed && $s.ep.Now() >= $s.lookAt", Do: "false"},
	{Rule: "one that is told of a term looks for it", In: "Server.Step",
		At: "$s.told > $s.term()", Do: "false", Test: "TestTold"},
	{Rule: "a server joins the manager's view", In: "Server.join", At: "$epoch <= $s.epoch", Do: "epoch < 1<<60"},
	{Rule: "servers go on to later configurations", In: "Server.look",
		At:   "$c.Term < $s.term() || $c.Term == $s.term() && ($s.c == nil || $s.c.Committed || !$c.Committed)",
		Do:   "false",
		Test: "TestTold"},
	{Rule: "one that was started anew serves in no term of before", In: "Server.look",
		At: "$s.c == nil || $s.c.Committed || !$c.Committed", Do: "s.c != nil && (s.c.Committed || !c.Committed)",
		Test: "TestRestart"},
	{Rule: "nor in any while it recovers", In: "Server.look", At: "$s.busy", Do: "false", Test: "TestRestart"},
	{Rule: "a manager begins another term for it", In: "Manager.restarted",
		At: "$a.restarted && $a.term >= $m.c.Term", Do: "a.restarted && a.term > 1<<40"},
	{Rule: "which serves nothing before replicas were compared", In: "Server.Serves", At: "$s.c.Compare", Do: "false"},
	{Rule: "by what they have in that term", In: "Manager.collect",
		At: "$m.comparing != $m.c.Term", Do: "m.digests == nil", Test: "TestDigestsOfTerm"},
	{Rule: "each answer has other digests", In: "Server.someOf", At: "$s.digest = $*behind", Test: "TestManyDigests"},
	{Rule: "a term is noted first", In: "Server.look",
		At: "if $err := $s.store.Adopt($c); $err != nil { $*body }", Do: "_ = s.store.Adopt(c)", Test: "TestTold"},
	{Rule: "copies become backups", In: "Manager.reports",
		At: "$next.Complete($shard, $node)", Do: "next.Complete(shard, node+1000)"},
	{Rule: "copies wait for others", In: "Manager.gather",
		At: "$next != $m.c && $*goOn", Do: "goesOn == nil", Test: "TestGather"},
	{Rule: "migrations end", In: "Manager.reports", At: "$next.Migrated($shard)", Do: "next.Migrated(-1 - shard)"},
	{Rule: "one that hangs is expelled", In: "Manager.listen",
		At: "$m.silent[$node] = $s", Do: "", Test: "TestHung"},
	{Rule: "and others have their time then", In: "Manager.Hung", At: "clear($m.silent)", Nth: "2/2", Do: "",
		Test: "TestHung"},
	{Rule: "unless a shard would be lost", In: "Manager.worst",
		At: "$err == nil && $*lost", Do: "$err == nil && next != nil", Test: "TestHung"},
	{Rule: "one that has ended is not waited for", In: "Manager.listen",
		At: "$m.ended[$node], $answers[$i] = $a.ended, nil",
		Do: "answers[i] = nil", Test: "TestEnded"},
	{Rule: "unless a shard would be lost with it", In: "Manager.worst", At: "$err == nil && $*lost",
		Do: "$err == nil && next != nil", Test: "TestEnded"},
	{Rule: "its node is expelled at once", In: "Manager.Hung", At: "$m.ended[$n] != \"\"", Do: "false",
		Test: "TestEnded"},
	{Rule: "an event says why", In: "Manager.named", At: "if $why, $ok := $m.ended[$n]; $ok { $*body }", Do: "_ = n",
		Test: "TestEnded"},
	{Rule: "a manager that stood still asks again", In: "Manager.Hung", At: "$s.asked >= leastAsked && $*long",
		Do: "now-s.since >= m.o.Hung || s.asked > 0 && now < 0", Test: "TestHung"},
	{Rule: "spares become members", In: "Manager.Restore", At: "$m.store($next, $*why)",
		Do: "map[*shards.Config]error{}[next]"},
	{Rule: "requests to a manager are dropped", In: "Manager.ask", At: "$m.dropRequests()"},
	{Rule: "loads are of a period", In: "Manager.count",
		At: "$now.Requests - $was.Requests", Do: "now.Requests", Test: "TestCounted"},
	{Rule: "and of one server", In: "Manager.count",
		At: "$m.counted[$l.Shard].node != $now.node", Do: "false", Test: "TestCounted"},
	{Rule: "which is the primary", In: "Manager.count",
		At: "$m.c.Shards[$l.Shard].Primary != $node", Do: "false", Test: "TestCounted"},
	{Rule: "and counted all the time", In: "Manager.count",
		At: "$was.Requests <= $now.Requests && $was.Writes <= $now.Writes", Do: "true", Test: "TestCounted"},
	{Rule: "an answer fits into the mailbox", In: "answer.encode",
		At: "min(len($a.Loads), maxLoads)", Do: "len(a.Loads)", Test: "TestLongAnswer"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{
		Test: "TestManager", Env: []string{"FARKV_SEED=1", "FARKV_SEEDS=300"}, Vain: regexp.MustCompile(`panic: `),
	}.Run(t, mutants)
}
