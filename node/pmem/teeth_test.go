package pmem

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "fewer lines than the XPBuffer has combine writes", In: "Testbed",
		At: "46", Do: "63", Test: "TestFigure2"},
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
	{Rule: "a module's media does one thing after the other", In: "Device.Taken",
		At: "max($m.$served, $at)", Do: "$at", Test: "TestTaken"},
	{Rule: "a module with a full queue takes nothing", In: "Device.Taken",
		At: "$at = max($at, *$first)", Do: "", Test: "TestTaken"},
	{Rule: "a fence covers what was stored before, and not what is being stored", In: "Region.Fence",
		At: "$r.$gate.Lock(); $upTo = $r.$stores.Load(); $r.$gate.Unlock()", Do: "$upTo = $r.$stores.Load() + 1",
		Test: "TestFence"},
	{Rule: "a process flushes what the one before it left", In: "newRegion",
		At: "$r.$stores.Add(1)", Do: "", Test: "TestFenceBehindKill"},
	{Rule: "records are durable before Put returns", In: "Table.put",
		At: "return $t.$r.Fence()", Do: "return nil", Test: "TestTableCrash"},
	{Rule: "a generation's records are durable before its header is", In: "Table.rewrite",
		At: "if $err := $t.$r.Fence(); $err != nil { return $err }", Test: "TestTableCrash"},
	{Rule: "records of a rewrite that crashed end a half", In: "Table.sum",
		At: "binary.LittleEndian.AppendUint64(nil, $t.$nonce)", Do: "binary.LittleEndian.AppendUint64(nil, $t.gen)",
		Test: "TestTableLeftovers"},
	{Rule: "a record that is torn ends a half", In: "Table.parse",
		At: "$size > uint64(len($p)) || $le.Uint32($p) != $t.sum($p[4:$size])",
		Do: "$size > uint64(len($p)) || $le.Uint32($p) == 0", Test: "TestTableCrash"},
	{Rule: "a region is none before all of it is there", In: "newRegion",
		At: "$r.store(8, $h[8:])", Do: "$r.store(0, $h)", Test: "TestCreateCrash"},
	{Rule: "a failed sync is not forgotten", In: "Region.Fence",
		At: "$r.$failed = fmt.Errorf($*_, $err); return $r.$failed", Do: "return $err", Test: "TestFailedSync"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
