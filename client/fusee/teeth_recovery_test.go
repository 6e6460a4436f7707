package fusee

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// recoveryMutants break the rules of recovery, here and in the keeper that calls for it. Crashes at
// every verb must show it.
var recoveryMutants = []teeth.Mutant{
	// Mending after a node's death (FUSEE 5.2).
	{Rule: "what all backups hold was decided", Pkg: "snapshot", In: "Choose",
		At: "if $same { return $others[0], true }", Do: "if $same && len($others) > 99 { return $others[0], true }",
		Test: "TestEnumerate/3_replicas"},
	{Rule: "an INSERT that no client committed gives way to the master", Pkg: "snapshot", In: "Choose",
		At: "!$w.IsPending()", Do: "len(words) > 0", Test: "TestEnumerate/3_replicas"},
	{Rule: "the master makes all replicas of a slot equal", Pkg: "recovery", In: "Recoverer.mendSlots",
		At: "$words[$r] != $chosen", Do: "$words[$r] != $chosen && $r > 1", Test: "TestEnumerate/3_replicas"},
	{Rule: "a spare gets the index", Pkg: "recovery", In: "Recoverer.Restore",
		At: "if $err := $m.$copySubtable($sub, $spare, $i); $err != nil { $*body }", Nth: "1/2",
		Do: "if $err := error(nil); $err != nil && $i < 0 { $*body }", Test: "TestEnumerate/2_replicas"},
	{Rule: "a spare gets the pairs", Pkg: "recovery", In: "Recoverer.Restore",
		At: "if $err := $m.$copyRegion($g, $spare, $i); $err != nil { $*body }", Nth: "2/2",
		Do: "if $err := error(nil); $err != nil && $i < 0 { $*body }", Test: "TestEnumerate/2_replicas"},
	{Rule: "a write that was undone is done again", In: "writer.outcome",
		At: "return $lost, $wr.again($w, $op)", Do: "return won, nil", Test: "TestEnumerate/3_replicas"},
	{Rule: "an UPDATE that is undone in its own view says nothing of verbs in flight", In: "Client.modify",
		At: "errors.Is($err, errUndone)", Do: "false", Test: "TestUndoneUpdateLandsNothing"},
	{Rule: "a view has changed, too, where the client could not catch up with it at once", In: "follower.settled",
		At: "!$f.$behind", Do: "true", Test: "TestCutOffTwice"},
	{Rule: "verbs of earlier epochs are fenced off", Pkg: "../../node/cluster", In: "keeper.barrier",
		At: "$k.$f.Fence($to.$Epoch)", Do: "error(nil)", Test: "TestEnumerate/3_replicas"},
	// Recovery of a client (FUSEE 5.3).
	{Rule: "a dead client's writes are finished", Pkg: "recovery", In: "recovery.lookUp",
		At: "$r.$unfinished($views[$i])", Do: "nil", Test: "TestEnumerate/2_replicas"},
	{Rule: "what a slot points at is not free", Pkg: "recovery", In: "recovery.judge",
		At:   "!$pointed && ($r.$unclean || $o.$inc != 0 && $o.$mark != uint64($o.$inc))",
		Do:   "($r.$unclean || $o.$inc != 0 && $o.$mark != uint64($o.$inc))",
		Test: "TestEnumerate/2_replicas"},
	{Rule: "what a slot still points at was not replaced", Pkg: "recovery", In: "recovery.judge",
		At:   "($o.$mine || $r.$unclean) && $o.$replaced.Live() && !$oldPointed",
		Do:   "($o.$mine || $r.$unclean) && $o.$replaced.Live()",
		Test: "TestEnumerate/2_replicas"},
	{Rule: "a dead client's blocks are passed on", Pkg: "recovery", In: "recovery.passAll",
		At: "$err := $r.$t.$PassOn($some)", Do: "$err := error(nil)", Test: "TestEnumerate/1_replicas"},
	{Rule: "a pending word is not finished but gives way", Pkg: "recovery", In: "rounds.finishOnce",
		At: "target.IsPending()", Do: "target.IsPending() && len(list) > 99", Test: "TestEnumerate/2_replicas"},
	{Rule: "the primary is changed, too", Pkg: "recovery", In: "rounds.finishOnce",
		At: "$ok, $err := $r.$cas($s, $words, 0, $target)", Do: "$ok, $err := true, error(nil)",
		Test: "TestEnumerate/2_replicas"},
	{Rule: "what crashes leak is swept", Pkg: "recovery", In: "Recoverer.Sweep",
		At:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$forgetAdopted, $r.$markLost, $r.$hintFree}",
		Do:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$forgetAdopted, $r.$hintFree}",
		Test: "TestEnumerate/2_replicas", Seed: 4},
	// What recovery knows and leaves (package recovery).
	{Rule: "a write's first trip journals it", In: "draft.write", At: "$b.WriteWord($*args)",
		Test: "TestEnumerate/2_replicas"},
	{Rule: "recovery reads the journals on all nodes", Pkg: "recovery", In: "Recoverer.journalOf",
		At: "$m.$s.Holders", Do: "$m.$s.Holders[:1]", Test: "TestRecoveryIsRepeated"},
	{Rule: "an unresolved write keeps its journal word", In: "unresolvedWrites.freeWord",
		At: "held |= 1 << $w.$journal", Do: "held |= 0 << $w.Journal", Test: "TestUnresolvedKeepsItsJournalWord"},
	{Rule: "a client finds out whether the verbs of unresolved writes have landed", In: "unresolvedWrites.landWrites",
		At: "$u.landed()", Do: "_ = $u", Test: "TestUnresolvedWritesAreLanded"},
	{Rule: "what unresolved writes keep is looked for before the pool is full for a DELETE", In: "Client.begin",
		At: "$c.unresolved.settle($*args)", Test: "TestFullPoolBlip"},
	{Rule: "an object that was written is not kept for a READ that was given up", In: "Client.abandon",
		At: "errors.Is($err, errSilent)", Do: "false", Test: "TestFullPoolBlip"},
	{Rule: "an allocation is undone for which a backup has no memory", Pkg: "memory", In: "Tables.Complete",
		At: "!errors.Is($err, rdma.ErrFull)", Do: "!errors.Is($err, rdma.ErrClosed)",
		Test: "TestRefusedBlockGoesBack/recover"},
	{Rule: "a block of a node stays the node's where a backup has no memory for it", Pkg: "memory",
		In: "Tables.Complete", At: "$e.Owner() == node.$OfNode", Do: "false", Test: "TestRefusedNodeBlock"},
	{Rule: "a client does not use a block that it has given back", Pkg: "memory", In: "Allocator.takeOver",
		At: "$blk.$Entry != 0", Do: "true", Test: "TestRefusedTakeOver"},
	{Rule: "a node is not told twice that an object is free", Pkg: "recovery", In: "recovery.markCopies",
		At: "$central && $h.Free()", Do: "central && replica < 0", Test: "TestHandedOutOnce"},
	{Rule: "an object that a node hands out is marked and hinted at together", Pkg: "recovery",
		In: "recovery.markCopies", At: "$r.t.AddHint($*args)", Do: "_ = class", Test: "TestHandedOutAgain"},
	{Rule: "no client adopts a block that is not clean", Pkg: "recovery", In: "recovery.passAll",
		At: "$class |= layout.$Unclean", Do: "$class |= 0", Test: "TestUncleanBlocks"},
	{Rule: "what the logs of unclean blocks tell was replaced is freed", Pkg: "recovery", In: "recovery.clean",
		At:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$freeOlds, $r.$markAll}",
		Do:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$markAll}",
		Test: "TestUncleanBlocks"},
	{Rule: "the log is told what the master replaces", Pkg: "recovery", In: "rounds.logReplaced",
		At: "$b.Write($*args)", Do: "_ = c", Test: "TestRecoveryIsRepeated"},
	{Rule: "what lies in unclean blocks and no slot points at is freed", Pkg: "recovery", In: "recovery.clean",
		At:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$freeOlds, $r.$markAll}",
		Do:   "[]func() error{$r.$traverse, $r.$requests, $r.$rest, $r.$freeOlds}",
		Test: "TestSalvage"},
	{Rule: "a master sweeps what an earlier one left", Pkg: "../../node/cluster", In: "keeper.unswept",
		At: "!$ok || $k.$asked || $k.resting(target{})", Do: "!$ok || $k.$asked || k.role.Owner != 0",
		Test: "TestSweepGoesOn"},
	{Rule: "a piece of a sweep that failed is swept again", Pkg: "recovery", In: "Recoverer.Sweep",
		At: "$m.sweep.again = true", Nth: "1/2", Do: "$m.sweep.again = false", Test: "TestFailedPieceIsSweptAgain"},
	{Rule: "a sweep is not over where its last piece failed", Pkg: "recovery", In: "Recoverer.Unswept",
		At: "$m.sweep.from > 0 || $m.sweep.again || $m.sweep.cut", Do: "$m.sweep.from > 0 || $m.sweep.again",
		Test: "TestFailedPieceIsSweptAgain"},
	{Rule: "a dead client is fenced off before it is recovered", Pkg: "../../node/cluster",
		In: "keeper.recoverClient", At: "$k.$f.RevokeLife($c)", Do: "error(nil)", Test: "TestEnumerate/3_replicas"},
}

func TestRecoveryMutants(t *testing.T) {
	suite := protocolSuite
	suite.Env = []string{"FARKV_SEEDS=20"} // each tries every verb
	suite.Run(t, recoveryMutants)
}
