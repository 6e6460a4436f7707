package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/teeth"
)

// replicasMutants break one rule of replication each. The explorer must notice, or the test that is
// named.
var replicasMutants = []teeth.Mutant{
	{Rule: "locks are let go of, and the leader's rows are written, when all backups are whole",
		In: "Store.writeBackups",
		At: "$b := $s.$ep.Batch(); $*add; if $err := $s.$do($*step, $b); $*failed { $*body }",
		Do: "$b := $s.$ep.Batch(); $*add; if $err := $s.$ep.Post($b); $*failed { $*body }"},
	{Rule: "backups get the value of an extent", In: "Store.acquire",
		At: "$content != nil && $s.$table.$Replicas > 1", Do: "$content != nil && $s.$table.$Replicas > 8"},
	{Rule: "all copies are asked for a redo", In: "Store.findRedo",
		At: "$s.$table.$Copies[$shard]", Do: "$s.$table.$Copies[$shard][:1]", Test: "TestRecovered"},
	{Rule: "a client that brings an operation to its end writes its redo to each copy", In: "Store.carryForward",
		At: "$s.$table.$Replicas > 1", Do: "$s.$table.$Replicas > 8"},
	{Rule: "operations are brought to their ends on all copies", In: "Store.carryForward",
		At: "slices.Backward($s.$table.$Copies[$shard])", Do: "$s.$table.$Copies[$shard][:1]", Test: "TestRecovered"},
	{Rule: "a takeover brings to their ends what has begun", In: "Store.readRedos",
		At: "$found[$i].$seq", Do: "$found[$i].$seq + 1<<60"},
	{Rule: "a takeover tells clients what has begun", In: "Store.resume",
		At: "$r.$seq<<1 | $table.$IdleBit", Do: "$table.$IdleBit"},
	{Rule: "a takeover makes marks of what rows name", In: "Store.remark",
		At: "if $stamp, $ok := $named[$extent]; $ok { $*body }",
		Do: "if $stamp, $ok := $named[$extent]; $ok && $stamp == 0 { $*body }", Test: "TestTakeover"},
	{Rule: "a takeover gives what is free its unit's class", In: "Store.freeMark",
		At: "max($class, 0)", Do: "0", Test: "TestTakeover"},
	{Rule: "the role is written last", In: "Store.takeOver",
		At: "if $err := $s.finishBegun($shard); $err != nil { $*body }",
		Do: "if $err := makeLeader($s.table, $s.ep, $shard); $err != nil { $*body }; " +
			"if $err := $s.finishBegun($shard); $err != nil { $*body }"},
	{Rule: "stock is forgotten when another copy leads", In: "Store.applyView",
		At: "$s.$extents.$forget($shard)", Nth: "2/3", Test: "TestTakeover"},
	{Rule: "the extent of the operation at work is stock, too", In: "Store.applyView",
		At: "$s.$takenIn == $shard", Do: "$s.$takenIn < 0", Test: "TestMidst"},
	{Rule: "no client changes anything under a busy view", In: "Store.waiting",
		At: "$s.$table.$Replicas > 1", Do: "$s.$table.$Replicas > 8"},
	{Rule: "no client reads a copy that has not taken over", In: "Store.awaitLeader",
		At: "$s.$unled[$shard]", Do: "$s.$unled[$shard] && $shard < 0", Test: "TestBusyView"},
	{Rule: "a client that waits for backups shows that it is alive", In: "Store.doAlive",
		At: "$s.$pulse($s.$showing(nil))", Do: "error(nil)", Test: "TestSlowBackup"},
	{Rule: "a repair that waits for backups shows that it is alive", In: "Store.repairLeased",
		At: "$s = $s.$showing($*f)", Test: "TestSlowBackup"},
	{Rule: "a spare gets the values", In: "Store.copyExtents",
		At: "$b.Op($i).Word(0) != 0", Do: "$b.Op($i).Word(0) == 1", Test: "TestTakeover"},
	{Rule: "a leader stays the leader while its node lives", Pkg: "../kit", In: "Replicas",
		At: "$since[$at-1] > $from", Do: "$since[$at-1] < $from", Test: "TestPlacement"},
}

var replicasSuite = teeth.Suite{Test: "TestExploreReplicas", Env: []string{"FARKV_SEEDS=2500"}}

func TestReplicasMutants(t *testing.T) { replicasSuite.Run(t, replicasMutants) }
