package tui

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "the worst problem comes first", Pkg: "problems", In: "Find",
		At: "-cmp.Compare($a.Severity, $b.Severity)", Do: "cmp.Compare($a.Severity, $b.Severity)",
		Test: "TestWorstProblemFirst"},
	{Rule: "readonly lets no key break anything", In: "model.env",
		At: "$m.o.ReadOnly", Do: "false", Test: "TestReadOnlyBreaksNothing"},
	{Rule: "a recording can break nothing", In: "model.env",
		At: "$m.replay != nil", Do: "false", Test: "TestReadOnlyBreaksNothing"},
	{Rule: "no control character reaches the terminal", Pkg: "components", In: "Width",
		At: "return 0", Do: "return 1", Test: "TestNoSampleBreaksAFrame"},
	{Rule: "a wider window is the next one", In: "model.programKey",
		At: "$m.window+1", Do: "$m.window+2", Test: "TestKeys"},
	{Rule: "a narrower window is the one before", In: "model.programKey",
		At: "$m.window-1", Do: "$m.window-2", Test: "TestKeys"},
	{Rule: "the window has room for all there is", In: "model.add",
		At: "windows[$m.window] < $age", Do: "windows[$m.window] < $age-time.Second", Test: "TestWindow"},
	{Rule: "a window that was chosen stays", In: "model.add",
		At: "$m.chosen", Do: "$m.chosen && false", Test: "TestWindow"},
	{Rule: "an answer that comes late is no key", In: "answerless.Read",
		At: "answers.ReplaceAll($p[:$n], nil)", Do: "$p[:$n]", Test: "TestLateAnswerIsNoKey"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
