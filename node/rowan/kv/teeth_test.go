package kv

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// The rules that clients see broken are in client/rowan.
var mutants = []teeth.Mutant{
	{Rule: "terms order records", In: "Order.Before",
		At: "$o.Term < $p.Term || $*same", Do: "$o.Version < $p.Version", Test: "TestOrder"},
	{Rule: "a word is as it was written", In: "Unseal", At: "$word != Seal($n)", Do: "false", Test: "TestSeal"},
	{Rule: "though one bit flips", In: "Seal", At: "bits.OnesCount64($n)", Do: "0*bits.OnesCount64(n)",
		Test: "TestSeal"},
	{Rule: "what came to a server before it was a replica does not count", In: "Collect",
		At: "$first == 0 || TermOf($e) < $first", Do: "first == 0", Test: "TestCollectSince"},
	{Rule: "a record has one encoding", In: "ParseRecord",
		At: "$second>>48 != 0", Do: "false", Test: "FuzzRecord"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{}.Run(t, mutants)
}
