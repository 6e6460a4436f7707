package fusee

import (
	"regexp"
	"slices"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break the rules of the protocol.
var mutants = []teeth.Mutant{
	{Rule: "a loser waits until the winner has changed the primary", File: "snapshot.go",
		Old: "if now != w.old {\n\t\t\treturn lost, nil", New: "if now != w.old || true {\n\t\t\treturn lost, nil", Test: "TestContention$/^2_index"},
	{Rule: "rule 2 and 3 change the other backups first", File: "snapshot.go",
		Old: "return win, c.fixBackups(stepFixBackups, w, w.list[:n])", New: "return win, nil", Test: "TestContention$/^5_index"},
	{Rule: "rule 3 takes the least word", File: "snapshot.go",
		Old: "ruleIf(rule3, least(list) == w.new)", New: "ruleIf(rule3, w.visible)", Test: "TestContention$/^3_index"},
	{Rule: "rule 3 reads the primary first", File: "snapshot.go",
		Old: "case now != w.old:\n\t\treturn finish, nil", New: "case now == ^w.old:\n\t\treturn finish, nil", Test: "TestContention$/^3_index"},
	{Rule: "a minority does not win", File: "snapshot.go",
		Old: "case 2*count > len(list):", New: "case w.visible:\n\t\treturn rule2, nil\n\tcase 2*count > len(list):", Test: "TestContention$/^4_index"},
	{Rule: "a DELETE that lost begins again", File: "modify.go",
		Old: "if verdict != lost || failed != nil || op == opUpdate {", New: "if true {", Test: "TestContention$/^2_index"},
	{Rule: "a DELETE's word is its own", File: "modify.go",
		Old: "word, err = c.tombstone(race.Print(hash));", New: "word = race.Word(race.Print(hash)) << 56;", Test: "TestContention$/^2_index"},
	{Rule: "an INSERT looks for its duplicates", File: "duplicate.go",
		Old: "if s == w.slot || word.Print() != race.Print(w.hash) {", New: "if true {"},
	{Rule: "the inserter with the lower slot waits for the other", File: "duplicate.go",
		Old: "case f == noRival:", New: "case f == noRival, f == rival && s > w.slot:", Seed: 187},
	{Rule: "an INSERT is pending until it has looked", File: "snapshot.go",
		Old: "w.new = w.new.Pending()", New: "w.new |= 0", Test: "TestContention$/^1_index"},
	{Rule: "what a slot pointed at is checked by its incarnation", File: "object.go",
		Old: "ok = ok && l.tag(f.incarnation) == w.Tag() &&", New: "ok = ok &&", Seed: 1157},
	{Rule: "an object is checked by its checksum", File: "object.go",
		Old: "|| le.Uint64(p[sumAt:]) != checksum(p[incarnationAt:log+opAt])", New: "", Test: "TestObjectTears$"},
	{Rule: "a tag changes when an object is used again", File: "slab.go",
		Old: "b.incarnations[i]++", New: "b.incarnations[i] = 1", Seed: 1157},
	{Rule: "a cached pair is checked by its slot", File: "search.go",
		Old: "if !bypass && now == word {", New: "if !bypass {"},
	{Rule: "a loser frees only its own object", File: "modify.go",
		Old: "case lost:\n\t\tc.recycle()", New: "case lost:\n\t\tc.free(w.old, w.inc)\n\t\tc.recycle()", Seed: 1243},
	{Rule: "a winner frees what it replaced", File: "modify.go",
		Old: "case won, overtaken:\n\t\tc.free(w.old, w.inc)", New: "case won, overtaken:"},
	{Rule: "a client that leaves marks its free objects", File: "leave.go",
		Old: "c.writeHeads(list, true)", New: "c.writeHeads(nil, true)"},
	{Rule: "a client that leaves unmarks what may look free and is not", File: "leave.go",
		Old: "c.writeHeads(list, false)", New: "c.writeHeads(nil, false)", Test: "TestStrayIsNotAdopted$"},
	{Rule: "an owner verifies hints by marks", File: "scan.go",
		Old: "&& le.Uint64(op.Buf) == uint64(p.block.incarnations[p.index])", New: "", Test: "TestDoubleFree$"},
	{Rule: "an owner knows which incarnation its object has", File: "scan.go",
		Old: "le.Uint64(op.Buf) == uint64(p.block.incarnations[p.index])", New: "le.Uint64(op.Buf) != 0", Test: "TestLateFree$"},
	{Rule: "a mark carries the incarnation it frees", File: "carry.go",
		Old: "le.PutUint64(p, uint64(f.incarnation))", New: "le.PutUint64(p, 1)"},
	{Rule: "the mark lands before the hint", File: "carry.go",
		Old: "\tif step == 0 {\n\t\tb.Chain()\n\t}\n", New: "\tif step == 0 {\n\t\tc.addHint(b, f.unit, int(f.class))\n\t\tp := b.Alloc(8)\n\t\tle.PutUint64(p, uint64(f.incarnation))\n\t\tb.Write(c.space.UnitAt(f.unit, 0).Add(markAt), p)\n\t\treturn\n\t}\n",
		Test: "TestMarkBeforeHint$"},
	{Rule: "the primary is marked last", File: "carry.go",
		Old: "b.Write(c.space.UnitAt(f.unit, step).Add(markAt), p)", New: "b.Write(c.space.UnitAt(f.unit, c.space.CopiesOf(f.unit)-1-step).Add(markAt), p)", Test: "TestLostHints$"},
	{Rule: "an adopter believes marks, not bits", File: "adopt.go",
		Old: "if h.free() {\n\t\t\tb.setIdle(i)", New: "if h.free() || i > 0 {\n\t\t\tb.setIdle(i)", Seed: 2383},
	{Rule: "an own object waits for the frees before it", File: "reclaim.go",
		Old: "if r.landed == r.queued {", New: "if r.landed <= r.queued {", Test: "TestOwnObjectsWaitForFrees$"},
	{Rule: "objects of a new size class were never used", File: "adopt.go",
		Old: "err = c.wipe(blk.Block, blk.class)", New: "err = nil", Test: "TestViewChangesConvert$"},
	{Rule: "lost hints are found by marks", File: "resync.go",
		Old: "blk.suspect = blk.suspect || moved(blk.Region)\n\t\t}\n\t}\n\tfor _, s", New: "blk.suspect = false\n\t\t}\n\t}\n\tfor _, s", Test: "TestLostHints$"},
	{Rule: "what was cut off is found in the tables", File: "resync.go",
		Old: "if c.own[blk.Block] != nil {", New: "if c.own[blk.Block] != nil || c.reclaim.emptied == nil {", Test: "TestViewChanges$"},
	{Rule: "a client ends the rounds that it left", File: "stray.go",
		Old: "if !s.flying && !c.view.Busy && !c.behind {", New: "if !s.flying && c.view.Busy && !c.behind {", Test: "TestLongBlip$"},
	{Rule: "recovery marks each replica by its own incarnation", File: "marks.go",
		Old: "le.PutUint64(p, uint64(h.incarnation))\n\t\t\twrite", New: "le.PutUint64(p, 1)\n\t\t\twrite", Test: "TestSalvage$"},
	{Rule: "blocks are passed on behind their backups", File: "leave.go",
		Old: "if err := c.pass(backups); err != nil {\n\t\treturn err\n\t}\n\tif err := c.pass(primaries)", New: "if err := c.pass(primaries); err != nil {\n\t\treturn err\n\t}\n\tif err := c.pass(backups)", Test: "TestSalvage$"},
}

// protocolSuite runs the suites of contention, over seeds.
var protocolSuite = teeth.Suite{
	Test: "TestContention$", Flags: []string{"-rapid.nofailfile"}, Env: []string{"FARKV_SEEDS=3000"}, Seen: caught,
}

// caught is what a suite says when it has seen a wrong answer, or a damaged structure.
var caught = regexp.MustCompile(`not linearizable|damage|DAMAGE|leaked|free and in use|is free, but not on|no such client|table says|not on the last|is not adopted|got .* want|operations failed|torn: true|` +
	`failed operation:|late operation:|of \d+ writes: outcome unknown|waits for recovery:|recovery did not end:|endless: seed|panic: seed`)

func TestMutants(t *testing.T) { teeth.Check(t, slices.Concat(mutants, recoveryMutants)) }

func TestTeeth(t *testing.T) {
	protocolSuite.Run(t, mutants)
}
