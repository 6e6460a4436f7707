package fusee

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break the rules of the protocol.
var mutants = []teeth.Mutant{
	{Rule: "a loser waits until the winner has changed the primary", In: "writer.awaitWinner",
		At: "$now != $w.$old", Do: "$now != $w.$old || true", Test: "TestContention/2_index"},
	{Rule: "rule 2 and 3 change the other backups first", In: "writer.propose",
		At: "return $win, $c.$fixBackups($*step, $w, $w.$list[:$n])", Do: "return $win, nil",
		Test: "TestContention/5_index"},
	{Rule: "rule 3 takes the least word", In: "writer.evaluate",
		At: "$winner == $w.new", Do: "$winner == $w.new || by == snapshot.Rule3", Test: "TestContention/3_index"},
	{Rule: "rule 3 reads the primary first", In: "writer.evaluate",
		At: "$now != $w.$old", Do: "$now == ^$w.$old", Test: "TestContention/3_index"},
	{Rule: "a minority does not win", In: "writer.evaluate",
		At:   "if !$w.$visible { $*body }",
		Do:   "if $w.$visible { return snapshot.Rule2, nil }; if !$w.$visible { $*body }",
		Test: "TestContention/4_index"},
	{Rule: "exactly half is no majority", Pkg: "snapshot", In: "Winner",
		At: "2*$count > len($list)", Do: "2*$count >= len($list)", Test: "TestContention/5_index"},
	{Rule: "a later round's pending word decides nothing in this one", In: "writer.evaluate",
		At: "$v.IsPending() != $w.$new.IsPending()", Do: "$v.IsPending() != $v.IsPending()", Test: "TestLateProposal"},
	{Rule: "a DELETE that lost begins again", In: "Client.tryReplace",
		At: "$verdict != $lost || $failed != nil || $op == layout.$OpUpdate",
		Do: "true", Test: "TestContention/2_index"},
	{Rule: "a DELETE's word is its own", In: "Client.tryReplace",
		At: "$word, $err = $c.$s.$Tombstone(race.Print($hash))", Do: "$word = race.Word(race.Print($hash)) << 56",
		Test: "TestContention/2_index"},
	{Rule: "an INSERT looks for its duplicates", In: "writer.alone",
		At: "$s == $w.$slot || $word.Print() != race.Print($w.$hash)", Do: "true"},
	{Rule: "the inserter with the lower slot waits for the other", In: "writer.outlast",
		At: "case $f == $noRival:", Do: "case $f == $noRival, $f == rival && s > w.slot:", Seed: 187},
	{Rule: "an INSERT is pending until it has looked", In: "writer.write",
		At: "$w.$new = $w.$new.Pending()", Do: "$w.$new |= 0", Test: "TestContention/1_index"},
	{Rule: "what a slot pointed at is checked by its incarnation", Pkg: "layout", In: "Layout.PairOf",
		At: "$ok && $l.$tag($f.$incarnation) == $w.Tag()", Do: "$ok", Seed: 1157},
	{Rule: "a tag changes when an object is used again", Pkg: "memory", In: "Block.use",
		At: "$b.$incarnations[$i]++", Do: "$b.$incarnations[$i] = 1", Seed: 1157},
	{Rule: "a cached pair is checked by its slot", In: "Client.getCached",
		At: "!$bypass && $now == $word", Do: "!$bypass"},
	{Rule: "a pair lies on all of its replicas before a slot names it", In: "draft.write",
		At: "$at := $c.$space.UnitAt($d.$unit, $r)", Do: "$at := $c.$space.UnitAt($d.$unit, $r*0)",
		Test: "TestReadsBesideDeadNode"},
	{Rule: "a cached slot is read from its primary, even if that is dead", In: "Client.getCached",
		At: "$c.$s.$Index.Address($e.$slot(), 0)",
		Do: "$c.$s.$Index.Address($e.$slot(), 1)", Test: "TestUndecidedIsNotRead"},
	{Rule: "buckets are read from their primary, even if that is dead", In: "Client.find",
		At: "$c.$s.$Index.Read($b, $buckets, 0)",
		Do: "$c.$s.$Index.Read($b, $buckets, 1)", Test: "TestUndecidedIsNotRead"},
	{Rule: "a node that did not answer is asked last", In: "pairs.pairAt",
		At: "!$c.$slow.Any() || $*_", Do: "true", Test: "TestReadsBesideDeadNode"},
	{Rule: "a loser frees only its own object", In: "Client.finishReplace",
		At: "case $won, $overtaken: $c.$mem.$Reclaim.$Free($w.$old, $w.$inc); $*rest; case $lost: $c.$recycle()",
		Do: "case $won, $overtaken: $c.$mem.$Reclaim.$Free($w.$old, $w.$inc); $*rest; " +
			"case $lost: $c.$mem.$Reclaim.$Free($w.$old, $w.$inc); $c.$recycle()",
		Seed: 1243},
	{Rule: "a winner frees what it replaced", In: "Client.finishReplace",
		At: "$c.$mem.$Reclaim.$Free($w.$old, $w.$inc)"},
	{Rule: "a client that leaves marks its free objects", Pkg: "memory", In: "Allocator.leave",
		At: "$a.$Tables.$writeHeads($list, true)", Do: "$a.$Tables.$writeHeads(nil, true)"},
	{Rule: "a client that leaves unmarks what may look free and is not", Pkg: "memory", In: "Allocator.leave",
		At: "$a.$Tables.$writeHeads($list, false)",
		Do: "$a.$Tables.$writeHeads(nil, false)", Test: "TestUnresolvedIsNotAdopted"},
	{Rule: "a client lends what it has above its share", Pkg: "memory", In: "Allocator.lend",
		At: "len($others) <= $r.fair", Do: "len(others) >= 0 || a.fair < 0", Test: "TestLent"},
	{Rule: "a client that lends keeps an object for its DELETEs", Pkg: "memory", In: "Allocator.lend",
		At: "$i != $class && $b != $keep", Do: "i != class && (b != keep || i > 0)", Test: "TestLent"},
	{Rule: "an owner verifies hints by marks", Pkg: "memory", In: "Allocator.taken",
		At: "$*ok && layout.$LE.Uint64($op.$Buf) == uint64($p.$block.$incarnations[$p.$index])", Do: "$*ok",
		Test: "TestDoubleFree"},
	{Rule: "an owner knows which incarnation its object has", Pkg: "memory", In: "Allocator.taken",
		At:   "layout.$LE.Uint64($op.$Buf) == uint64($p.$block.$incarnations[$p.$index])",
		Do:   "layout.$LE.Uint64($op.$Buf) != 0",
		Test: "TestLateFree"},
	{Rule: "a mark carries the incarnation it frees", Pkg: "memory", In: "Reclaim.addFree",
		At: "uint64($f.$incarnation)", Do: "1"},
	{Rule: "the mark lands before the hint", Pkg: "memory", In: "Reclaim.addFree",
		At:   "if $step == 0 { $b.Chain() }; if $*unmarked { $*mark }; if $step == 0 { $*hint }",
		Do:   "if $step == 0 { $*hint; $*mark; return }; if $*unmarked { $*mark }; if $step == 0 { $*hint }",
		Test: "TestMarkBeforeHint"},
	{Rule: "the primary is marked last", Pkg: "memory", In: "Reclaim.addFree",
		At: "$r.$s.$Space.UnitAt($f.$unit, $step)",
		Do: "$r.$s.$Space.UnitAt($f.$unit, $r.$s.$Space.CopiesOf($f.$unit)-1-$step)", Test: "TestLostHints"},
	{Rule: "an adopter believes marks, not bits", Pkg: "memory", In: "Allocator.inherit",
		At: "$h.$free()", Do: "$h.$free() || i > 0", Seed: 2383},
	{Rule: "objects of a new size class were never used", Pkg: "memory", In: "Allocator.Clear",
		At: "$a.$Tables.$wipe($b.$Block, slices.Max($b.$incarnations))", Do: "nil", Test: "TestViewChangesConvert"},
	{Rule: "incarnations go on in a block that is carved anew", Pkg: "memory", In: "Allocator.Clear",
		At: "slices.Max($b.$incarnations)", Do: "0", Test: "TestIncarnationsGoOn"},
	{Rule: "an object that was never used begins at its block's floor", Pkg: "memory", In: "Allocator.inherit",
		At: "$h.$incarnation == 0", Do: "false", Test: "TestIncarnationsGoOn"},
	{Rule: "an emptied block rests until no client remembers its words", Pkg: "memory", In: "Allocator.Clear",
		At: "$a.$Emptied[0].$restsUntil <= $a.$s.Now()",
		Do: "true", Test: "TestEmptiedBlocksRest"},
	{Rule: "the word of a pair that borrows an object has the units of its class", In: "Client.begin",
		At: "$d.$units = $c.$s.$Classes.$Units[$d.$Object.$Class]", Do: "_ = $d", Test: "TestBorrowedObjects"},
	{Rule: "recovery finds the word of a pair that borrows an object", Pkg: "recovery", In: "recovery.inspect",
		At: "$o.$units = $r.$s.$Classes.$Units[$class]", Do: "_ = $class", Test: "TestBorrowedObjects"},
	{Rule: "lost hints are found by marks", Pkg: "memory", In: "Allocator.Suspect",
		At: "$blk.$suspect || $moved($blk.$Region)", Nth: "1/2", Do: "false", Test: "TestLostHints"},
	{Rule: "what was cut off is found in the tables", Pkg: "memory", In: "Allocator.tidy",
		At:   "$a.$Holdings.$Own[$blk.$Block] != nil",
		Do:   "$a.$Holdings.$Own[$blk.$Block] != nil || len($a.Emptied) == 0",
		Test: "TestViewChanges"},
	{Rule: "a client ends the rounds that it left", In: "unresolvedWrites.endRounds",
		At: "!$u.$s.$View.$Busy", Do: "$u.$s.$View.$Busy", Test: "TestLongBlip"},
	{Rule: "recovery marks each replica by its own incarnation", Pkg: "recovery", In: "recovery.markCopies",
		At: "uint64($h.$incarnation)", Do: "1", Test: "TestSalvage"},
	{Rule: "blocks are passed on behind their backups", Pkg: "memory", In: "Tables.PassOn",
		At:   "if $err := $t.$pass($backups); $*failed { $*_ }; return $t.$pass($primaries)",
		Do:   "if $err := $t.$pass($primaries); $*failed { return $err }; return $t.$pass($backups)",
		Test: "TestSalvage"},
}

// protocolSuite runs the suites of contention, over seeds.
var protocolSuite = teeth.Suite{
	Test: "TestContention", Flags: []string{"-rapid.nofailfile"}, Env: []string{"FARKV_SEEDS=3000"}, Seen: caught,
}

// caught is what a suite says when it has seen a wrong answer, or a damaged structure.
var caught = regexp.MustCompile(`not linearizable|damage|DAMAGE|leaked|free and in use|is free, but not on|` +
	`no such client|table says|not on the last|is not adopted|got .* want|operations failed|torn: true|` +
	`failed operation:|late operation:|of \d+ writes: outcome unknown|waits for recovery:|recovery did not end:|` +
	`endless: seed|panic: seed|are unclean still|is not unclean|earlier ones are unresolved|` +
	`the pool is full with|round 0: delete`)

func TestMutants(t *testing.T) { protocolSuite.Run(t, mutants) }
