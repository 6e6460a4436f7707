package dtx

import "github.com/farkv/farkv/node/rdma"

// The steps of transactions.
const (
	stepRead rdma.Step = "read an object"
	// It reads the locks of what was read before, behind a READ.
	stepAgain    rdma.Step = "look again"
	stepValidate rdma.Step = "validate"
	stepLock     rdma.Step = "lock"
	// It decides.
	stepLog    rdma.Step = "write the log"
	stepCommit rdma.Step = "write and unlock"
	// It releases the locks of a transaction that is not committed.
	stepLetGo rdma.Step = "let go"
)

// The steps of waits, recovery and memory.
const (
	stepAwait     rdma.Step = "await a lock"
	stepReadUnder rdma.Step = "read a version under a lock"
	// It releases a lock of a transaction that is over.
	stepFreeLock   rdma.Step = "free a lock"
	stepClaim      rdma.Step = "claim a log"
	stepReadLog    rdma.Step = "read a log"
	stepReadLocks  rdma.Step = "read the locks of a log"
	stepReplay     rdma.Step = "replay"
	stepEnd        rdma.Step = "end a client"
	stepYieldLog   rdma.Step = "yield a log"
	stepReadTable  rdma.Step = "read a table"
	stepClaimChunk rdma.Step = "claim a chunk"
	stepFreeChunk  rdma.Step = "free a chunk"
	stepScanChunk  rdma.Step = "scan a chunk"
)

// Steps are the steps of the protocol, as traces show them. A fault can be set to
// one of them.
var Steps = []rdma.Step{
	stepRead, stepAgain, stepValidate, stepLock, stepLog, stepCommit, stepLetGo, stepAwait, stepReadUnder,
	stepFreeLock, stepClaim, stepReadLog,
	stepReadLocks, stepReplay, stepEnd, stepYieldLog, stepReadTable, stepClaimChunk, stepFreeChunk,
	stepScanChunk,
}
