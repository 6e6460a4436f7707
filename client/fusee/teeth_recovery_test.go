package fusee

import (
	"cmp"
	"strings"
	"testing"
)

// recoveryMutants break the rules of recovery, here and in the keeper that calls for it. Crashes at every verb must show it.
var recoveryMutants = []mutant{
	// Mending after a node's death (FUSEE 5.2).
	{rule: "what all backups hold was decided", file: "mend.go",
		old: "if same {\n\t\t\treturn others[0], true", new: "if same && len(others) > 99 {\n\t\t\treturn others[0], true", test: "TestEnumerate$/^3_replicas"},
	{rule: "an INSERT that nobody committed gives way to the master", file: "mend.go",
		old: "if !w.IsPending() {\n\t\t\treturn w, true", new: "if len(words) > 0 {\n\t\t\treturn w, true", test: "TestEnumerate$/^3_replicas"},
	{rule: "the master makes all replicas of a slot equal", file: "mend.go",
		old: "if words[r] != chosen {", new: "if words[r] != chosen && r > 1 {", test: "TestEnumerate$/^3_replicas"},
	{rule: "a spare gets the index", file: "restore.go",
		old: "if err := m.copySubtable(sub, spare, i); err != nil {", new: "if err := error(nil); err != nil && i < 0 {", test: "TestEnumerate$/^2_replicas"},
	{rule: "a spare gets the pairs", file: "restore.go",
		old: "if err := m.copyRegion(g, spare, i); err != nil {", new: "if err := error(nil); err != nil && i < 0 {", test: "TestEnumerate$/^2_replicas"},
	{rule: "a write that was undone is done again", file: "view.go",
		old: "case now == w.old:\n\t\treturn lost, again(op)", new: "case now == w.old:\n\t\treturn won, nil", test: "TestEnumerate$/^3_replicas"},
	{rule: "verbs of earlier epochs are fenced off", file: "../../node/cluster/barrier.go",
		old: "if err := k.f.Fence(to.Epoch); err != nil {", new: "if err := error(nil); err != nil {", test: "TestEnumerate$/^3_replicas"},
	// Recovery of a client (FUSEE 5.3).
	{rule: "a dead client's writes are finished", file: "recover.go",
		old: "unfinished = r.unfinished(views[i])", new: "unfinished = nil", test: "TestEnumerate$/^2_replicas"},
	{rule: "what a slot points at is not free", file: "recover.go",
		old: "if !pointed && (", new: "if (", test: "TestEnumerate$/^2_replicas"},
	{rule: "what a slot still points at was not replaced", file: "recover.go",
		old: "o.replaced.Live() && !oldPointed {", new: "o.replaced.Live() {", test: "TestEnumerate$/^2_replicas"},
	{rule: "a dead client's blocks are passed on", file: "release.go",
		old: "e.Owner() == r.dead {", new: "e.Owner() == 0 {", test: "TestEnumerate$/^1_replicas"},
	{rule: "a pending word is not finished but gives way", file: "finish.go",
		old: "if target.IsPending() {", new: "if target.IsPending() && len(list) > 99 {", test: "TestEnumerate$/^2_replicas"},
	{rule: "the primary is changed, too", file: "finish.go",
		old: "if ok, err := r.cas(s, words, 0, target); !ok || err != nil {", new: "if ok, err := true, error(nil); !ok || err != nil {", test: "TestEnumerate$/^2_replicas"},
	{rule: "what crashes leak is swept", file: "sweep.go",
		old: "rest, r.forgetAdopted, r.markLost, r.hintFree}", new: "rest, r.forgetAdopted, r.hintFree}", test: "TestEnumerate$/^2_replicas"},
	{rule: "a dead client is fenced off before it is recovered", file: "../../node/cluster/keeper.go",
		old: "if err := k.f.RevokeLife(c); err != nil {", new: "if err := error(nil); err != nil {", test: "TestEnumerate$/^3_replicas"},
}

func TestRecoveryTeeth(t *testing.T) {
	if testing.Short() || underRace { // the copies are compiled without the race detector: it would show nothing more
		t.Skip("compiles a copy of the package for each rule; run without -short and -race")
	}
	for _, m := range recoveryMutants {
		t.Run(strings.ReplaceAll(m.rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			m.seeds = cmp.Or(m.seeds, "20") // each tries every verb
			m.run(t)
		})
	}
}
