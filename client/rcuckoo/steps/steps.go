// Package steps names batches and calls of RCuckoo, one for each purpose: traces show the names,
// and faults of tests refer to them.
package steps

import "github.com/farkv/farkv/node/rdma"

// Steps name batches and calls, one for each purpose: traces show them, and faults of tests refer
// to them.

// The steps of operations.
const (
	// ReadRows is the covering read of a GET, and the READ of rows under locks when a guess
	// of their levels was wrong.
	ReadRows rdma.Step = "read rows"
	// ReadRowsAgain is the second look at the rows of a key that the first did not find.
	ReadRowsAgain rdma.Step = "read rows again"
	// ReadExtent reads the value that a ref names.
	ReadExtent rdma.Step = "read extent"
	// ReadNeighbours reads rows without locks, for an INSERT that found no path in its cache.
	ReadNeighbours rdma.Step = "read neighbours"
	// Lock is a try for the locks of one word. The first has the intent, the last the READs
	// of rows.
	Lock rdma.Step = "lock"
	// WriteRows is the redo, the rows and, at the end, the masked CASes that release the locks.
	WriteRows rdma.Step = "write rows"
	// WriteBackups is the redo and the rows for backups, or a heartbeat while it waits for
	// them.
	WriteBackups rdma.Step = "write backups"
	// LetGo releases locks with nothing written.
	LetGo rdma.Step = "let go"
	// Done ends an intent. After an operation it is not waited for.
	Done rdma.Step = "done"
	// GiveUp gives an operation of unknown outcome up, or waits for its verbs to backups.
	GiveUp rdma.Step = "give up"
	// ReadIntents reads the intents of all clients, or one, or the state of a word that is
	// stuck.
	ReadIntents rdma.Step = "read intents"
	// ReadGrowth reads the growth words of all shards, when a Store is opened.
	ReadGrowth rdma.Step = "read growth"
	// ShareGrowth is the FAA by which an INSERT gets a share of the rows to divide.
	ShareGrowth rdma.Step = "share growth"
	// RaiseLevel begins the next level of a table.
	RaiseLevel rdma.Step = "raise level"
	// AskForASegment is a call: the node backs segments with memory.
	AskForASegment rdma.Step = "ask for a segment"
	// ReadWord reads any one word, such as a role.
	ReadWord rdma.Step = "read word"
)

// The steps by which clients get and give back extents.
const (
	// ReadCounts reads how many slabs were handed out.
	ReadCounts rdma.Step = "read counts"
	// AskForASlab is a call: the node hands out a slab.
	AskForASlab rdma.Step = "ask for a slab"
	// ScanMarks reads marks of a slab, or of a unit that is settled.
	ScanMarks rdma.Step = "scan marks"
	// ClaimExtents is the claim list, and the CASes of the marks that it names.
	ClaimExtents rdma.Step = "claim extents"
	// ReadClaims reads the claim lists of a client that is gone.
	ReadClaims rdma.Step = "read claims"
	// ReadExtents reads the marks and keys of extents in such claim lists.
	ReadExtents rdma.Step = "read extents"
	// ReadRowsOfExtents is a look at the rows of these keys.
	ReadRowsOfExtents rdma.Step = "read rows of extents"
	// FreeExtents frees extents that no row names.
	FreeExtents rdma.Step = "free extents"
	// HoldUnits is the moves, and the CASes that hold the marks of these units: see carve.go of
	// package extents.
	HoldUnits rdma.Step = "hold units"
	// ReleaseUnits frees marks that were held: all but the first of a unit, or the first.
	ReleaseUnits rdma.Step = "release units"
)

// The steps of a repair, of a change of leader, and of looks at a pool.
const (
	// TakeLeases reads repair leases, or takes or renews them.
	TakeLeases rdma.Step = "take leases"
	// TurnRepairBits sets the repair bits of words, or clears them when a repair is given up.
	TurnRepairBits rdma.Step = "turn repair bits"
	// ReadRedo reads redos on one copy.
	ReadRedo rdma.Step = "read redo"
	// RollForward reads and writes what a redo changes.
	RollForward rdma.Step = "roll forward"
	// ClearLocks ends the suspects' intents and makes lock words zero.
	ClearLocks rdma.Step = "clear locks"
	// FreeLeases frees repair leases.
	FreeLeases rdma.Step = "free leases"
	// TakeOver reads and writes what makes a copy a leader.
	TakeOver rdma.Step = "take over"
	// CopyToSpare copies from a leader to a spare.
	CopyToSpare rdma.Step = "copy to spare"
	// ReadTable reads rows, marks or counts of a pool that is checked or measured.
	ReadTable rdma.Step = "read table"
)

// All are the steps of the protocol, as traces show them and faults can be set to them.
var All = []rdma.Step{
	ReadRows, ReadRowsAgain, ReadExtent, ReadNeighbours, Lock, WriteRows, WriteBackups,
	LetGo, Done, GiveUp, ReadIntents, ReadGrowth, ShareGrowth, RaiseLevel,
	AskForASegment, ReadWord,
	ReadCounts, AskForASlab, ScanMarks, ClaimExtents, ReadClaims, ReadExtents,
	ReadRowsOfExtents, FreeExtents, HoldUnits, ReleaseUnits,
	TakeLeases, TurnRepairBits, ReadRedo, RollForward, ClearLocks, FreeLeases, TakeOver,
	CopyToSpare, ReadTable,
}
