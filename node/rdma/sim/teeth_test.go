package sim

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "a core reaches its node's memory past the NIC", In: "endpoint.enqueue",
		At: "$s.hw.Direct && $*home", Do: "false && $*home", Test: "TestDirect"},
	{Rule: "what a stall keeps of a batch is lost with the rest", In: "network.held",
		At: "$f.began < $c.lost", Do: "$f.posted < $c.lost", Test: "TestLostInTheMidstOfABatch"},
	{Rule: "messages of peers take less", In: "mailbox.Next",
		At: "$service = $h.peer", Do: "_ = $h.peer", Test: "TestMessagesOfPeers"},
	{Rule: "what is written is not durable", Pkg: "memory", In: "Memory.stored",
		At: "$m.pm.from == nil", Do: "$m.pm.from != nil"},
	{Rule: "nor is what an atomic leaves", Pkg: "memory", In: "Memory.Atomic",
		At: "$m.stored($*a)", Do: "", Test: "TestPersistenceOfAtomics"},
	{Rule: "what an atomic found is durable", Pkg: "memory", In: "Memory.Atomic",
		At: "$m.observed($*a)", Do: "", Test: "TestPersistenceOfAtomics"},
	{Rule: "so is what was read", Pkg: "memory", In: "Memory.Read",
		At: "$m.observed($*a)", Do: "", Test: "TestPersistenceOfOthers"},
	{Rule: "but in caches that are lost", Pkg: "memory", In: "Memory.observed",
		At: "!$m.pm.flushes && $*n", Do: "false && $*n"},
	{Rule: "a READ sees WRITEs to memory", In: "network.land",
		At: "$n.memory.Flush($*c)", Do: ""},
	{Rule: "but not to caches that are lost", Pkg: "memory", In: "Memory.Flush",
		At: "$m.pm != nil && $m.pm.flushes", Do: "$m.pm != nil"},
	{Rule: "one that the NIC answers sees to nothing", In: "network.land",
		At: "!$n.onDevice($*a)", Do: "true", Test: "TestPersistenceOfOthers"},
	{Rule: "nor does one of nothing", In: "network.land",
		At: "len($*buf) > 0", Do: "true", Test: "TestPersistenceOfOthers"},
	{Rule: "an entry is durable when its sender is told", In: "rings.see",
		At: "$n.memory.Flush($*c)", Do: "", Test: "TestPowerCutOfAppend"},
	{Rule: "nor is its entry durable before", In: "rings.settle",
		At: "$n.memory.LandsFrom(&c.writes)", Do: "_ = c", Test: "TestPowerCutOfAppend"},
	{Rule: "of a word's writes the first survive", Pkg: "memory", In: "Memory.PowerOff",
		At: "$w.writes[$k-1].value", Do: "$w.writes[0].value", Test: "TestPersistenceOfAtomics"},
	{Rule: "a thread's stores are durable when NTStore returns", In: "Sim.NTStore",
		At: "$n.memory.Drain(&$*c)", Do: "", Test: "TestPowerCutsOfStores"},
	{Rule: "and not before", In: "Sim.NTStore",
		At: "$n.memory.LandsFrom(&$*c)", Do: "", Test: "TestPowerCutsOfStores"},
	{Rule: "pages are tracked until all of them is durable", Pkg: "memory", In: "page.durable",
		At: "return false", Do: "return true", Test: "TestPersistenceOfManyPages"},
	{Rule: "a verb of before does not land", In: "network.gone",
		At: "$*n.diedSince($f.comebacks)", Do: "$*n.dead", Test: "TestRestart"},
	{Rule: "nor does the rest of a batch that was begun before", In: "endpoint.begin",
		At: "$e.s.comebacks", Do: "1", Test: "TestRestartInTheMidstOfABatch"},
	{Rule: "a ring of before is over", In: "ring.over",
		At: "$*rest || $r.s.nodes[$*n].diedSince($r.comebacks)", Do: "$*rest", Test: "TestRestart"},
	{Rule: "a node that was expelled is not itself", In: "Sim.Restart",
		At: "$n.expelled || $*gone", Do: "$*gone", Test: "TestRestartOfExpelled"},
	{Rule: "main memory is forgotten", In: "Sim.Restart",
		At: "$stale || !$n.memory.Persistent()", Do: "$stale", Test: "TestRestartOfKilled"},
	{Rule: "what a node starts with is durable", Pkg: "memory", In: "Memory.Start",
		At: "$p.pending, $p.mixed = nil, false", Do: "$p.mixed = false", Test: "TestRestartOfKilled"},
	{Rule: "verbs wait for modules that are full", In: "node.taken",
		At: "$n.hw == nil || $size == 0", Do: "true", Test: "TestPMemRates"},
	{Rule: "READs wait for WRITEs that do", In: "node.load",
		At: "max($t, $n.posted)", Do: "$t", Test: "TestPMemLatency"},
	{Rule: "media are slower than main memory", In: "node.load",
		At: "$latency > 0", Do: "false", Test: "TestPMemLatency"},
	{Rule: "what takes no time counts, too", In: "node.touch",
		At: "$n.pmem == nil || $*device", Do: "true", Test: "TestPMemCounts"},
	{Rule: "the NIC's memory is not the modules'", In: "node.touch",
		At: "$n.onDevice($*a)", Do: "false", Test: "TestPMemCounts"},
	{Rule: "a READ that sees a WRITE into memory costs the NIC little", In: "timing.served",
		At: "$h.nodePersist - $h.nodeVerb", Do: "$h.nodeVerb", Test: "TestPersistRate"},
	{Rule: "an entry is in the stream of its length", Pkg: "receive", In: "streams.Place",
		At: "$q.p.Stream($entry)", Do: "min($entry, 0)", Test: "TestSuiteWithStreams"},
	{Rule: "a stream without entries takes no buffers", Pkg: "receive", In: "streams.feed",
		At: "!$s.wanted || $*open", Do: "$*open", Test: "TestSuiteWithStreams"},
	{Rule: "a device asks again for what found no place yet", Pkg: "receive", In: "streams.Place",
		At: "$err != nil && len($q.posted) > 0", Do: "false", Test: "TestSuiteWithStreams"},
}

func TestMutants(t *testing.T) {
	// rdmatest's are in no test files
	teeth.Suite{Test: "TestPersistence", Seen: regexp.MustCompile(`^ +\w+\.go:\d+: `)}.Run(t, mutants)
}
