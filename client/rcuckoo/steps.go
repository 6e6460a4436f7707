package rcuckoo

import "github.com/farkv/farkv/node/rdma"

// Steps name batches and calls, one for each purpose: traces show them, and faults of tests refer
// to them.

// The steps of operations.
const (
	// stepReadRows is the covering read of a GET, and the READ of rows under locks when a guess
	// of their levels was wrong.
	stepReadRows rdma.Step = "read rows"
	// stepReadRowsAgain is the second look at the rows of a key that the first did not find.
	stepReadRowsAgain rdma.Step = "read rows again"
	// stepReadExtent reads the value that a ref names.
	stepReadExtent rdma.Step = "read extent"
	// stepReadNeighbours reads rows without locks, for an INSERT that found no path in its cache.
	stepReadNeighbours rdma.Step = "read neighbours"
	// stepLock is a try for the locks of one word. The first has the intent, the last the READs
	// of rows.
	stepLock rdma.Step = "lock"
	// stepWriteRows is the redo, the rows and, at the end, the masked CASes that release the locks.
	stepWriteRows rdma.Step = "write rows"
	// stepWriteBackups is the redo and the rows for backups, or a heartbeat while it waits for
	// them.
	stepWriteBackups rdma.Step = "write backups"
	// stepLetGo releases locks with nothing written.
	stepLetGo rdma.Step = "let go"
	// stepDone ends an intent. After an operation it is not waited for.
	stepDone rdma.Step = "done"
	// stepGiveUp gives an operation of unknown outcome up, or waits for its verbs to backups.
	stepGiveUp rdma.Step = "give up"
	// stepReadIntents reads the intents of all clients, or one, or the state of a word that is
	// stuck.
	stepReadIntents rdma.Step = "read intents"
	// stepReadGrowth reads the growth words of all shards, when a Store is opened.
	stepReadGrowth rdma.Step = "read growth"
	// stepShareGrowth is the FAA by which an INSERT gets a share of the rows to divide.
	stepShareGrowth rdma.Step = "share growth"
	// stepRaiseLevel begins the next level of a table.
	stepRaiseLevel rdma.Step = "raise level"
	// stepAskForASegment is a call: the node backs segments with memory.
	stepAskForASegment rdma.Step = "ask for a segment"
	// stepReadWord reads any one word, such as a role.
	stepReadWord rdma.Step = "read word"
)

// The steps by which clients get and give back extents.
const (
	// stepReadCounts reads how many slabs were handed out.
	stepReadCounts rdma.Step = "read counts"
	// stepAskForASlab is a call: the node hands out a slab.
	stepAskForASlab rdma.Step = "ask for a slab"
	// stepScanMarks reads marks of a slab, or of a unit that is settled.
	stepScanMarks rdma.Step = "scan marks"
	// stepClaimExtents is the hand, and the CASes of the marks that it names.
	stepClaimExtents rdma.Step = "claim extents"
	// stepReadHand reads the hands of a client that is gone.
	stepReadHand rdma.Step = "read hand"
	// stepReadExtents reads the marks and keys of extents in such hands.
	stepReadExtents rdma.Step = "read extents"
	// stepReadRowsOfExtents is a look at the rows of these keys.
	stepReadRowsOfExtents rdma.Step = "read rows of extents"
	// stepFreeExtents frees extents that no row names.
	stepFreeExtents rdma.Step = "free extents"
	// stepHoldUnits is the moves, and the CASes that hold the marks of these units: see carve.go.
	stepHoldUnits rdma.Step = "hold units"
	// stepReleaseUnits frees marks that were held: all but the first of a unit, or the first.
	stepReleaseUnits rdma.Step = "release units"
)

// The steps of a repair, of a change of leader, and of looks at a pool.
const (
	// stepTakeLeases reads repair leases, or takes or renews them.
	stepTakeLeases rdma.Step = "take leases"
	// stepTurnRepairBits sets the repair bits of words, or clears them when a repair is given up.
	stepTurnRepairBits rdma.Step = "turn repair bits"
	// stepReadRedo reads redos on one copy.
	stepReadRedo rdma.Step = "read redo"
	// stepRollForward reads and writes what a redo changes.
	stepRollForward rdma.Step = "roll forward"
	// stepClearLocks ends the suspects' intents and makes lock words zero.
	stepClearLocks rdma.Step = "clear locks"
	// stepFreeLeases frees repair leases.
	stepFreeLeases rdma.Step = "free leases"
	// stepTakeOver reads and writes what makes a copy a leader.
	stepTakeOver rdma.Step = "take over"
	// stepCopyToSpare copies from a leader to a spare.
	stepCopyToSpare rdma.Step = "copy to spare"
	// stepReadTable reads rows, marks or counts of a pool that is checked or measured.
	stepReadTable rdma.Step = "read table"
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
