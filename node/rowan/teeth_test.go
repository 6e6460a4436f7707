package rowan

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "what is of an earlier use of a segment is no entry", In: "Receiver.Digest",
		At: "$h.stamp <= $*floor", Do: "false"},
	{Rule: "an entry that has begun is below no floor", In: "Receiver.floor",
		At: "$stamp - 1", Do: "$stamp", Test: "TestBegun"},
	{Rule: "floors are durable", In: "Receiver.release",
		At: "b.Write($*a, $p)", Do: "_ = $p"},
	{Rule: "a segment is not free while an entry may go on", In: "Receiver.release",
		At: "$r.unfinished($i)", Do: "false", Test: "TestBegun"},
	{Rule: "nor while one may be needed that went on", In: "Receiver.release",
		At: "!$r.ended($i)", Do: "false", Test: "TestBegun"},
	{Rule: "a head that stays zero is passed by", In: "Receiver.look",
		At: "$later || $set", Do: "$set"},
	{Rule: "heads are zero", In: "Receiver.push",
		At: "b.WriteWord($r.o.segmentAt($i), 0)", Do: "b.WriteWord($r.o.recordAt($i), 0)"},
	{Rule: "a segment is marked before it takes entries", In: "Receiver.push",
		At: "if $err := $r.setStates($*args); $err != nil { $*body }",
		Do: "for _, i := range list { r.segments[i].state = using }"},
	{Rule: "the receiver's WRITEs have a READ behind them", In: "Receiver.persist",
		At: "$b.Read($*at, 8)", Do: "", Test: "TestPowerCuts"},
	{Rule: "states are durable", In: "Receiver.setStates",
		At: "$r.persist($b, $step)", Do: "rdma.Do($r.ep, $b.As($step), patience)", Test: "TestPowerCuts"},
	{Rule: "floors are durable before a segment is free", In: "Receiver.release",
		At: "$r.persist($b, $*step)", Do: "rdma.Do($r.ep, $b, patience)", Test: "TestPowerCuts", Seed: 5},
	{Rule: "an entry is durable when it is acknowledged", Pkg: "../rdma/sim", In: "Sim.see",
		At: "$n.memory.flush($*c)", Do: "", Test: "TestPowerCuts"},
	{Rule: "and not only its last block", Pkg: "../rdma/sim", In: "Sim.see",
		At: "$n.memory.flush($*c)", Do: "if len(f.blocks) < 2 { $n.memory.flush(&f.ep.conns[f.node]) }",
		Test: "TestPowerCuts"},
	{Rule: "full segments are settled later", In: "Receiver.settle",
		At: "$now-$*since >= SettleAfter", Do: "$now >= 0"},
	{Rule: "what is acknowledged late does not count", In: "Sender.Acknowledged",
		At: "!$s.counts && $took > AckWithin", Do: "false", Test: "TestLate"},
	{Rule: "entries are sealed with the secret", In: "newLayout",
		At: "$secret ^ $*ring", Do: "($secret & 0) ^ $*ring", Test: "TestForged"},
	{Rule: "entries are sealed for their log", In: "newLayout",
		At: "uint64($ring) * 0x9e3779b97f4a7c15", Do: "uint64($ring) * 0", Test: "TestForged"},
	{Rule: "what is in an entry is none", In: "Receiver.Digest",
		At: "strides($*n)", Do: "rdma.Stride", Test: "TestForged"},
	{Rule: "a copy of an entry is none", In: "Receiver.Digest",
		At: "$h.stamp < $last || $h.stamp == $last && $h.block == 0", Do: "$h.stamp < $last && false",
		Test: "TestForged"},
	{Rule: "no block of an entry is missing", In: "Receiver.assemble",
		At: "$p.stamp != $h.stamp || $*n", Do: "$p.stamp != $h.stamp", Test: "TestBegun"},
	{Rule: "what was in use is recovered", In: "Receiver.Recover",
		At: "$s != free", Do: "$s == used"},
	{Rule: "by a process that comes next, too", In: "Receiver.Recover",
		At: "$s != free", Do: "$s == used", Test: "TestKilled"},
	{Rule: "leave is given for what has room", In: "Receiver.grant",
		At: "$room -= int(outstanding($*g))", Do: "_ = outstanding($*g)", Test: "TestFull"},
	{Rule: "room is given once", In: "Receiver.grant",
		At: "$room -= $more", Do: "", Test: "TestFull"},
	{Rule: "the reserve is kept", In: "Receiver.grant",
		At: "$r.unbegun-$r.o.kept()", Do: "$r.unbegun", Test: "TestFull"},
	{Rule: "without leave there is no place", In: "Sender.Reserve",
		At: "$n > $left", Nth: "2/2", Do: "$n > $left && $n > 1<<20", Test: "TestFull"},
	{Rule: "leave of a sender that died is given back", In: "Sender.takeOver",
		At: "$s.granted, $s.reserved, $s.spent = $granted, $granted, $granted", Do: "$s.reserved = $granted",
		Test: "TestFull"},
	{Rule: "what is in flight is not spent", In: "Sender.ask",
		At: "b.WriteWord($*a, $s.spent)", Do: "b.WriteWord($*a, $s.reserved)", Test: "TestInFlight"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Test: "TestCrashes", Vain: regexp.MustCompile(`panic: `)}.Run(t, mutants)
}
