package swarm

import (
	"slices"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// The steps of a register.
const (
	// The words of all replicas, and what lies in place: by a READ, or by a WRITE that has not
	// cached its word.
	stepReadWords rdma.Step = "read words"
	// Algorithm 2, with a guessed timestamp.
	stepWriteReadWords rdma.Step = "write and read words"
	// In the background: the tuple is settled, and its value is written in place.
	stepVerify rdma.Step = "verify"
	// With a timestamp that is known to be fresh.
	stepWriteVerified rdma.Step = "write verified"
	// A value out of place.
	stepFetch rdma.Step = "fetch value"
	// A word that named a buffer which was reused.
	stepReadWord rdma.Step = "read word"
	// Algorithm 8: by a READ.
	stepWriteBack rdma.Step = "write back"
	// Algorithm 4.
	stepLock rdma.Step = "lock timestamp"
	// A DELETE's tombstone.
	stepTombstone rdma.Step = "write tombstone"
	// RAW's READ and WRITE.
	stepReadValue  rdma.Step = "read value"
	stepWriteValue rdma.Step = "write value"
)

// The steps of a Store besides those of its registers, its directory and its buffers.
const (
	stepGrow        rdma.Step = "ask for objects"
	stepReadRetired rdma.Step = "read retired objects"
	// The claims, and the words that are made zero.
	stepClaim rdma.Step = "claim objects"
	// In the background, and by sweeps.
	stepRetire rdma.Step = "retire objects"
	stepSweep  rdma.Step = "sweep objects"
	stepCheck  rdma.Step = "check"
	stepCount  rdma.Step = "count"
)

// StoreSteps returns the steps of a Store, as traces show them and faults are set to them. raw:
// of a RAW pool. guesses: some of the clients guess timestamps.
func StoreSteps(raw, guesses bool) []rdma.Step {
	steps := slices.Concat([]rdma.Step{stepTombstone}, directory.Steps, buffers.Steps, []rdma.Step{
		kit.StepReadCeiling, kit.StepRaiseCeiling, kit.StepLowerCeiling,
		stepGrow, stepReadRetired, stepClaim, stepRetire, stepCount,
	})
	if raw {
		steps = slices.DeleteFunc(steps, func(s rdma.Step) bool { return s == directory.StepReadOthers })
		return append(steps, stepReadValue, stepWriteValue, stepCheck)
	}
	if guesses {
		steps = append(steps, stepWriteReadWords, stepVerify, stepLock)
	}
	return append(steps, stepReadWords, stepWriteVerified, stepFetch, stepReadWord, stepWriteBack, stepSweep, stepCheck)
}
