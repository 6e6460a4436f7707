package chunks

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each, and the test that is named notices.
var mutants = []teeth.Mutant{
	{Rule: "a chunk is claimed whose word is as it was read", In: "Client.swap",
		At: "$err == nil && $b.Op($i).Swapped()", Do: "err == nil && i >= 0", Test: "TestClaim"},
	{Rule: "a word gets a new generation with each owner", In: "Client.swap",
		At: "uint64($o.Entry.Next($owner, $o.Entry.Class()))", Do: "uint64(node.MakeEntry(owner, o.Entry.Class()))",
		Test: "TestClaim"},
	{Rule: "all chunks of a list are given back", In: "Client.swap",
		At: "$list = $list[len($some):]", Do: "list = nil", Test: "TestClaim"},
	{Rule: "a look begins with one chunk", In: "Client.Left",
		At: "$some, $batch = $some[:0], min(2*$batch, $most)", Do: "some, batch = some[:0], most", Test: "TestLeft"},
	{Rule: "all of a table is looked at", In: "Client.Left",
		At: "len($some) == 0 || len($some) < $batch && $i < len($entries)-1", Do: "len(some) < batch",
		Test: "TestLeft"},
	{Rule: "what could not be given back is given back later", In: "Client.Free",
		At: "$c.owed = append($c.owed, debt{$a, slices.Clone($list)})", Do: "_ = slices.Clone(list)", Test: "TestOwed"},
	{Rule: "a call that may be served yet is remembered", In: "Client.Fresh",
		At: "$c.Late || errors.Is($*late)", Do: "false", Test: "TestLate"},
	{Rule: "a call that was not served is over", In: "Client.Fresh",
		At: "$c.Late || errors.Is($*late)", Do: "true", Test: "TestLate"},
	{Rule: "a call that may be served yet is not forgotten", In: "Client.Fresh",
		At: "$c.Late || errors.Is($*late)", Do: "errors.Is(err, rdma.ErrTimeout)", Test: "TestLate"},
	{Rule: "a worker has no more than its share of all chunks together", In: "Holdings.Trim",
		At: "len($o.$all[$a]) > $o.share($a)", Do: "false", Test: "TestShare"},
	{Rule: "a worker claims no more than it has room for", In: "Holdings.claim",
		At: "max($o.share($a)-len($o.$all[$a]), 1)", Do: "claimAtOnce", Test: "TestShare"},
	{Rule: "a chunk stays of which an operation has something", In: "Holdings.Trim",
		At: "$c.Taken == 0 && $c.few()", Do: "c.few()", Test: "TestTrim"},
	{Rule: "a chunk goes first in which little is free", In: "Holdings.Trim",
		At: "$c.Taken == 0 && $c.few()", Do: "c.Taken == 0", Test: "TestTrim"},
	{Rule: "a chunk stays that was just claimed", In: "Holdings.Trim",
		At: "$o.$all[$a][:len($o.$all[$a])-1]", Do: "o.all[a]", Test: "TestTrim"},
	{Rule: "a worker with its share keeps nothing in which little is free", In: "Holdings.GiveBack",
		At: "$h.Empty || $o.AtShare($a)", Do: "h.Empty", Test: "TestGiveBack"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
