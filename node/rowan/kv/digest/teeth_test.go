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
	{Rule: "cleaners move what is committed", In: "Digester.offer",
		At: "slices.ContainsFunc($d.used, $needs)", Do: "false", Test: "TestOffered"},
	{Rule: "also if others still fill the segment where it ends", In: "Digester.offer",
		At: "slices.ContainsFunc($d.early, $needs)", Do: "false", Test: "TestOffered"},
	{Rule: "and what has ended", In: "Digester.offer", At: "$d.in.Begun($seg)", Do: "false", Test: "TestOffered"},
	{Rule: "an entry is of all segments with its blocks", In: "Digester.Take", At: "i != $u.Index", Do: "i < 0",
		Test: "TestOffered"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
