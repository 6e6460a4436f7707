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
	stepReadWords      rdma.Step = "read words"           // of a READ, or of a WRITE that does not know its word; and what is in place
	stepWriteReadWords rdma.Step = "write and read words" // Algorithm 2, with a guessed timestamp
	stepVerify         rdma.Step = "verify"               // in the background: the tuple is settled, and its value goes in place
	stepWriteVerified  rdma.Step = "write verified"       // with a timestamp that is known to be fresh
	stepFetch          rdma.Step = "fetch value"          // out of place
	stepReadWord       rdma.Step = "read word"            // whose buffer was used again
	stepWriteBack      rdma.Step = "write back"           // Algorithm 8: by a READ
	stepLock           rdma.Step = "lock timestamp"       // Algorithm 4
	stepBury           rdma.Step = "bury"                 // a DELETE's tombstone
	stepReadValue      rdma.Step = "read value"           // of RAW
	stepWriteValue     rdma.Step = "write value"          // of RAW
)

// The steps of a Store besides those of its registers, its directory and its buffers.
const (
	stepGrow        rdma.Step = "ask for objects"
	stepReadRetired rdma.Step = "read retired objects"
	stepClaim       rdma.Step = "claim objects"  // and make their words zero
	stepRetire      rdma.Step = "retire objects" // in the background, and by sweeps
	stepSweep       rdma.Step = "sweep objects"
	stepCheck       rdma.Step = "check"
	stepCount       rdma.Step = "count"
)

// StoreSteps returns the steps of a Store, as traces show them and faults can be set to them: of
// RAW's objects, which have no words, or of such as have them, with clients that guess timestamps
// or without.
func StoreSteps(raw, guesses bool) []rdma.Step {
	steps := slices.Concat([]rdma.Step{stepBury}, directory.Steps, buffers.Steps, []rdma.Step{
		kit.StepReadCeiling, kit.StepRaiseCeiling, kit.StepLowerCeiling, stepGrow, stepReadRetired, stepClaim, stepRetire, stepCount,
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
