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
	// The pair's WRITE is in the same batch.
	stepReadBuckets rdma.Step = "read buckets"
	// These are pairs with the key's fingerprint. The look behind the buckets is
	// in the same batch.
	stepReadPairs rdma.Step = "read pairs"
	// The CAS of UPDATE and DELETE.
	stepSwapSlot rdma.Step = "cas slot"
	// The look at lock and pointer, behind a slot's CAS.
	stepLook rdma.Step = "look"
	// An INSERT puts its proposal into an empty slot.
	stepPropose rdma.Step = "propose"
	// This is an INSERT that has proposed. The look is in the same batch.
	stepReadAgain rdma.Step = "read buckets again"
	// An INSERT reads the pairs that may have its key, live or proposed.
	stepReadRivals rdma.Step = "read rivals"
	// An INSERT makes another one's proposal void.
	stepEndRival rdma.Step = "end a rival"
	// An INSERT makes its proposal live.
	stepFinalize rdma.Step = "finalize"
	// A DELETE does it in the background.
	stepClear rdma.Step = "clear a slot"
	// It READs slots again, behind a rehash, or when an outcome is unknown.
	stepFindWord rdma.Step = "find a word"
)

// The steps of the directory, of rehashes and of memory.
const (
	// These are READs of entries and descriptors that a client does not know, or
	// no longer.
	stepReadEntry rdma.Step = "read entry"
	// Only the original has these two: it CASes an entry, and moves a slot into
	// the new subtable and out of the old one.
	stepSwapEntry rdma.Step = "cas entry"
	stepMoveSlot  rdma.Step = "move a slot"
	// A rehash reads the words of the subtable, and then the headers of all
	// pairs.
	stepReadSubtable rdma.Step = "read subtable"
	stepReadHashes   rdma.Step = "read hashes"
	// A rehash writes the new subtable, which no entry names yet.
	stepWriteSubtable rdma.Step = "write subtable"
	// These are slots of keys that have moved.
	stepSweepSlots rdma.Step = "sweep slots"
	// The tables' words say which client has each chunk.
	stepReadTable  rdma.Step = "read a table of chunks"
	stepClaimChunk rdma.Step = "claim a chunk of pairs"
	stepFreeChunk  rdma.Step = "free a chunk of pairs"
	// A client that looks for free blocks reads their headers.
	stepScanHeaders rdma.Step = "scan pairs"
	// These are slots that may name the pairs.
	stepScanSlots rdma.Step = "scan slots"
)

// Steps returns the steps of a store's protocol, with those of its transactions,
// as traces show them. A fault can be set to one of them.
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

// idle are steps of the transactions' packages that no transaction of the
// directory reaches. Each transaction changes two roots, and locks one of them
// first. Scans come behind more rehashes than a small pool has room for. All
// objects are of one size.
var idle = map[string][]rdma.Step{
	RTX: {"validate", "write data", "resolve", "scan a chunk", "scan objects", "reshape a chunk"},
	DTX: {"look again", "validate", "claim a chunk", "free a chunk", "scan a chunk"},
}
