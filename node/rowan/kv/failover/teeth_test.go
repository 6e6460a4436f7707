package failover

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "a primary has digested what it was given", In: "control.promote", Nth: "2/2", At: "c.d.Settle($*stamps)",
		Do: "error(nil)", Test: "TestPromote"},
	{Rule: "a replica that differs begins with nothing", In: "control.Adopt",
		At: "if $t.Differed($*term) { $*body }", Do: "", Test: "TestDiffered"},
	{Rule: "which it notes", In: "control.mark", At: "!$had || $t.Differed($*term)", Do: "!had", Test: "TestDiffered"},
	{Rule: "what others told in earlier terms is forgotten", In: "control.recover", At: "$c.forget", Do: "c.remember",
		Test: "TestForget"},
	{Rule: "versions are above what the earlier server published", In: "control.remember",
		At: "$sh.Find($published[$i])", Do: "", Test: "TestForget"},
	{Rule: "what a cleaner had copied is not given anew", In: "control.recoverOwn",
		At: "int($owner) > $c.s.Opt.Workers", Do: "false", Test: "TestGivenAnew"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
