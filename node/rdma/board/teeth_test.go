package board

import (
	"regexp"
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

var mutants = []teeth.Mutant{
	{Rule: "an acceptor accepts nothing below its promise", In: "Acceptor.Accept",
		At: "if $b.Compare($s.$promised) < 0 { return &Answer{$Promised: $s.$promised} }", Test: "TestQuorumSim"},
	{Rule: "majorities meet", In: "proposer.majority",
		At: "$p.$nodes/2 + 1", Do: "max($p.$nodes/2, 1)", Test: "TestQuorumSim"},
	{Rule: "a read knows that what it returns was chosen", In: "proposer.load",
		At: "!slices.ContainsFunc($answers, func($a *Answer) bool { return $a.$Entries[0].$Ballot != $first.$Ballot })",
		Do: "true", Test: "TestQuorumSim"},
	{Rule: "who was overtaken is not told that it lost", In: "proposer.swap",
		At: "$s.$Version <= $version", Do: "$s.$Version != $version+1", Test: "TestQuorumSim"},
	{Rule: "a lease counts from the moment of asking", In: "Guard.Ask",
		At: "$request{$g.$round, $now}", Do: "$request{$g.$round, $now + $g.lease/8}", Test: "TestGuardSim"},
	{Rule: "who expels waits for clocks, too", In: "ExpelWait",
		At: "$lease / 7", Do: "$lease / 8", Test: "TestGuardSim"},
	{Rule: "a node looks again before it answers", In: "machine.frame",
		At: "$m.$serves()", Nth: "2/2", Do: "true", Test: "TestGuardSim"},
	{Rule: "candidates wait for clocks", In: "Board.judge",
		At: "ExpelWait($m.$Lease)", Do: "$m.$Lease", Test: "TestBoardSim"},
	{Rule: "a lost master is fenced off", In: "Board.succeed",
		At: "$b.$o.$Revoke(rdma.Client{$ID: $m.$Owner, $Life: $m.$Life2})", Do: "nil", Test: "TestBoardSim"},
	{Rule: "lives grow", In: "Board.Claim",
		At: "$old.$Life + 1", Do: "max($old.$Life, 1)", Test: "TestBoardSim"},
	{Rule: "unresolved claims are settled", In: "Board.settle",
		At: "$b.$isMine($r, $d.$life)", Do: "$b.$isMine($r, 0)", Test: "TestBoardSim"},
}

// more are broken if $FARKV_TEETH is all: compiling them takes a minute.
var more = []teeth.Mutant{
	{Rule: "an acceptor keeps what it promised", In: "Acceptor.Prepare",
		At: "$s.$promised = $b", Test: "TestQuorumSim"},
	{Rule: "what was accepted last goes on", In: "proposer.round",
		At: "$e.$Ballot.Compare($latest.$Ballot) > 0", Do: "$e.$Ballot.Compare($latest.$Ballot) < 0",
		Test: "TestQuorumSim"},
	{Rule: "a list does, too", In: "proposer.listed",
		At: "$i > 0 && $a.$Entries[$at].$Ballot != $first.$Ballot", Do: "$i < 0", Test: "TestQuorumSim"},
	{Rule: "a reader knows that what it returns was chosen", In: "proposer.glance",
		At: "$votes[$e.$Ballot] >= $p.$majority()", Do: "$votes[$e.$Ballot] > 0", Test: "TestReader"},
	{Rule: "ballots are not used twice", In: "proposer.ballot",
		At: "$p.$counter++", Do: "$p.$counter = max($p.$counter, 1)", Test: "TestQuorumSim"},
	{Rule: "what stays as it is must be accepted anew", In: "proposer.round",
		At:   "$next := $change($latest.$State)",
		Do:   "$next := $change($latest.$State); if $next.Version == $latest.$State.Version { return $next, nil }",
		Test: "TestQuorumSim"},
	{Rule: "a Swap is told by its writer", In: "proposer.swap",
		At: "$who == $writer", Do: `$who != ""`, Test: "TestQuorumSim"},
	{Rule: "the writers before are in their order", In: "State.writerOf",
		At: "$s.$Past[$ago-1]", Do: "$s.$Past[len($s.$Past)-1]", Test: "TestQuorumSim"},
	{Rule: "a node serves by a majority's leases", In: "Guard.Until",
		At: "($n/2 + 1)", Do: "max($n/2, 1)", Test: "TestGuardSim"},
	{Rule: "an expelled node is granted nothing", In: "Guard.Grant",
		At: "uint($peer) < uint(len($g.$expelled)) && !$g.$expelled[$peer]",
		Do: "uint($peer) < uint(len($g.$expelled))", Test: "TestGuardSim"},
	{Rule: "an expelled node that knows it stops", In: "Guard.Until",
		At: "$g.$expelled[$g.$self]", Do: "$g.$self < 0", Test: "TestGuardSim"},
	{Rule: "who expels waits", In: "ExpelWait",
		At: "$lease + $lease/7", Do: "0 * $lease", Test: "TestGuardSim"},
	{Rule: "a version that changed begins the wait anew", In: "Board.sight",
		At: "$version > $b.$seen.$version", Do: "$b.$seen.$version == 0", Test: "TestBoardSim"},
	{Rule: "clocks of others are not read", In: "Board.ours",
		At: "$ok && $t.$life == $m.$Life && $t.$epoch == $m.$Epoch", Do: "$ok || $m.Owner > 0", Test: "TestBoardSim"},
	{Rule: "an owner counts from before it wrote", In: "Board.begin",
		At: "$b.$o.$Now() + $next.$Lease", Do: "$b.$o.$Now() + 2*$next.$Lease", Test: "TestBoardSim"},
	{Rule: "epochs grow when a tenure ends, too", In: "masterRecord.end",
		At: "$m.$Owner, $m.$Life, $m.$Until, $m.$Turn = 0, 0, 0, $m.$Turn+1",
		Do: "$m.$Owner, $m.$Life, $m.$Until, $m.Epoch = 0, 0, 0, 1", Test: "TestBoardSim"},
	{Rule: "a claim is told from another's", In: "Board.isMine",
		At: "$r.$Life == $life && $r.$InUse && $r.$Process == $b.$o.$Process2", Do: "$r.$Life == $life && $r.$InUse",
		Test: "TestBoardSim"},
	{Rule: "a process tries an identity once at a time", In: "Board.reserve",
		At: "!$all[$id-1].$InUse && !$b.$busy[$id] && $b.$held[$id] == 0", Do: "!$all[$id-1].$InUse",
		Test: "TestBoardSim"},
	{Rule: "a claim that may still land is made one that cannot", In: "Board.settle",
		At: "$version != $d.$version", Do: "!b.isMine(r, $d.life)", Test: "TestBoardSim"},
	{Rule: "a successor keeps its identity", In: "Board.editLife",
		At: "$r.$Life != $c.$Life2 || !$r.$InUse", Do: "!$r.$InUse", Test: "TestBoardSim"},
	{Rule: "who was fenced off stays until it is forgotten", In: "Board.Release",
		At: "if $r.$Fenced { $*body }", Do: "if $r.Life == 0 { $*body }", Test: "TestClients"},
	{Rule: "one that is held is not forgotten", In: "Board.Forget",
		At: "if $held { $*body }", Do: "if $held && r.Life == 0 { $*body }", Test: "TestClients"},
	{Rule: "nodes are expelled in the epoch that was meant", In: "Board.SetDown",
		At: "$r.$state() != (rdma.State{$Epoch: $epoch, $Busy: true})", Do: "!$r.$Busy", Test: "TestView"},
	{Rule: "members change in the epoch that was meant", In: "Board.SetMember",
		At: "$r.$state() != (rdma.State{$Epoch: $epoch, $Busy: true}) || rdma.MemberOf($r.$Members[$node]) != $from",
		Do: "rdma.MemberOf($r.$Members[$node]) != $from", Test: "TestView"},
	{Rule: "a state is compared", In: "Board.Advance",
		At: "$r.$state() != $from", Do: "$r.Epoch > to.Epoch", Test: "TestView"},
}

func TestMutants(t *testing.T) {
	teeth.Suite{
		Env:  []string{"FARKV_SEEDS=5000", "FARKV_SEED=1"},
		Vain: regexp.MustCompile(`panic: |too few`),
		More: more,
	}.Run(t, mutants)
}
