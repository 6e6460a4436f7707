package fusee

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A mutant is this package with one rule of its protocol broken. The suites must notice: a checker that has never failed
// proves nothing. Each is compiled from the package's own source through the go command's overlay, so that the
// protocol itself knows nothing of it.
type mutant struct {
	rule     string
	file     string
	old, new string
	test     string // which must fail; default "TestContention"
	seeds    string // that it may take; default 3000
}

var mutants = []mutant{
	{rule: "a loser waits until the winner has changed the primary", file: "snapshot.go",
		old: "if now != w.old {\n\t\t\treturn lost, nil", new: "if now != w.old || true {\n\t\t\treturn lost, nil", test: "TestContention$/^2_index"},
	{rule: "rule 2 and 3 change the other backups first", file: "snapshot.go",
		old: "return win, c.fixBackups(w, w.list[:n])", new: "return win, nil", test: "TestContention$/^5_index"},
	{rule: "rule 3 takes the least word", file: "snapshot.go",
		old: "ruleIf(rule3, least(list) == w.new)", new: "ruleIf(rule3, w.visible)", test: "TestContention$/^3_index"},
	{rule: "rule 3 reads the primary first", file: "snapshot.go",
		old: "case now != w.old:\n\t\treturn finish, nil", new: "case now == ^w.old:\n\t\treturn finish, nil", test: "TestContention$/^3_index"},
	{rule: "a minority does not win", file: "snapshot.go",
		old: "case 2*count > len(list):", new: "case w.visible:\n\t\treturn rule2, nil\n\tcase 2*count > len(list):", test: "TestContention$/^4_index"},
	{rule: "a DELETE that lost begins again", file: "modify.go",
		old: "if verdict != lost || failed != nil || op == opUpdate {", new: "if true {", test: "TestContention$/^2_index"},
	{rule: "a DELETE's word is its own", file: "modify.go",
		old: "word = c.tombstone(hash)", new: "word = race.Word(race.Print(hash)) << 56", test: "TestContention$/^2_index"},
	{rule: "an INSERT looks for its duplicates", file: "duplicate.go",
		old: "if s == w.slot || word.Print() != race.Print(w.hash) {", new: "if true {"},
	{rule: "the inserter with the lower slot waits for the other", file: "duplicate.go",
		old: "case f == noRival:", new: "case f == noRival, f == rival && s > w.slot:"},
	{rule: "an INSERT is pending until it has looked", file: "snapshot.go",
		old: "w.new = w.new.Pending()", new: "w.new |= 0", test: "TestContention$/^1_index"},
	{rule: "what a slot pointed at is checked by its incarnation", file: "object.go",
		old: "ok = ok && l.tag(f.incarnation) == w.Tag() &&", new: "ok = ok &&"},
	{rule: "an object is checked by its checksum", file: "object.go",
		old: "|| le.Uint64(p[sumAt:]) != checksum(p[incarnationAt:log+opAt])", new: "", test: "TestObjectTears$"},
	{rule: "a tag changes when an object is used again", file: "slab.go",
		old: "b.incarnations[i]++", new: "b.incarnations[i] = 1"},
	{rule: "a cached pair is checked by its slot", file: "search.go",
		old: "if !bypass && now == word {", new: "if !bypass {"},
	{rule: "a loser frees only its own object", file: "modify.go",
		old: "case lost:\n\t\tc.recycle()", new: "case lost:\n\t\tc.free(w.old, w.inc)\n\t\tc.recycle()"},
	{rule: "a winner frees what it replaced", file: "modify.go",
		old: "case won, overtaken:\n\t\tc.free(w.old, w.inc)", new: "case won, overtaken:"},
	{rule: "a client that leaves marks its free objects", file: "leave.go",
		old: "c.writeHeads(list, true)", new: "c.writeHeads(nil, true)"},
	{rule: "a client that leaves unmarks what may look free and is not", file: "leave.go",
		old: "c.writeHeads(list, false)", new: "c.writeHeads(nil, false)", test: "TestStrayIsNotAdopted$"},
	{rule: "an owner verifies hints by marks", file: "scan.go",
		old: "&& le.Uint64(op.Buf) == uint64(p.block.incarnations[p.index])", new: "", test: "TestDoubleFree$"},
	{rule: "an owner knows which incarnation its object has", file: "scan.go",
		old: "le.Uint64(op.Buf) == uint64(p.block.incarnations[p.index])", new: "le.Uint64(op.Buf) != 0", test: "TestLateFree$"},
	{rule: "a mark carries the incarnation it frees", file: "carry.go",
		old: "le.PutUint64(p, uint64(f.incarnation))", new: "le.PutUint64(p, 1)"},
	{rule: "the mark lands before the hint", file: "carry.go",
		old: "\tif step == 0 {\n\t\tb.Chain()\n\t}\n", new: "\tif step == 0 {\n\t\tc.addHint(b, f.unit, int(f.class))\n\t\tp := b.Alloc(8)\n\t\tle.PutUint64(p, uint64(f.incarnation))\n\t\tb.Write(c.space.UnitAt(f.unit, 0).Add(markAt), p)\n\t\treturn\n\t}\n",
		test: "TestMarkBeforeHint$"},
	{rule: "the primary is marked last", file: "carry.go",
		old: "b.Write(c.space.UnitAt(f.unit, step).Add(markAt), p)", new: "b.Write(c.space.UnitAt(f.unit, c.space.CopiesOf(f.unit)-1-step).Add(markAt), p)", test: "TestLostHints$"},
	{rule: "an adopter believes marks, not bits", file: "adopt.go",
		old: "if h.free() {\n\t\t\tb.setIdle(i)", new: "if h.free() || i > 0 {\n\t\t\tb.setIdle(i)"},
	{rule: "an own object waits for the frees before it", file: "reclaim.go",
		old: "if r.landed == r.queued {", new: "if r.landed <= r.queued {", test: "TestOwnObjectsWaitForFrees$"},
	{rule: "objects of a new size class were never used", file: "adopt.go",
		old: "err = c.wipe(blk.Block, blk.class)", new: "err = nil", test: "TestViewChangesConvert$"},
	{rule: "lost hints are found by marks", file: "resync.go",
		old: "blk.suspect = blk.suspect || moved(blk.Region)\n\t\t}\n\t}\n\tfor _, s", new: "blk.suspect = false\n\t\t}\n\t}\n\tfor _, s", test: "TestLostHints$"},
	{rule: "what was cut off is found in the tables", file: "resync.go",
		old: "if c.own[blk.Block] != nil {", new: "if c.own[blk.Block] != nil || c.reclaim.emptied == nil {", test: "TestViewChanges$"},
	{rule: "recovery marks each replica by its own incarnation", file: "marks.go",
		old: "le.PutUint64(p, uint64(h.incarnation))\n\t\t\twrite", new: "le.PutUint64(p, 1)\n\t\t\twrite", test: "TestSalvage$"},
	{rule: "blocks are passed on behind their backups", file: "leave.go",
		old: "if err := c.pass(backups); err != nil {\n\t\treturn err\n\t}\n\tif err := c.pass(primaries)", new: "if err := c.pass(primaries); err != nil {\n\t\treturn err\n\t}\n\tif err := c.pass(backups)", test: "TestSalvage$"},
}

func TestTeeth(t *testing.T) {
	if testing.Short() || underRace { // the copies are compiled without the race detector: it would show nothing more
		t.Skip("compiles a copy of the package for each rule; run without -short and -race")
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			m.run(t)
		})
	}
}

// caught is what a suite says when it has seen a wrong answer, or a damaged structure.
var caught = regexp.MustCompile(`not linearizable|damage|DAMAGE|leaked|free and in use|is free, but not on|no such client|table says|not on the last|is not adopted|got .* want|operations failed|torn: true|` +
	`failed operation:|late operation:|waits for recovery:|recovery did not end:|endless: seed|panic: seed`)

func (m mutant) run(t *testing.T) {
	source, err := os.ReadFile(m.file)
	must(t, err)
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has %d places that read %q, want one: the mutant needs an update", m.file, n, m.old)
	}
	dir := t.TempDir()
	broken := filepath.Join(dir, filepath.Base(m.file))
	must(t, os.WriteFile(broken, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600))
	here, err := filepath.Abs(m.file)
	must(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: broken}})
	must(t, err)
	list := filepath.Join(dir, "overlay.json")
	must(t, os.WriteFile(list, overlay, 0o600))
	cmd := exec.Command("go", "test", "-count=1", "-failfast", "-timeout=5m", "-overlay="+list, "-run=^"+cmp.Or(m.test, "TestContention$"), ".", "-rapid.nofailfile")
	cmd.Env = append(os.Environ(), "FARKV_SEEDS="+cmp.Or(m.seeds, "3000"))
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Fatalf("nothing failed without this rule")
	case strings.Contains(string(out), "[build failed]"):
		t.Fatalf("the mutant does not compile:\n%s", out)
	case !caught.Match(out):
		t.Fatalf("the suites failed, but not by seeing a wrong answer:\n%s", out)
	}
	t.Logf("%s", first(out))
}

// first returns the line that says what was found.
func first(out []byte) []byte {
	for _, line := range strings.Split(string(out), "\n") {
		if caught.MatchString(line) {
			return []byte(strings.TrimSpace(line))
		}
	}
	return nil
}
