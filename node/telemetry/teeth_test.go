package telemetry

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "halves have a checksum", In: "parseHalf",
		At: "$le.Uint64($p[halfSum:]) != checksum($p, halfSum, halfHead)", Do: "false", Test: "TestTorn"},
	{Rule: "the newest half counts", In: "newest",
		At: "$other.seq > $h.seq", Do: "$other.seq < $h.seq", Test: "TestTorn"},
	{Rule: "halves are written in turn", In: "Writer.write",
		At: "$w.half[$n] ^= 1", Test: "TestTorn"},
	{Rule: "a half is of the claim's life", In: "parseHalf",
		At: "$h.life == $life", Do: "true", Test: "TestStopped"},
	{Rule: "a claim that is lost is noticed", In: "Writer.write",
		At: "binary.LittleEndian.Uint64($claim.Buf) != $w.life", Do: "$w.life == 0 && len($claim.Buf) == 0",
		Test: "TestStopped"},
	{Rule: "a process that goes on keeps its place", In: "Writer.candidates",
		At: "$now-$p.since > StaleAfter", Do: "true", Test: "TestAtOnce"},
	{Rule: "one that does not loses it", In: "Writer.candidates",
		At: "$now-$p.since > StaleAfter", Do: "false", Test: "TestAtOnce"},
	{Rule: "nodes that are gone are left", In: "Writer.Publish",
		At: "!slices.Contains($serving, $h.node)", Do: "false", Test: "TestViewChanges"},
	{Rule: "slots have a checksum", In: "parseSlot",
		At: "$le.Uint64($p[slotSum:]) != checksum($p, slotSum, slotHead)", Do: "false", Test: "TestEventsTorn"},
	{Rule: "events of two nodes are told once", In: "Reader.fresh",
		At: "$known || $was.ids[$id]", Do: "$known || len($was.ids) > 1<<20", Test: "TestEventsTorn"},
	{Rule: "slots that were not written yet are looked at again", In: "readRing",
		At: "$whole < min($head, slots)", Do: "false", Test: "TestEventsTorn"},
	{Rule: "the last bucket that counted counts", In: "Histogram.span",
		At: "bucket($h.max) + 1", Do: "max(bucket($h.max), bucket($h.min))",
		Test: "TestPercentilesAreThoseOfTheValues"},
	{Rule: "events that are appended again are the same", In: "Region.Append",
		At:   "$ids[$i] = max(xxhash.Sum64(appendEvent(nil, &$events[$i])), 1)",
		Do:   "$ids[$i] = xxhash.Sum64(nil) ^ ep.Rand().Uint64()",
		Test: "TestAppendAgain"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Env: []string{"FARKV_SEED=1"}, Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
