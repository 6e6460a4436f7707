package rcuckoo

import "github.com/farkv/farkv/node/rdma"

// The steps of operations.
const (
	stepReadRows       rdma.Step = "read rows"       // the covering read
	stepReadRowsAgain  rdma.Step = "read rows again" // torn ones, and those of a key that is not there
	stepReadExtent     rdma.Step = "read extent"
	stepReadNeighbours rdma.Step = "read neighbours" // of an INSERT that searches again
	stepLock           rdma.Step = "lock"
	stepWriteRows      rdma.Step = "write rows" // redo, rows and, at the end, the masked CAS that lets go
	stepWriteBackups   rdma.Step = "write backups"
	stepLetGo          rdma.Step = "let go" // of locks, with nothing written
	stepDone           rdma.Step = "done"   // in the background: the intent has ended
	stepGiveUp         rdma.Step = "give up"
	stepReadIntents    rdma.Step = "read intents"
	stepReadGrowth     rdma.Step = "read growth"
	stepShareGrowth    rdma.Step = "share growth"
	stepRaiseLevel     rdma.Step = "raise level"
	stepAskForASegment rdma.Step = "ask for a segment"
	stepReadWord       rdma.Step = "read word"
)

// The steps by which clients get and give back extents.
const (
	stepReadCounts        rdma.Step = "read counts" // of slabs that were handed out
	stepAskForASlab       rdma.Step = "ask for a slab"
	stepScanMarks         rdma.Step = "scan marks"
	stepClaimExtents      rdma.Step = "claim extents"
	stepReadHand          rdma.Step = "read hand" // of the identity's last holder
	stepReadExtents       rdma.Step = "read extents"
	stepReadRowsOfExtents rdma.Step = "read rows of extents"
	stepFreeExtents       rdma.Step = "free extents"
	stepHoldUnits         rdma.Step = "hold units" // of which the class changes
	stepReleaseUnits      rdma.Step = "release units"
)

// The steps of a repair, of a change of leader, and of looks at a pool.
const (
	stepTakeLeases     rdma.Step = "take leases"
	stepTurnRepairBits rdma.Step = "turn repair bits"
	stepReadRedo       rdma.Step = "read redo"
	stepRollForward    rdma.Step = "roll forward"
	stepClearLocks     rdma.Step = "clear locks"
	stepFreeLeases     rdma.Step = "free leases"
	stepTakeOver       rdma.Step = "take over"
	stepCopyToSpare    rdma.Step = "copy to spare"
	stepReadTable      rdma.Step = "read table"
)

// Steps are the steps of the protocol, as traces show them and faults can be set to them.
var Steps = []rdma.Step{
	stepReadRows, stepReadRowsAgain, stepReadExtent, stepReadNeighbours, stepLock, stepWriteRows, stepWriteBackups,
	stepLetGo, stepDone, stepGiveUp, stepReadIntents, stepReadGrowth, stepShareGrowth, stepRaiseLevel,
	stepAskForASegment, stepReadWord,
	stepReadCounts, stepAskForASlab, stepScanMarks, stepClaimExtents, stepReadHand, stepReadExtents,
	stepReadRowsOfExtents, stepFreeExtents, stepHoldUnits, stepReleaseUnits,
	stepTakeLeases, stepTurnRepairBits, stepReadRedo, stepRollForward, stepClearLocks, stepFreeLeases, stepTakeOver,
	stepCopyToSpare, stepReadTable,
}
