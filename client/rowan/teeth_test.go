package rowan_test

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

const (
	server = "../../node/rowan/kv"
	table  = "../../node/rowan"
)

var mutants = []teeth.Mutant{
	{Rule: "a write is answered when it is on all replicas", Pkg: server, In: "worker.replicate",
		At: "!$all || !$o.local.Completed(0) || !$o.local.Completed(1)", Do: "!($all || true) || !$o.local.Completed(1)", Test: "TestPowerCut",
		Seed: 43},
	{Rule: "an index names the newest entry, though an older one is acknowledged later", Pkg: server, In: "worker.apply",
		At: "$o.version < $k.version", Do: "false"},
	{Rule: "what is refused waits for what it was decided by", Pkg: server, In: "worker.follow",
		At: "$n > 0", Do: "$n > 1<<20"},
	{Rule: "what is in flight decides", Pkg: server, In: "worker.decide",
		At: "$k.there = $*exists", Do: ""},
	{Rule: "a key with a tombstone is not there", Pkg: server, In: "worker.find",
		At: "$ok && $f.kind == kindPut", Do: "$ok"},
	{Rule: "nor is it read", Pkg: server, In: "worker.answerGet",
		At: "!$ok || $f.kind == kindDel", Do: "!$ok"},
	{Rule: "a digest does not undo what is newer", Pkg: server, In: "control.update",
		At: "$e.before($f.order)", Do: "$e.version > 0"},
	{Rule: "a segment is not cleaned while its entries are not in the index", Pkg: server, In: "worker.drain",
		At: "$f.writes == 0 && $f.full", Do: "$f.full"},
	{Rule: "copies are durable before indexes name them", Pkg: table, In: "Log.Add",
		At: "$b.Read($at, 8)", Do: "", Test: "TestPowerCut"},
	{Rule: "DELs have segments when PUTs have none", Pkg: server, In: "worker.send",
		At: "$w.s.o.spared()", Do: "$w.s.o.Keep", Test: "TestFull"},
	{Rule: "backups learn what is on all replicas", Pkg: server, In: "control.learn",
		At: "$sh.learn($*version)", Do: "_ = $sh", Test: "TestFull"},
	{Rule: "entries of several blocks are moved, too", Pkg: server, In: "cleaner.empty",
		At: "for $_, $e := range $ends { $*body }", Do: "_ = $ends"},
	{Rule: "a WRITE to a backup is acknowledged when it is durable", Pkg: server, In: "writes.post",
		At: "$b.Read($g.at, 8)", Do: "", Test: "TestPowerCut/rwrite-kv"},
	{Rule: "segments are marked before they are lent", Pkg: table, In: "Lender.lend",
		At: "$l.t.setStates($l.ep, $*step, $taken, using)", Do: "error(nil)", Test: "TestHistories/share-kv"},
	{Rule: "a writer is done with a segment when nothing is in flight to it", Pkg: table, In: "Remote.finish",
		At: "$r.segments[0].flying == 0", Do: "$r.segments[0].flying >= 0", Test: "TestHistories/rwrite-kv"},
	{Rule: "a message is answered when its entry is durable", Pkg: server, In: "calls.step",
		At: "!$t.batch.Finished() || $err != nil", Do: "$err != nil", Test: "TestPowerCut/rpc-kv"},
	{Rule: "there is leave for no more than there is room", Pkg: server, In: "calls.grant",
		At: "min($credit-$left, $room-$kept)", Do: "$credit - $left", Test: "TestFull/rpc-kv"},
	{Rule: "requests of clients leave buffers for those of servers", Pkg: server, In: "worker.begin",
		At: "len($w.ops) >= $w.s.o.Slots/4", Do: "false", Test: "TestCrowd"},
	{Rule: "a server does nothing for a client of another term", Pkg: server, In: "worker.begin",
		At: "!$w.term.takesPart() || $q.Term != $w.term.Term", Do: "!$w.term.takesPart()", Test: "TestTerm"},
	{Rule: "a tombstone stays while a PUT of its key is in memory", Pkg: server, In: "sweep.look",
		At: "*$word |= $bit", Do: "_, _ = $word, $bit", Test: "TestPowerCut"},
	{Rule: "tombstones are dropped", Pkg: server, In: "sweep.begin",
		At: "$n < $w.s.o.Tombs", Do: "$n >= 0", Test: "TestChurn"},
	{Rule: "when a pool is full, too", Pkg: server, In: "sweep.due",
		At: "$enough = 1", Do: "_ = $enough", Test: "TestFull"},
	{Rule: "a write of unknown outcome is not asked again", In: "Store.do",
		At: "errors.Is($err, rpc.ErrUncertain) && $*write", Do: "false"},
	{Rule: "nothing is served in a term that is not committed", Pkg: server, In: "term.takesPart",
		At: "$t != nil && $t.Committed && $*member", Do: "$t != nil && $t.Member($t.node) != nil", Test: "TestFailover"},
	{Rule: "a server says that it is quiet when workers are", Pkg: server, In: "control.Quiet",
		At: "$saw < $*term", Do: "$saw > 1<<40", Test: "TestFailover"},
	{Rule: "a worker is quiet when its writes are on all replicas", Pkg: server, In: "worker.see",
		At: "slices.ContainsFunc($w.ops, $*of)", Do: "false", Test: "TestFailover", Seed: 138},
	{Rule: "a new primary has what it was sent before it serves", Pkg: server, In: "worker.begin",
		At: "!$sh.serving()", Do: "$sh == nil", Test: "TestFailover"},
	{Rule: "what was appended in earlier terms is digested first", Pkg: server, In: "control.promote", Nth: "1/2",
		At: "c.settle($*stamps)", Do: "error(nil)", Test: "TestFailover"},
	{Rule: "members give what may not be on all replicas", Pkg: server, In: "control.give",
		At: "$r.version > $sh.committed()", Do: "false", Test: "TestFailover"},
	{Rule: "a server that copies a shard gets all that is named", Pkg: server, In: "exchanger.copy",
		At: "$c.next == $names.Chains()", Do: "names != nil", Test: "TestFailover"},
	{Rule: "writes wait for no server that is dead", Pkg: server, In: "worker.replicate",
		At: "$w.term.Member($a.node) == nil", Do: "$a == nil", Test: "TestFailover"},
	{Rule: "a WRITE that a new view ended is posted again", Pkg: server, In: "worker.replicate",
		At: "errors.Join($e, $w.rewrite($o))", Do: "$e", Test: "TestFailover", Seed: 72},
	{Rule: "a GET is gathered from all blocks", Pkg: server, In: "worker.valueOf",
		At: "$blocks != nil", Do: "$blocks != nil && false", Test: "TestFailover"},
	{Rule: "a term is noted before it is known", Pkg: server, In: "control.Adopt",
		At: "if $t.Member($*node) != nil { $*note }", Do: "", Test: "TestFailover"},
	{Rule: "what is copied is behind what is given", Pkg: server, In: "exchanger.give",
		At: "$x.raise($*gifts)", Do: "", Test: "TestFailover", Seed: 30123},
	{Rule: "a primary waits for what all give", Pkg: server, In: "control.haveAllGiven",
		At: "binary.LittleEndian.Uint64($*word) != $t.Term", Do: "binary.LittleEndian.Uint64($*word) > 1<<40",
		Test: "TestFailover", Seed: 334},
	{Rule: "a client reads the configuration again", In: "Store.do",
		At: "errors.Is($err, errTerm)", Do: "false", Test: "TestFailover"},
	{Rule: "and joins the view", In: "Store.rejoin", At: "$s.ep.Join()", Do: "s.ep.Rand(), error(nil)",
		Test: "TestFailover", Seed: 374},
}

func TestMutants(t *testing.T) {
	teeth.Suite{Test: "TestHistories"}.Run(t, mutants)
}
