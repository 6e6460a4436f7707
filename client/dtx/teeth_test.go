package dtx

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The histories must notice, over enough seeds, or the test that is
// named.
var mutants = []teeth.Mutant{
	// Words and bodies.
	{Rule: "a sequence is used once", In: "Worker.number",
		At: "$n := $w.$numbers.Used() + 1", Do: "$n := max($w.$numbers.Used(), 1)"},
	{Rule: "an identity begins above its last holder's sequences", In: "Open",
		At: "$w.$numbers, $err = kit.OpenNumbers($*how)", Do: "$w.$numbers, $err = kit.OpenNumbers($w.ceiling(0), 0)"},
	{Rule: "data is that of the lock's version", In: "decode",
		At: "$o.$version != $v || $*long", Do: "$*long", Test: "TestTornData"},
	{Rule: "data is whole", In: "decode",
		At: "le.Uint64($p[$checksumAt:]) == xxhash.Sum64($*what)", Do: "true", Test: "TestTornData"},
	{Rule: "a log is whole", In: "openRecord",
		At: "le.Uint64($p) != xxhash.Sum64($*what)", Do: "false", Test: "TestTornLog"},
	{Rule: "an object of another life is not there", In: "body.is",
		At: "$o.$life == $r.life()", Do: "true", Test: "TestLives"},
	// Reads.
	{Rule: "a read waits for a lock", In: "Tx.readOnce",
		At: "if $now = Version($op.Word(0)); $now.Held() { $*wait }", Do: "$now = Version($op.Word(2))"},
	{Rule: "what was read before is looked at again", In: "Tx.load",
		At: "$err == nil && !$valid", Do: "err != nil && !valid", Test: "TestOpacity"},
	{Rule: "only a guess that is right saves a trip", In: "Tx.readOnce",
		At: "!$guessed || $now != $known", Do: "!guessed", Test: "TestLateRead"},
	{Rule: "an object that changed is a conflict", In: "Tx.judge",
		At: "$now == $o.$seen", Do: "of != nil || now == o.seen"},
	{Rule: "an object by itself is waited for when it is locked", In: "Worker.readEach",
		At: "$now.Held()", Do: "false", Test: "TestEach"},
	{Rule: "transactions share the time of a span", In: "Worker.begin",
		At: "!$w.$shared", Do: "w != nil", Test: "TestSpan"},
	{Rule: "a lock of a client that is not there is damage", In: "audit.object",
		At: "$a.there($lock.owner())", Do: "lock.Held()", Test: "TestLooks"},
	{Rule: "a closure is asked about what changed", In: "Tx.ask",
		At: "!$o.same($next.$data)", Do: "false", Test: "TestReadIf"},
	// Commits.
	{Rule: "what was read is validated", In: "Tx.prepare",
		At: "$tx.validate(($*object).stays, nil)", Do: "error(nil)"},
	{Rule: "all is validated behind the locks", In: "Tx.lockAll",
		At: "$_ = $tx.conflict($o.$ref, $*held)", Do: ""},
	{Rule: "the log is complete before a body is written", In: "Tx.writeLog",
		At: "$err := $w.trips.Do($stepLog, $b)", Do: "$err := $w.ep.Post($b.As($stepLog))"},
	{Rule: "a log has what is written", In: "Tx.writeLog",
		At: "$r.seal($lock)", Do: ""},
	{Rule: "a lock is released behind its body", In: "Worker.addBody",
		At: "$b.Write($*what); $b.CompareSwap($*swap)", Do: "$b.CompareSwap($*swap); $b.Write($*what)"},
	{Rule: "an abort leaves the version that was there", In: "Tx.abort",
		At: "$op := $b.CompareSwap($o.$at, uint64($o.$lock), uint64($o.$seen))",
		Do: "$op := $b.CompareSwap($o.$at, uint64($o.$lock), uint64($o.$lock.written()))"},
	{Rule: "early locks are released with the rest", In: "Tx.apply",
		At: "$o.$lock != 0 && $o.$change == $unchanged", Do: "o.lock != 0 && o.change == freed"},
	{Rule: "a release that failed is done again", In: "Worker.land",
		At: "if $b.Step() == $stepLetGo { $*again }", Do: "", Test: "TestStale"},
	{Rule: "a log that may be written is looked for", In: "Worker.resolve",
		At: "$whole && $lock == $p.$lock", Do: "$whole && $lock == 0", Test: "TestLostOutcome"},
	// Recovery.
	{Rule: "a lock is released on sight only if its transaction is over", In: "Worker.await",
		At: "$ended >= $v.sequence()", Do: "ended+1<<20 >= $v.sequence()"},
	{Rule: "a lock of a transaction that is over becomes the version of the data", In: "Worker.free",
		At: "$op.Word(0)", Do: "$op.Word(0)&0 + uint64(v.written())", Test: "TestLateLock"},
	{Rule: "a recovery replays a log", In: "Worker.recoverClaimed",
		At: "$e.$entries != nil", Do: "false"},
	{Rule: "a replay writes where the transaction has the lock only", In: "Worker.replay",
		At: "$op.Err == nil && Version($op.Word(0)) == $lock", Do: "op.Err == nil"},
	{Rule: "a log is of the client that is recovered, and not over", In: "Worker.survey",
		At: "$lock.sequence() > $e.$ended", Do: "lock.sequence() > e.ended+1<<40", Test: "TestRecovered"},
	{Rule: "one recovers a client at a time", In: "Worker.claim",
		At: "$ended < $now.sequence()", Do: "ended > 1<<60", Test: "TestReplayOnce"},
	{Rule: "a claim of a client that was recovered is free", In: "Worker.claim",
		At: "$ended < $now.sequence()", Do: "ended < 1<<60", Test: "TestDeadMaster"},
	{Rule: "a claim is kept while a WRITE under it may land", In: "Worker.recoverClaimed",
		At: "$w.unreplayed[$c] = true", Do: "w.unreplayed[c] = errors.Is(err, rdma.ErrNodeDown)",
		Test: "TestLateReplay"},
	{Rule: "a claim is given back when the verbs under it have landed", In: "Worker.recover",
		At: "if !$w.unreplayed[$c] { $*release }", Do: "", Test: "TestSlowRecovery"},
	{Rule: "a claim that is kept is not released when it is taken again", In: "Worker.claim",
		At: "!$w.unreplayed[$c]", Do: "true", Test: "TestLateReplay"},
	{Rule: "a worker with a claim does not leave", In: "Worker.leave",
		At: "len($w.unreplayed) > 0", Do: "false", Test: "TestLateReplay"},
	{Rule: "a claim is given back", In: "Worker.recover",
		At: "$_, $_, $yielded := $w.trips.Swap($*how)", Do: "var $yielded error; _ = claim"},
	{Rule: "behind a recovery all of a client's transactions are over", In: "Worker.recoverClaimed",
		At: "$end > $e.$ended", Do: "end == 0 && end > e.ended", Test: "TestRecovered"},
	{Rule: "a recovery of its own identity leaves its own claim", In: "Worker.recoverClaimed",
		At: "$end = $claim.sequence() - 1", Do: "end = claim.sequence() + 1<<20", Test: "TestReplayOnce"},
	{Rule: "a later holder of an identity is not recovered", In: "Worker.recoverClaimed",
		At: "$err != nil || !$meant", Do: "$err != nil && !$meant", Test: "TestTwoRecoveries"},
	{Rule: "a client is fenced off before it is recovered", In: "Worker.Adopt",
		At: "if $err := $f.RevokeLife($c); $err != nil { $*fail }", Test: "TestFenced"},
	// Memory.
	{Rule: "a dead client's chunks are given back", In: "Worker.recoverClaimed",
		At: "$w.$memory.$table.Free($*chunks)", Do: "nil"},
	{Rule: "a place is free where nothing is there", In: "memory.scanSome",
		At: "if $head, _ := decodeHead($op.$Buf); $head.$there { $*skip }",
		Do: "if $head, _ := decodeHead($op.$Buf); $head.$there && $head.life%2 == 0 { continue }"},
	{Rule: "workers that do nothing leave half of a pool", In: "memory.refill",
		At: "defer $m.$table.Trim($a)", Do: "", Test: "TestIdle"},
	{Rule: "a worker with its share claims only what it has nowhere", In: "memory.take",
		At: "$m.$table.AtShare($*arena)", Do: "class < 0", Test: "TestOwnFirst"},
	{Rule: "a place in a transaction is no other's", In: "heap.pop",
		At: "$s.$chunk.Take($s.$i)", Do: "$s.$chunk.Take($s.$i); $s.$chunk.Items[$s.$i] = 0", Test: "TestTwoPlaces"},
	{Rule: "a place of a chunk that was given back hides nothing", In: "memory.takeOn",
		At: "if $s, $ok := $h.pop(); $ok { $*take }", Do: "if len(h.slots) > 0 { s, ok := h.pop(); return s, ok, nil }",
		Test: "TestListedOfNoChunk"},
	{Rule: "a pool in which the worker has freed something is not full", In: "memory.freed",
		At: "clear($m.$full[:$r.class()+1])", Do: "", Test: "TestFreedInAFullPool"},
	{Rule: "a client that is overtaken looks as often as a new one", In: "Worker.await",
		At: "v != met", Do: "v != met && met == 0", Test: "TestPassedOn"},
	{Rule: "a late transaction makes no pauses between its attempts", In: "Open",
		At: "kit.Unless($w.late, $pause)", Do: "pause", Test: "TestLateAttempts"},
	{Rule: "a lock on nothing is released by a scan", In: "memory.scanSome",
		At: "$freed, $err := $w.freeSlot($*how)", Do: "$freed, $err := false, error(nil)", Test: "TestLockOnNothing"},
	{Rule: "a client that a node may give a chunk to does not leave", In: "Worker.leave",
		At: "if $w.$memory.$table.Late { $*fail }", Test: "TestLateChunk"},
	{Rule: "a client that closes waits for a node that is out of reach for a moment", In: "Worker.Close",
		At: "$err != nil && $w.rejoin($err)", Do: "false", Test: "TestCloseOutOfReach"},
	{Rule: "the outcome is asked for again while a node is out of reach", In: "Tx.uncertain",
		At: "$w.rejoin($failed)", Do: "failed == err && w.rejoin(failed)", Test: "TestAwayForLonger"},
	{Rule: "a node is waited for also when the view is out of reach", In: "Worker.releasePending",
		At: "errors.Join($err, $joined)", Do: "joined", Test: "TestCloseWithoutView"},
}

// suite is that of the histories, over more seeds.
var suite = teeth.Suite{Test: "TestSerializable", Env: []string{"FARKV_SEEDS=1500"}, Seen: caught}

// caught is what a test says when it has seen a wrong answer.
var caught = regexp.MustCompile(`not serializable|lost update|half a transaction|no such object|` +
	`in the end: |lost: |leaked|all accounts have|is not there|damaged|` +
	`took effect, and|an operation waited|worker panicked|stuck|timed out|_test.go:\d+: (got|want|a |an |` +
	`the |no |guess|allowed|with word|nothing|what|all is|locked|log|client|none: |right: |read |write |` +
	`before |others|leaves|\d+ tries)|write to a word`)

func TestMutants(t *testing.T) { suite.Run(t, mutants) }
