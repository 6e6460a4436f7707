package fusee

import (
	"slices"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// The steps of operations, in the order in which they come. A step is the name of a batch in
// traces, by which faults can be set.
const (
	stepReadSlotAndPair  rdma.Step = "read slot and pair"         // SEARCH by the index cache
	stepReadBuckets      rdma.Step = "read buckets"               // without it
	stepReadPairs        rdma.Step = "read pairs"                 // of the slots that have the key's fingerprint
	stepWriteReadSlot    rdma.Step = "write object, read slot"    // UPDATE and DELETE by the index cache
	stepWriteReadBuckets rdma.Step = "write object, read buckets" // without it, and INSERT
	stepCASBackups       rdma.Step = "cas backups"                // Algorithm 1, line 7
	stepReadPrimary      rdma.Step = "read primary"               // Algorithm 2, ahead of rule 3
	stepFixBackups       rdma.Step = "fix backups"                // Algorithm 1, line 14
	stepAwaitWinner      rdma.Step = "await winner"               // Algorithm 1, lines 17 to 21
	stepCommitLog        rdma.Step = "commit log"
	stepReadRival        rdma.Step = "read rival"       // a slot that another INSERT of the key may win
	stepFinalizeBackups  rdma.Step = "finalize backups" // an INSERT's word is no longer pending
	stepGiveWay          rdma.Step = "give way"         // of two INSERTs of a key one does
	stepCASPrimary       rdma.Step = "cas primary"
	stepFinalize         rdma.Step = "finalize" // an INSERT's word, of the only replica
)

// The steps by which clients get, free and reclaim memory.
const (
	stepAllocate   rdma.Step = "allocate"         // a block, or where nodes do it an object
	stepReadTables rdma.Step = "read tables"      // of blocks
	stepTakeOver   rdma.Step = "take over blocks" // of clients that left
	stepReadHeads  rdma.Step = "read heads"       // of objects
	stepMarkFree   rdma.Step = "mark free"
	stepSetBits    rdma.Step = "set free bits"
	stepReadBits   rdma.Step = "read free bits"
	stepClearBits  rdma.Step = "clear free bits"
	stepWipe       rdma.Step = "wipe block" // it gets another size class
	stepPassOn     rdma.Step = "pass on blocks"
)

// The steps of a view change, of recovery, and of looks at a pool.
const (
	stepProbe       rdma.Step = "probe node" // of which verbs failed
	stepMendSlots   rdma.Step = "mend slots"
	stepMendTables  rdma.Step = "mend tables"
	stepCopy        rdma.Step = "copy to spare"
	stepReadJournal rdma.Step = "read journal"
	stepReadObjects rdma.Step = "read objects"
	stepReadSlots   rdma.Step = "read slots"
	stepFinish      rdma.Step = "finish for the dead"
	stepReadSize    rdma.Step = "read size of index"
	stepCheck       rdma.Step = "check"
	stepCount       rdma.Step = "count"
)

// The steps by which the index grows.
const (
	stepAskSize       rdma.Step = "ask for larger index"
	stepBack          rdma.Step = "back subtable" // with memory
	stepReadSubtable  rdma.Step = "read subtable"
	stepReadKeys      rdma.Step = "read keys"
	stepWriteSubtable rdma.Step = "write subtable"
	stepWriteSize     rdma.Step = "write size of index"
	stepClearMoved    rdma.Step = "clear moved slots"
)

// steps are all steps of clients and masters.
var steps = []rdma.Step{
	stepReadSlotAndPair, stepReadBuckets, stepReadPairs, stepWriteReadSlot, stepWriteReadBuckets,
	stepCASBackups, stepReadPrimary, stepFixBackups, stepAwaitWinner, stepCommitLog, stepReadRival,
	stepFinalizeBackups, stepGiveWay, stepCASPrimary, stepFinalize,
	stepAllocate, stepReadTables, stepTakeOver, stepReadHeads, stepMarkFree, stepSetBits, stepReadBits,
	stepClearBits, stepWipe,
	stepPassOn, kit.StepReadCeiling, kit.StepRaiseCeiling,
	stepProbe, stepMendSlots, stepMendTables, stepCopy, stepReadJournal, stepReadObjects, stepReadSlots,
	stepFinish, stepReadSize, stepCheck, stepCount,
	stepAskSize, stepBack, stepReadSubtable, stepReadKeys, stepWriteSubtable, stepWriteSize, stepClearMoved,
}

// Steps returns the steps of clients with these options. Traces show them, and faults can be set
// to them. Without an index cache there are two less, and FUSEE-CR's backups need not be fixed.
func Steps(o Options) []rdma.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s rdma.Step) bool {
		return o.CacheBytes != nil && *o.CacheBytes == 0 && (s == stepReadSlotAndPair || s == stepWriteReadSlot) ||
			o.Sequential && s == stepFixBackups
	})
}
