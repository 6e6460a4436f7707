package ibverbs

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// mutants break one rule each, where a mistake would be the worst.
var mutants = []teeth.Mutant{
	{Rule: "a result is taken while the node serves", In: "Endpoint.settle",
		At: "$now >= $until", Do: "$now < 0 && $until > 0", Test: "TestHeldBack"},
	{Rule: "a fence ends connections", Pkg: "../tcp", In: "conn.drain",
		At: "$c.detach()", Do: "if end { $c.detach() }", Test: "TestLate"},
	{Rule: "what failed has not succeeded", In: "Endpoint.landed",
		At: "$p.$ripe = $seq", Do: "$p.$ripe = $seq + 1", Test: "TestStatuses"},
}

// more are broken if $FARKV_TEETH is all.
var more = []teeth.Mutant{
	{Rule: "a fence that the device does not keep is kept", In: "Endpoint.fill",
		At: "$p.$masked > 0 || !$e.$fabric.$lim.$fences && $p.$unordered()", Do: "$p.$masked > 0",
		Test: "TestUnfencedDevice"},
	{Rule: "and waits for atomics, too", In: "peer.unordered",
		At: "$f.$batch.Op(int($f.$op)).$Verb != rdma.Write", Do: "$f.$batch.Op(int($f.$op)).$Verb == rdma.Read",
		Test: "TestUnfencedDevice"},
	{Rule: "a device that tells nothing is given up", In: "Endpoint.look",
		At: "giveUp", Do: "100 * giveUp", Test: "TestDeadDevice"},
	{Rule: "which counts behind the completion", In: "Endpoint.progress",
		At: "for { $*body }; $now := wall.Boot()", Do: "$now := wall.Boot(); for { $*body }",
		Test: "TestLeaseEndsMeanwhile"},
	{Rule: "nor behind the connection", Pkg: "../tcp", In: "conn.detach",
		At: "$c.$ended || $c.$barred(&$a.$rights) != $statusOK", Do: "$c.$barred(&$a.$rights) != $statusOK",
		Test: "TestLate"},
	{Rule: "a new connection is in the place of the last", Pkg: "../tcp", In: "conn.serveAttach",
		At: "$ok && $what != $attachAsk", Do: "$ok && $what == attachEnd", Test: "TestLate"},
	{Rule: "a stale verb does not land later", In: "Endpoint.Join",
		At: "$e.Detach($p.$node)", Do: "error(nil)", Test: "TestLate"},
	{Rule: "connections are given back", In: "Endpoint.Close",
		At: "$err == nil && $connection == $p.$connection",
		Do: "$err == nil && $connection == $p.$connection && $p.qp != nil", Test: "TestConnectionsAreGivenBack"},
	{Rule: "completions have a connection", In: "Endpoint.drop",
		At: "$p.times++", Test: "TestStaleCompletions"},
	{Rule: "what is dropped has failed", In: "Endpoint.drop",
		At: "$e.$fail($p.$at($p.$head), $why)", Do: "$e.over($p.$at($p.$head))", Test: "TestStatuses"},
	{Rule: "what waits fails, too", In: "Endpoint.drop",
		At: "$e.$failWaiting($p, $why)", Test: "TestStatuses"},
	{Rule: "fences are posted", In: "Endpoint.request",
		At: "$q.$flags = $flagFence", Test: "TestFenceBehindMasked"},
	{Rule: "and held behind masked verbs", In: "Endpoint.fill",
		At: "$p.$masked > 0 || !$e.$fabric.$lim.$fences && $p.$unordered()",
		Do: "!$e.$fabric.$lim.$fences && $p.$unordered()", Test: "TestFenceBehindMasked"},
	{Rule: "until the last one is over", In: "Endpoint.take",
		At: "$p.$masked--", Do: "$p.$masked = 0", Test: "TestFenceBehindMasked"},
	{Rule: "a guess learns", In: "Endpoint.guessed",
		At: "$f.$guess = $op.$Result", Test: "TestMaskedResults"},
	{Rule: "a guess keeps to the bits compared", In: "Endpoint.guessed",
		At: "$op.$Result == $f.$guess || ($op.$Result^$op.$Expect)&$op.$CompareMask != 0",
		Do: "$op.$Result == $f.$guess", Test: "TestMaskedResults"},
	{Rule: "a swap keeps to its bits", In: "Endpoint.request",
		At: "$f.$guess&^$op.$SwapMask | $op.$Value&$op.$SwapMask", Do: "$op.$Value", Test: "TestMaskedResults"},
	{Rule: "a wrong guess is a trip", In: "Endpoint.guessed",
		At: "$f.$batch.Stalled(1)", Test: "TestMaskedWorkers"},
	{Rule: "a completion is its request's, too", In: "Endpoint.landed",
		At: "$seq + 1", Do: "$seq", Test: "TestDepths"},
	{Rule: "what was in front has", In: "Endpoint.landed",
		At: "$p.$ripe = $seq", Test: "TestStatuses"},
	{Rule: "what is staged is copied back", In: "Endpoint.take",
		At: "copy($op.$Buf[$f.$off:$f.$off+$f.$n], $f.$stage.$p)", Test: "TestDepths"},
	{Rule: "each part has its place", In: "Endpoint.take",
		At: "$op.$Buf[$f.$off : $f.$off+$f.$n]", Do: "$op.$Buf[:$f.$n]", Test: "TestDepths"},
	{Rule: "all parts count", In: "Endpoint.enqueue",
		At: "$f.$n = $n - $f.$off", Do: "$f.$n = ($n - $f.$off) * (1 - $n>>21)", Test: "TestDepths"},
	{Rule: "an op is over when its parts are", In: "Endpoint.cutOff",
		At: "$f.$off > 0 && $seq != $p.$head", Do: "false", Test: "TestNoMemoryForParts"},
	{Rule: "who joins looks at his connections", In: "Endpoint.Join",
		At: "$e.$check($p)", Test: "TestJoinLooks"},
	{Rule: "who strays is stopped", In: "Endpoint.landed",
		At: `$p.$lost = fmt.Errorf("connection to node %d is down since %w", $p.$node, $why)`, Test: "TestStatuses"},
	{Rule: "a fence that is heard of ends verbs", In: "Endpoint.check",
		At: "$fence > $p.$epoch || $p.$epoch != $e.Epoch()", Do: "$fence > $p.$epoch && $fence < 0",
		Test: "TestJoinLooks"},
	{Rule: "a connection is of one life of the process's", In: "Endpoint.check",
		At: "$connection != $p.$connection", Do: "$connection == 0", Test: "TestLate"},
	{Rule: "a silent node is asked", In: "Endpoint.look",
		At: "$e.MayPost($p.$node)", Do: "error(nil)", Test: "TestSilentDevice"},
	{Rule: "readers only read", In: "region.Connect",
		At: "if $readOnly { $may = $accessRead }", Do: "_ = $readOnly", Test: "TestReaders"},
	{Rule: "what a device refuses of a post is known", In: "Endpoint.pump",
		At: "$g.$taken < $g.$n", Do: "$g.$taken > $g.$n", Test: "TestPartlyPosted"},
	{Rule: "rings go on where numbers begin anew", In: "newFabric",
		At: "$o.$Depth = 1 << (bits.Len(uint($o.$Depth)) - 1)", Do: "_ = bits.Len", Test: "TestDepths"},
	{Rule: "a queue does not grow without end", In: "Endpoint.enqueue",
		At: "$p.$next >= len($p.$waiting)-$p.$next", Do: "$p.$next == len($p.$waiting)", Test: "TestBacklog"},
	{Rule: "nobody waits for what was not posted", In: "Endpoint.await",
		At: "$e.closed", Do: "false", Test: "TestClosedEndpoint"},
	{Rule: "completions of dropped connections make room", In: "Endpoint.Post",
		At: "if $e.$dropped { $*body }", Do: "if false { $*body }", Test: "TestStaleCompletions"},
}

func TestMutants(t *testing.T) {
	if *host != "" {
		t.Skip("reads the package's source, which is not in a guest; run without -rdma")
	}
	teeth.Suite{Vain: regexp.MustCompile(`panic: test timed out`), More: more}.Run(t, mutants)
}
