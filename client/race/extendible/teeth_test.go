package extendible

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each. The histories must notice, over enough seeds, or the test that is
// named.
var mutants = []teeth.Mutant{
	// Looks.
	{Rule: "a client looks behind the CAS of a slot", In: "Store.replace",
		At: "$out, $at, $err = $s.behind($a)", Do: "out, at = done, a"},
	{Rule: "a client looks behind the READ of buckets", In: "Store.findOnce",
		At: "if $v := $s.directory.judge($*how); $v != valid { $*again }", Do: "look.Expect = 0"},
	{Rule: "an INSERT looks behind its proposal", In: "Store.rivals",
		At: "$s.directory.judge($*how) != valid", Do: "look == nil"},
	{Rule: "nothing is taken that a rehash may be moving", In: "directory.judge",
		At: "$held && $s.moves($hash)", Do: "held && s.moves(hash) && s.depth < 0"},
	{Rule: "a look tells that a subtable was split", In: "directory.judge",
		At: "$version != $s.version", Do: "version != s.version && s.depth < 0"},
	{Rule: "a slot is asked again while its node is out of reach", In: "Store.change",
		At: "if $now, $failed = $s.readSlot($a); $failed != nil { continue }",
		Do: "if now, failed = s.readSlot(a); failed != nil { break }", Test: "TestAwayForLonger"},
	// Behind a rehash.
	{Rule: "an UPDATE that was not copied is done again", In: "Store.update",
		At: "$at.word != $a.word", Do: "at.word != 1"},
	{Rule: "an UPDATE that was copied is not done again", In: "Store.update",
		At: "$at.word != $a.word", Do: "at.word == 1"},
	{Rule: "a DELETE that was not copied is done again", In: "Store.delete",
		At: "$at.word == $o.word", Do: "true"},
	{Rule: "a DELETE that was copied is not done again", In: "Store.delete",
		At: "$at.word == $o.word", Do: "false"},
	{Rule: "a proposal that was copied is not live yet", In: "Store.decide",
		At: "$at.word != $o.word.as(proposed) && $*void", Do: "at.word != o.word.as(void)"},
	{Rule: "a proposal that was ended is not live", In: "Store.decide",
		At: "$*proposed && $at.word != $o.word.as(void)", Do: "at.word != o.word.as(proposed)", Seed: 7089},
	{Rule: "a pair that became live before a rehash is not inserted again", In: "Store.decide",
		At: "$at.word != $o.word.as(proposed) && $*void", Do: "at.word == 0 && at.slot < 0"},
	// INSERTs.
	{Rule: "readers do not see proposals", In: "word.is",
		At: "$w.kind() == $k", Do: "(w.kind() == k || k == live && w.kind() == proposed)"},
	{Rule: "an INSERT looks for others behind its proposal", In: "Store.decide",
		At: "$state, $err := $s.rivals(&$a)", Do: "state, err := alone, error(nil)"},
	{Rule: "an INSERT sees other proposals", In: "Store.competes",
		At: "$*live || $w.word.is(proposed, $*hash)", Do: "w.word.is(live, s.op.hash)"},
	{Rule: "an INSERT sees pairs behind its proposal", In: "Store.competes",
		At: "$w.word.is(live, $*hash) || $*proposed", Do: "w.word.is(proposed, s.op.hash)"},
	{Rule: "leases of proposals begin together", In: "Store.compete",
		At: "$f = behindRival", Do: "return behindRival, nil", Test: "TestDeadProposals"},
	{Rule: "the lease of a proposal begins while no slot is empty", In: "Store.passing",
		At: "$s.lapsed($i, word($w))", Do: "(i < 0)", Test: "TestDeadProposals"},
	{Rule: "an INSERT ends other proposals before its own is live", In: "Store.compete",
		At: "$err != nil || !$ok", Do: "err != nil || !ok && w.slot < 0"},
	// Rehashes.
	{Rule: "a rehash locks the subtable before it reads it", In: "entries.split",
		At: "if $err := $tx.Lock($root); $err != nil { $*fail }", Do: ""},
	{Rule: "a rehash takes proposals and void words along", In: "rehash.survey",
		At: "$r.$from.moves($hash)", Do: "r.from.moves(hash) && w.word.kind() == live"},
	{Rule: "a rehash takes along only what moves", In: "rehash.survey",
		At: "case $r.$from.moves($hash):", Do: "default:"},
	{Rule: "a subtable that another client has split is not split again", In: "entries.split",
		At: "$err != nil || int($*depth) != $from.depth", Do: "err != nil || len(data) == 0"},
	{Rule: "the original moves before others may go on", In: "locks.finish",
		At: "if $err := $r.move(); $err != nil { $*fail }", Do: "defer r.move()", Test: "TestExplore/race"},
	{Rule: "the master ends a rehash of the original", In: "locks.end",
		At: "$child.locked() && $child.holder() == $c && $*deeper", Do: "child.place() == 0", Test: "TestExplore/race"},
	{Rule: "a client that loses a rehash takes no memory", In: "entries.split",
		At: "$data, $err := $tx.Read($root)", Do: "r.take(); data, err := tx.Read(root)", Test: "TestLostRehash"},
	{Rule: "a lock for which there is no memory is released", In: "locks.split",
		At: "$k.unfinished = $freed != nil", Do: "_ = freed", Test: "TestNoMemoryUnderLock"},
	{Rule: "memory that an entry may name holds no other subtable", In: "locks.split",
		At: "$err != nil && $k.unfinished", Do: "false", Test: "TestMemoryOfFailedRehash"},
	{Rule: "an INSERT says that it has left a rehash", In: "Store.makeRoom",
		At: "return fmt.Errorf(\"split a subtable: %w\", $err)", Do: "return errTime", Test: "TestUnfinishedRehash"},
	{Rule: "a GET ends the rehash that its worker has left", In: "locks.await",
		At: "$err == nil && $e.holder() == $k.s.id", Do: "false", Test: "TestUnfinishedRehash"},
	{Rule: "what an operation spends on a rehash that it cannot end counts", In: "locks.settle",
		At: "$k.s.trips.Budget = $spent", Do: "_ = spent; k.s.trips.Begin()", Test: "TestRehashOfDeadNode"},
	// Memory.
	{Rule: "a use of a block has a tag of its own", In: "memory.replaced",
		At: "$m.tag($w) + 1", Do: "m.tag(w)"},
	{Rule: "a scan finds that a slot names a block", In: "memory.isFree",
		At: "word($w).kind() == live", Do: "word(w).kind() == live && x.number == 0"},
	{Rule: "a scan finds that a slot names a block which the worker has put there", In: "memory.isFree",
		At: "$w.empty() || $s.block($w) != $x.number", Do: "w.empty() || m.block(w) > 0"},
	{Rule: "a scan looks behind the slots", In: "memory.isFree",
		At: "$s.directory.judge($*how) != valid", Do: "x.look == nil"},
	{Rule: "no chunk is given back while a CAS may make a slot name a block of it", In: "Store.update",
		At: "if errors.Is($err, client.ErrUncertain) { $*keep }", Do: "", Test: "TestLateUpdate"},
	{Rule: "a client that a node may give a chunk to does not leave", In: "Store.leave",
		At: "if $s.$memory.$table.Late { $*fail }", Test: "TestFailedCallUnderLock"},
	{Rule: "a pair is the one that its slot names", In: "decodePair",
		At: "$at != $w.as(live) || $*long", Do: "at == 0 || pairBytes(key, value) > len(p)"},
	{Rule: "a pair is whole", In: "decodePair",
		At: "le.Uint64($whole) == xxhash.Sum64($*what)", Do: "len(p) > 0", Test: "TestTornPair"},
	{Rule: "a DELETE waits until its last void word is gone", In: "Store.awaitRemoval",
		At: "if $gone { $*done }", Do: "_ = gone; return nil", Test: "TestDeleteRecord"},
	{Rule: "recovery takes all proposals away", In: "memory.isFree",
		At: "if $thorough { $*clear }", Do: "", Test: "TestRecoverUnderRehash"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Test: "TestExplore/alone", Env: []string{"FARKV_SEEDS=20000"}}.Run(t, mutants)
}
