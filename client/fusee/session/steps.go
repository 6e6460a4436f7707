package session

import (
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// The steps of operations, in the order in which they come. A step is the name of a batch in
// traces, by which faults can be set.
const (
	StepReadSlotAndPair  rdma.Step = "read slot and pair"         // SEARCH by the index cache
	StepReadBuckets      rdma.Step = "read buckets"               // without it
	StepReadPairs        rdma.Step = "read pairs"                 // of the slots that have the key's fingerprint
	StepWriteReadSlot    rdma.Step = "write object, read slot"    // UPDATE and DELETE by the index cache
	StepWriteReadBuckets rdma.Step = "write object, read buckets" // without it, and INSERT
	StepCASBackups       rdma.Step = "cas backups"                // Algorithm 1, line 7
	StepReadPrimary      rdma.Step = "read primary"               // Algorithm 2, ahead of rule 3
	StepFixBackups       rdma.Step = "fix backups"                // Algorithm 1, line 14
	StepAwaitWinner      rdma.Step = "await winner"               // Algorithm 1, lines 17 to 21
	StepCommitLog        rdma.Step = "commit log"
	StepReadRival        rdma.Step = "read rival"       // a slot that another INSERT of the key may win
	StepFinalizeBackups  rdma.Step = "finalize backups" // an INSERT's word is no longer pending
	StepGiveWay          rdma.Step = "give way"         // of two INSERTs of a key one does
	StepCASPrimary       rdma.Step = "cas primary"
	StepFinalize         rdma.Step = "finalize" // an INSERT's word, of the only replica
)

// The steps by which clients get, free and reclaim memory.
const (
	StepAllocate   rdma.Step = "allocate"         // a block, or where nodes do it an object
	StepReadTables rdma.Step = "read tables"      // of blocks
	StepTakeOver   rdma.Step = "take over blocks" // of clients that left
	StepReadHeads  rdma.Step = "read heads"       // of objects
	StepMarkFree   rdma.Step = "mark free"
	StepSetBits    rdma.Step = "set free bits"
	StepReadBits   rdma.Step = "read free bits"
	StepClearBits  rdma.Step = "clear free bits"
	StepWipe       rdma.Step = "wipe block" // it gets another size class
	StepPassOn     rdma.Step = "pass on blocks"
)

// The steps of a view change, of recovery, and of looks at a pool.
const (
	StepProbe       rdma.Step = "probe node" // of which verbs failed
	StepMendSlots   rdma.Step = "mend slots"
	StepMendTables  rdma.Step = "mend tables"
	StepCopy        rdma.Step = "copy to spare"
	StepReadJournal rdma.Step = "read journal"
	StepReadObjects rdma.Step = "read objects"
	StepReadSlots   rdma.Step = "read slots"
	StepFinish      rdma.Step = "finish for the dead"
	StepReadSize    rdma.Step = "read size of index"
	StepCheck       rdma.Step = "check"
	StepCount       rdma.Step = "count"
)

// The steps by which the index grows.
const (
	StepAskSize       rdma.Step = "ask for larger index"
	StepBack          rdma.Step = "back subtable" // with memory
	StepReadSubtable  rdma.Step = "read subtable"
	StepReadKeys      rdma.Step = "read keys"
	StepWriteSubtable rdma.Step = "write subtable"
	StepWriteSize     rdma.Step = "write size of index"
	StepClearMoved    rdma.Step = "clear moved slots"
)

// Steps are all steps of clients and masters.
var Steps = []rdma.Step{
	StepReadSlotAndPair, StepReadBuckets, StepReadPairs, StepWriteReadSlot, StepWriteReadBuckets,
	StepCASBackups, StepReadPrimary, StepFixBackups, StepAwaitWinner, StepCommitLog, StepReadRival,
	StepFinalizeBackups, StepGiveWay, StepCASPrimary, StepFinalize,
	StepAllocate, StepReadTables, StepTakeOver, StepReadHeads, StepMarkFree, StepSetBits, StepReadBits,
	StepClearBits, StepWipe,
	StepPassOn, kit.StepReadCeiling, kit.StepRaiseCeiling,
	StepProbe, StepMendSlots, StepMendTables, StepCopy, StepReadJournal, StepReadObjects, StepReadSlots,
	StepFinish, StepReadSize, StepCheck, StepCount,
	StepAskSize, StepBack, StepReadSubtable, StepReadKeys, StepWriteSubtable, StepWriteSize, StepClearMoved,
}
