package quorum

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each; the test that is named must notice.
var mutants = teeth.Table([][5]string{
	{"a step that was fenced looks at no answer of before", "quorum.go", "\t\tf.left = 0\n\t\tq.flights[kept]", "\t\tq.flights[kept]", "TestFenced"},
	{"a step that was fenced asks again", "quorum.go", "\t\tq.again |= f.left\n", "", "TestFenced"},
	{"what a step has read outlives a fence", "quorum.go", "if f.left.Len() == f.n || !f.posted {", "if true {", "TestRejoinsWhenFull"},
	{"others make up for who refuses", "quorum.go", "\t\tq.err = ErrRefused\n\t\tq.widen(at, 0)\n", "\t\tq.err = ErrRefused\n", "TestVerdicts"},
	{"who failed is asked last", "quorum.go", "\tq.shun(at[r].Node(), q.ep.Now())\n", "", "TestShun"},
})

func TestMutants(t *testing.T) { teeth.Check(t, mutants) }

func TestTeeth(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
