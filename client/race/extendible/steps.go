package extendible

import (
	"slices"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
)

// The steps of operations.
const (
	stepReadBuckets rdma.Step = "read buckets" // with the pair's WRITE
	stepReadPairs   rdma.Step = "read pairs"   // of the same fingerprint, and the look behind the buckets
	stepSwapSlot    rdma.Step = "cas slot"
	stepLook        rdma.Step = "look" // at lock and pointer, behind a slot's CAS
	stepPropose     rdma.Step = "propose"
	stepReadAgain   rdma.Step = "read buckets again" // of an INSERT that has proposed, and the look
	stepReadRivals  rdma.Step = "read rivals"
	stepEndRival    rdma.Step = "end a rival"
	stepFinalize    rdma.Step = "finalize"
	stepClear       rdma.Step = "clear a slot" // of a DELETE: in the background
	stepFindWord    rdma.Step = "find a word"  // behind a rehash
)

// The steps of the directory, of rehashes and of memory.
const (
	stepReadEntry     rdma.Step = "read entry"
	stepSwapEntry     rdma.Step = "cas entry"   // of the original
	stepMoveSlot      rdma.Step = "move a slot" // into the new subtable, and out of the old one
	stepReadSubtable  rdma.Step = "read subtable"
	stepReadHashes    rdma.Step = "read hashes"
	stepWriteSubtable rdma.Step = "write subtable"
	stepSweepSlots    rdma.Step = "sweep slots" // of keys that have moved
	stepReadTable     rdma.Step = "read a table of chunks"
	stepClaimChunk    rdma.Step = "claim a chunk of pairs"
	stepFreeChunk     rdma.Step = "free a chunk of pairs"
	stepScanHeaders   rdma.Step = "scan pairs"
	stepScanSlots     rdma.Step = "scan slots" // that pairs say they are in
)

// Steps returns the steps of a store's protocol, as traces show them and faults can be set to them,
// with those of its transactions.
func Steps(format string) []rdma.Step {
	own := []rdma.Step{
		stepReadBuckets, stepReadPairs, stepSwapSlot, stepLook, stepPropose, stepReadAgain, stepReadRivals,
		stepEndRival,
		stepFinalize, stepClear, stepFindWord, stepReadEntry, stepReadSubtable, stepReadHashes, stepWriteSubtable,
		stepSweepSlots, stepReadTable, stepClaimChunk, stepFreeChunk, stepScanHeaders, stepScanSlots,
	}
	transactions := []rdma.Step{stepSwapEntry, stepMoveSlot}
	switch format {
	case RTX:
		transactions = append([]rdma.Step{kit.StepReadCeiling, kit.StepRaiseCeiling}, rtx.Steps...)
	case DTX:
		transactions = append([]rdma.Step{kit.StepReadCeiling, kit.StepRaiseCeiling}, dtx.Steps...)
	}
	transactions = slices.DeleteFunc(transactions, func(s rdma.Step) bool { return slices.Contains(idle[format], s) })
	return append(own, transactions...)
}

// idle are steps of transactions that none does which changes two roots, and locks one of them
// first; scans come behind more rehashes than a small pool has room for, and all objects are of one
// size.
var idle = map[string][]rdma.Step{
	RTX: {"validate", "write data", "resolve", "scan a chunk", "scan objects", "reshape a chunk"},
	DTX: {"look again", "validate", "claim a chunk", "free a chunk", "scan a chunk"},
}
