package rtx

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The histories must notice, over enough seeds, or the test that is
// named.
var mutants = []teeth.Mutant{
	// Words.
	{Rule: "a sequence is used once", In: "Tx.number",
		At: "$n := $tx.$w.$numbers.Used() + 1", Do: "$n := max($tx.$w.$numbers.Used(), 1)"},
	{Rule: "an identity begins above its last holder's sequences", In: "Open",
		At: "$w.$numbers, $err = kit.OpenNumbers($*how)", Do: "$w.$numbers, $err = kit.OpenNumbers($w.ceiling(0), 0)"},
	{Rule: "a released lock differs from what it was before", In: "Lock.released",
		At: "$lockNamed | $lockWanted", Do: "$lockNamed&^0xff | $lockWanted"},
	{Rule: "a use of a buffer has a tag of its own", In: "memory.nextUse",
		At: "$m.$w.tag($p)+1", Do: "$m.$w.tag($p)"},
	// Reads.
	{Rule: "data is what its pointer names", In: "Layout.Decode",
		At: "Pointer(le.Uint64($p[8:])) != $by.use() || $*long", Do: "$*long"},
	{Rule: "data is whole", In: "Layout.Decode",
		At: "le.Uint64($p) == xxhash.Sum64($*what)", Do: "true", Test: "TestTornData"},
	{Rule: "a read waits for a lock", In: "Tx.readMeta",
		At: "!$o.$seen.Lock.Held()", Do: "true"},
	{Rule: "what was read before is looked at again", In: "Tx.judge",
		At: "$now == $o.expected()", Do: "of != nil || now == o.expected()"},
	{Rule: "a lock that was taken early is looked at again", In: "object.stays",
		At: "(!$o.$relaxed || $o.$lock != 0)", Do: "!o.relaxed && o.lock == 0", Test: "TestLostLock"},
	{Rule: "an object of another life is not there", In: "object.take",
		At: "$o.$there = $r == $o.$ref", Do: "$o.$there = $r != 0", Test: "TestLives"},
	{Rule: "what is read side by side is looked at again, too", In: "Worker.judgeEach",
		At: "$e.$known && $now == $e.$seen", Do: "e.known", Test: "TestEach"},
	{Rule: "what is read side by side waits for a lock, and repairs", In: "Worker.readEach",
		At: "if !$e.$seen.Lock.readable() { $blocked = $refs[$i] }", Do: "", Test: "TestEach"},
	{Rule: "what has a log is not read while it is locked", In: "Lock.readable",
		At: "$k.Alone()", Do: "k.Held()", Test: "TestEach"},
	{Rule: "a lock's pointer is of the moment of the lock", In: "Tx.lockAndRead",
		At: "$now != $o.$seen.Pointer", Do: "false", Test: "TestTornMeta"},
	// Commits.
	{Rule: "what was read is validated", In: "Tx.commitLogged",
		At: "if $err := $tx.validate(); $err != nil { $*fail }", Test: "TestLostLock"},
	{Rule: "what was read is validated without a log, too", In: "Tx.commitAlone",
		At: "if $err := $tx.validate(); $err != nil { $*fail }", Test: "TestLostLock"},
	{Rule: "all is validated behind the locks", In: "Tx.noteLocks",
		At: "$_ = $tx.conflict($o, $*held)", Do: ""},
	{Rule: "a commit is decided by its log", In: "Tx.move",
		At: "$before.sequence() >= $tx.$sequence", Do: "before.sequence() > tx.sequence"},
	{Rule: "a lease is renewed by a word that differs", In: "Tx.Renew",
		At: "state.takenOver", Do: "func(s state) state { return s }", Test: "TestRenew"},
	{Rule: "pointers are swapped before locks are released", In: "Tx.finish",
		At: "if $err := $w.swapPointers($w.$record.$entries); $err != nil { $*fail }",
		Do: "defer w.swapPointers(w.record.entries)"},
	{Rule: "a stolen pointer is swapped again", In: "repairer.swapPointers",
		At: "$entries[$i].$old, $stolen = $now, true", Do: "", Test: "TestLateSteal"},
	{Rule: "OPT1 is decided by the pointer", In: "Tx.commitAlone",
		At: "!$cas.Swapped()", Do: "cas == nil"},
	{Rule: "OPT1 does not hide a log", In: "Tx.commit",
		At: "$tx.$writes == 1 && !$tx.$w.$opt.Log", Do: "tx.writes <= 2 && !tx.w.opt.Log"},
	{Rule: "data without a log is written before it is named", In: "Tx.commitAlone",
		At: "$w.buffer($o.$item.$use).Node() != $o.$at.Node() || $tx.validates()", Do: "tx.validates()",
		Test: "TestDataElsewhere"},
	{Rule: "data comes into a buffer that nothing names", In: "Tx.settled",
		At: "$committed && $o.$change != $unchanged",
		Do: "o.change != unchanged && (committed || o.item.chunk != nil)"},
	{Rule: "what a callback has allowed is of one moment with the rest", In: "Tx.validate",
		At: "$err != nil || !$asked", Do: "err != nil || !asked || asked", Test: "TestAskedOfOneMoment"},
	// Repairs.
	{Rule: "a lock is suspected when it stayed as it is", In: "watch.see",
		At: "$v.$at != $at || $v.$lock != $k || $v.$state != $s", Do: "v.at != at", Test: "TestBusyLock"},
	{Rule: "a clock that is set does not make a lease shorter", In: "watch.see",
		At: "min(max($now-$v.$last, 0), $lease/$gapShares)", Do: "max(now-v.last, 0)", Test: "TestClocks"},
	{Rule: "a clock that is set back does not make a lease longer", In: "watch.see",
		At: "max($now-$v.$last, 0)", Do: "(now - v.last)", Test: "TestClocks"},
	{Rule: "INIT is aborted before its lock is released", In: "repairer.repair",
		At: "$s.sequence() < $sequence", Do: "s.sequence() < sequence && m.Lock.Alone()"},
	{Rule: "a transaction that was aborted has its locks released", In: "state.over",
		At: "$s.sequence() == $sequence && $s.phase() != $phaseDoing", Do: "false", Test: "TestLateLock"},
	{Rule: "DOING is finished, and not released", In: "state.over",
		At: "$s.phase() != $phaseDoing", Do: "true"},
	{Rule: "OPT1's pointer changes before its lock is released", In: "repairer.steal",
		At: "$_, $ok, $err := $w.trips.Swap($stepSteal, $*at, uint64($*old), uint64($p))",
		Do: "$ok, $err := $p != 0, error(nil)", Test: "TestLostLock"},
	{Rule: "OPT1's lock of a living client is stolen", In: "repairer.repair",
		At: "case $current && $s.phase() == $phaseAbort && $m.Lock.Alone():", Do: "case false:", Test: "TestLostLock"},
	{Rule: "all locks of a dead client's transaction are released behind one lease", In: "repairer.repair",
		At: "$s.sequence() < $sequence", Do: "s.sequence() < sequence && !m.Lock.Alone()",
		Test: "TestEarlyLocksOfTheDead"},
	{Rule: "a log is of the transaction that its word names", In: "repairer.readLog",
		At: "$r.sequence($*lock) == $s.sequence()", Do: "true", Test: "TestLogOfAnother"},
	{Rule: "a log is whole", In: "record.decode",
		At: "$n == 0 || le.Uint64($p) != xxhash.Sum64($p[8:])", Do: "$n == 0", Test: "TestTornLog"},
	{Rule: "one of several repairs finishes a commit", In: "repairer.takeOver",
		At: "$_, $first, $err := $w.trips.Swap($*how); if $err != nil || !$first { $*fail }", Do: "",
		Test: "TestOneRepair"},
	// Locks that are wanted.
	{Rule: "a lock that is wanted passes to a transaction that is late", In: "Worker.mayLock",
		At: "!$k.Wanted() || $w.late()", Do: "true", Test: "TestWanted"},
	{Rule: "a lock that is wanted is not kept for long", In: "Worker.mayLock",
		At: "$v.$still >= $w.lapse()", Do: "v.still < 0", Test: "TestWanted"},
	{Rule: "a lock stays wanted when it is released", In: "Lock.released",
		At: "$lockNamed | $lockWanted", Do: "$lockNamed", Test: "TestWanted"},
	{Rule: "a holder releases a lock that is wanted", In: "Worker.releaseWanted",
		At: "$op.Err == nil && Lock($op.Expect).became($now)", Do: "now == 0", Test: "TestWanted"},
	{Rule: "a lock that becomes wanted is its holder's as before", In: "Tx.judge",
		At: "$o.$lock.became($now.Lock)", Do: "false", Test: "TestWanted"},
	{Rule: "a lock that was taken early gets a log though it is wanted", In: "Tx.noteLocks",
		At: "$o.$lock.became(Lock($cas.Result))", Do: "false", Test: "TestWanted"},
	{Rule: "a lock is wanted by a transaction that is late", In: "Worker.await",
		At: "$lock && !$m.Lock.Wanted() && $w.late()", Do: "false", Test: "TestLate"},
	{Rule: "a pointer that was seen with its lock may be of before", In: "watch.moved",
		At: "$v.$looks == 2", Do: "$v.$looks == 1", Test: "TestMoved"},
	{Rule: "a lock with no log whose pointer moved is released on sight", In: "Worker.await",
		At: "$m.Lock.Alone() && $w.$watch.moved($m.Pointer)", Do: "false", Test: "TestReleasedByOthers"},
	// Recovery and memory.
	{Rule: "a recovery finishes a commit", In: "Worker.survey",
		At: "$e.$state.phase() == $phaseDoing", Do: "false"},
	{Rule: "behind a recovery all of a client's transactions are over", In: "Worker.endAll",
		At: "max($e.$used, $e.$state.sequence())", Do: "e.state.sequence()", Test: "TestRecovered"},
	{Rule: "a later holder of an identity is not recovered", In: "Worker.recover",
		At: "$err != nil || !$meant", Do: "$err != nil && !$meant", Test: "TestTwoRecoveries"},
	{Rule: "a client is fenced off before it is recovered", In: "Worker.Adopt",
		At: "if $err := $f.RevokeLife($c); $err != nil { $*fail }", Test: "TestFenced"},
	{Rule: "a dead client's chunks are given back", In: "Worker.recover",
		At: "$w.freeChunks($e.$chunks)", Do: "nil"},
	{Rule: "a buffer is free that its object does not name", In: "memory.freeAtOnce",
		At: "$now&$pointerDead == 0 && $w.unit($now) == $unit",
		Do: "now&pointerDead == 0 && w.tag(now) == 0 && w.unit(now) == unit"},
	{Rule: "a buffer of a freed object is free", In: "memory.freeAtOnce",
		At: "$now&$pointerDead == 0 && $w.unit($now) == $unit", Do: "w.unit(now) == unit", Test: "TestReshape"},
	{Rule: "a chunk keeps its size in which something is", In: "memory.reshape",
		At: "!$empty || $tag > $w.maxTag/2", Do: "!empty && tag > w.maxTag/2", Test: "TestReshape"},
	{Rule: "tags go on in a chunk that gets another size", In: "memory.stamp",
		At: "$w.pointer($class, $tag, $*where)", Do: "w.pointer(class, 0, w.unitOf(c.Node, c.Index, class, i))",
		Test: "TestReshape"},
	{Rule: "headers are written before a chunk has another size", In: "memory.reshape",
		At: "if $err := $m.stamp($c, $class, $tag); $err != nil { $*fail }", Do: "", Test: "TestReshape"},
	{Rule: "a pool in which the worker has freed something is not full", In: "memory.freed",
		At: "$m.$full[len($m.$w.$Sizes)] = 0", Do: "", Test: "TestFreedInAFullPool"},
	{Rule: "a look at a full pool is one walk", In: "memory.refill",
		At: "$e != tryOthers", Do: "e == tryOwn", Test: "TestOneWalk"},
	{Rule: "a buffer in a transaction is no other's", In: "item.taken",
		At: "$it.$chunk.Take($it.$i)", Do: "$it.$chunk.Take($it.$i); $it.$chunk.Items[$it.$i] = 0"},
}

// suite is that of the histories, over more seeds.
var suite = teeth.Suite{Test: "TestSerializable", Env: []string{"FARKV_SEEDS=4000"}, Seen: caught}

// caught is what a test says when it has seen a wrong answer.
var caught = regexp.MustCompile(`not serializable|lost update|half a transaction|no such object|` +
	`with word|one finished|commits, and|behind a view|before "|{Commits:|lost: |leaked|` +
	`all accounts have|is not there|damaged|` +
	`took effect, and|an operation (took|waited)|worker panicked|stuck|timed out|_test.go:\d+: (got|want|` +
	`a |an |the |no )|write to a word`)

func TestMutants(t *testing.T) { suite.Run(t, mutants) }
