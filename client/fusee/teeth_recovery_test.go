package fusee

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// recoveryMutants break the rules of recovery, here and in the keeper that calls for it. Crashes at every verb must show it.
var recoveryMutants = []teeth.Mutant{
	// Mending after a node's death (FUSEE 5.2).
	{Rule: "what all backups hold was decided", File: "mend.go",
		Old: "if same {\n\t\t\treturn others[0], true", New: "if same && len(others) > 99 {\n\t\t\treturn others[0], true", Test: "TestEnumerate$/^3_replicas"},
	{Rule: "an INSERT that nobody committed gives way to the master", File: "mend.go",
		Old: "if !w.IsPending() {\n\t\t\treturn w, true", New: "if len(words) > 0 {\n\t\t\treturn w, true", Test: "TestEnumerate$/^3_replicas"},
	{Rule: "the master makes all replicas of a slot equal", File: "mend.go",
		Old: "if words[r] != chosen {", New: "if words[r] != chosen && r > 1 {", Test: "TestEnumerate$/^3_replicas"},
	{Rule: "a spare gets the index", File: "restore.go",
		Old: "if err := m.copySubtable(sub, spare, i); err != nil {", New: "if err := error(nil); err != nil && i < 0 {", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "a spare gets the pairs", File: "restore.go",
		Old: "if err := m.copyRegion(g, spare, i); err != nil {", New: "if err := error(nil); err != nil && i < 0 {", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "a write that was undone is done again", File: "view.go",
		Old: "case now == w.old:\n\t\treturn lost, again(op)", New: "case now == w.old:\n\t\treturn won, nil", Test: "TestEnumerate$/^3_replicas"},
	{Rule: "verbs of earlier epochs are fenced off", File: "../../node/cluster/barrier.go",
		Old: "if err := k.f.Fence(to.Epoch); err != nil {", New: "if err := error(nil); err != nil {", Test: "TestEnumerate$/^3_replicas"},
	// Recovery of a client (FUSEE 5.3).
	{Rule: "a dead client's writes are finished", File: "recover.go",
		Old: "unfinished = r.unfinished(views[i])", New: "unfinished = nil", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "what a slot points at is not free", File: "recover.go",
		Old: "if !pointed && (", New: "if (", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "what a slot still points at was not replaced", File: "recover.go",
		Old: "o.replaced.Live() && !oldPointed {", New: "o.replaced.Live() {", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "a dead client's blocks are passed on", File: "release.go",
		Old: "e.Owner() == r.dead {", New: "e.Owner() == 0 {", Test: "TestEnumerate$/^1_replicas"},
	{Rule: "a pending word is not finished but gives way", File: "finish.go",
		Old: "if target.IsPending() {", New: "if target.IsPending() && len(list) > 99 {", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "the primary is changed, too", File: "finish.go",
		Old: "if ok, err := r.cas(s, words, 0, target); !ok || err != nil {", New: "if ok, err := true, error(nil); !ok || err != nil {", Test: "TestEnumerate$/^2_replicas"},
	{Rule: "what crashes leak is swept", File: "sweep.go",
		Old: "rest, r.forgetAdopted, r.markLost, r.hintFree}", New: "rest, r.forgetAdopted, r.hintFree}", Test: "TestEnumerate$/^2_replicas", Seed: 4},
	{Rule: "a dead client is fenced off before it is recovered", File: "../../node/cluster/keeper.go",
		Old: "if err := k.f.RevokeLife(c); err != nil {", New: "if err := error(nil); err != nil {", Test: "TestEnumerate$/^3_replicas"},
}

func TestRecoveryTeeth(t *testing.T) {
	suite := protocolSuite
	suite.Env = []string{"FARKV_SEEDS=20"} // each tries every verb
	suite.Run(t, recoveryMutants)
}
