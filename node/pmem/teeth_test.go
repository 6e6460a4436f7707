package pmem

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "fewer lines than the XPBuffer has combine writes", In: "Testbed",
		At: "41", Do: "63", Test: "TestFigure2"},
	{Rule: "a write makes its line the first", In: "use",
		At: "copy($lines[1:$i+1], $lines[:$i])", Do: "return &$lines[$i]", Test: "TestCombining"},
	{Rule: "a line that is not complete is read before it is written", In: "module.evict",
		At: "$m.$combining[$last].$written != allOnes", Do: "false", Test: "TestCombining"},
	{Rule: "what a write past the caches replaces is not written again", In: "Device.Write",
		At: "$d.$cache.drop($block)", Test: "TestCombining"},
	{Rule: "what the caches hold is lost without EADR", In: "Device.Survives",
		At: "$d.$c.EADR || !$d.$cache.has($block)", Do: "true", Test: "TestDDIO"},
	{Rule: "the caches' blocks reach the media before the power is off, with EADR", In: "Device.PowerOff",
		At: "$d.$c.EADR", Do: "false", Test: "TestCombining"},
	{Rule: "evicted blocks are written", In: "Device.Store",
		At: "$d.write($evicted)", Do: "_ = $evicted", Test: "TestDevice"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
