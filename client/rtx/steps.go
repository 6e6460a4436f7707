package rtx

import "github.com/farkv/farkv/node/rdma"

// The steps of transactions.
const (
	stepReadMeta    rdma.Step = "read metadata"
	stepReadData    rdma.Step = "read data"     // and again the metadata of all that was read before
	stepLockEarly   rdma.Step = "lock early"    // Tx.Lock
	stepLock        rdma.Step = "lock"          // with the data, and the log if there is one
	stepValidate    rdma.Step = "validate"      // what was read and is not changed
	stepDecide      rdma.Step = "decide"        // INIT -> DOING: it is committed
	stepSwapPointer rdma.Step = "swap pointers" // of OPT1 it is what decides
	stepUnlock      rdma.Step = "unlock"        // DOING -> DONE with it
	stepWriteData   rdma.Step = "write data"    // OPT1's, of an object that was locked early
	stepLetGo       rdma.Step = "let go"        // of locks, of a transaction that is not committed
	stepRenew       rdma.Step = "renew"         // Tx.Renew
)

// The steps of repairs and recovery.
const (
	stepAwait        rdma.Step = "await a lock" // and make it wanted
	stepFreeLock     rdma.Step = "free a lock"  // of a transaction that is over
	stepAbort        rdma.Step = "abort another"
	stepSteal        rdma.Step = "steal a pointer" // OPT1's repair
	stepReadLog      rdma.Step = "read a log"
	stepTakeOver     rdma.Step = "take a commit over"
	stepRecover      rdma.Step = "recover a client"
	stepResolve      rdma.Step = "resolve"
	stepReadTable    rdma.Step = "read a table"
	stepClaimChunk   rdma.Step = "claim a chunk"
	stepFreeChunk    rdma.Step = "free a chunk"
	stepScanChunk    rdma.Step = "scan a chunk"
	stepReshapeChunk rdma.Step = "reshape a chunk" // to buffers of another size
	stepScanObjects  rdma.Step = "scan objects"    // that buffers say they are of
)

// Steps are the steps of the protocol, as traces show them. A fault can be set to
// one of them.
var Steps = []rdma.Step{
	stepReadMeta, stepReadData, stepLockEarly, stepLock, stepValidate, stepDecide, stepSwapPointer, stepUnlock,
	stepWriteData,
	stepLetGo, stepRenew, stepAwait, stepFreeLock, stepAbort, stepSteal, stepReadLog, stepTakeOver, stepRecover,
	stepResolve, stepReadTable, stepClaimChunk, stepFreeChunk, stepScanChunk, stepScanObjects, stepReshapeChunk,
}
