package digest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mutants = []teeth.Mutant{
	{Rule: "a damaged entry is replaced by none that is digested", In: "Digester.current",
		At: "return nil, rowan.ErrDamaged", Do: "return f.read[k].Buf, nil", Test: "TestDamagedStays"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
