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
		Do: "$b := $s.$ep.Batch(); $*add; if $err := $s.$ep.Post($b.As($*step)); $*failed { $*body }"},
	{Rule: "backups get the value of an extent", Pkg: "locks", In: "Locks.Acquire",
		At: "$content != nil && $s.$table.$Replicas > 1", Do: "$content != nil && $s.$table.$Replicas > 8"},
	{Rule: "all copies are asked for a redo", Pkg: "recovery", In: "findRedo",
		At: "$s.$table.$Copies[$shard]", Do: "$s.$table.$Copies[$shard][:1]", Test: "TestRecovered"},
	{Rule: "a client that brings an operation to its end writes its redo to each copy", Pkg: "recovery",
		In: "carryForward",
		At: "$s.$table.$Replicas > 1", Do: "$s.$table.$Replicas > 8"},
	{Rule: "operations are brought to their ends on all copies", Pkg: "recovery", In: "carryForward",
		At: "slices.Backward($s.$table.$Copies[$shard])", Do: "slices.Clone($s.$table.$Copies[$shard][:1])",
		Test: "TestRecovered"},
	{Rule: "a takeover brings to their ends what has begun", Pkg: "recovery", In: "readRedos",
		At: "$found[$i].$seq", Do: "$found[$i].$seq + 1<<60"},
	{Rule: "a takeover tells clients what has begun", Pkg: "recovery", In: "resume",
		At: "$r.$seq<<1 | $table.$IdleBit", Do: "$table.$IdleBit"},
	{Rule: "a takeover makes marks of what rows name", Pkg: "recovery", In: "remark",
		At: "if $stamp, $ok := $named[$extent]; $ok { $*body }",
		Do: "if $stamp, $ok := $named[$extent]; $ok && $stamp == 0 { $*body }", Test: "TestTakeover"},
	{Rule: "a takeover gives what is free its unit's class", Pkg: "recovery", In: "freeMark",
		At: "max($class, 0)", Do: "0", Test: "TestTakeover"},
	{Rule: "the role is written last", Pkg: "recovery", In: "TakeOver",
		At: "if $err := finishBegun($o, $shard); $err != nil { $*body }",
		Do: "if $err := MakeLeader($o.Table, $o.EP, $shard); $err != nil { $*body }; " +
			"if $err := finishBegun($o, $shard); $err != nil { $*body }"},
	{Rule: "stock is forgotten when another copy leads", In: "Store.applyView",
		At: "$s.$extents.$forget($shard)", Nth: "1/2", Test: "TestTakeover"},
	{Rule: "the extent of the operation at work is stock, too", In: "Store.applyView",
		At: "$s.$takenIn == $shard", Do: "$s.$takenIn < 0", Test: "TestMidst"},
	{Rule: "no client changes anything under a busy view", Pkg: "session", In: "Op.waiting",
		At: "$s.$table.$Replicas > 1", Do: "$s.$table.$Replicas > 8"},
	{Rule: "no client reads a copy that has not taken over", Pkg: "session", In: "Op.AwaitLeader",
		At: "$s.$unled[$shard]", Do: "$s.$unled[$shard] && $shard < 0", Test: "TestBusyView"},
	{Rule: "a client that waits for backups shows that it is alive", Pkg: "session", In: "Op.doWithHeartbeat",
		At: "$s.$pulse($s.$showing(nil))", Do: "error(nil)", Test: "TestSlowBackup"},
	{Rule: "a repair that waits for backups shows that it is alive", Pkg: "recovery", In: "Repairer.repairLeased",
		At: "$s = $s.$showing($*f)", Test: "TestSlowBackup"},
	{Rule: "a spare gets the values", Pkg: "recovery", In: "copyExtents",
		At: "$mark != 0", Do: "$mark == 1", Test: "TestTakeover"},
	{Rule: "a leader stays the leader while its node lives", Pkg: "../kit", In: "Replicas",
		At: "$since[$at-1] > $from", Do: "$since[$at-1] < $from", Test: "TestPlacement"},
}

var replicasSuite = teeth.Suite{Test: "TestExploreReplicas", Env: []string{"FARKV_SEEDS=2500"}}

func TestReplicasMutants(t *testing.T) { replicasSuite.Run(t, replicasMutants) }
