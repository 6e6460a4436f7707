package simulate

import (
	"context"
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestCrowd: each of many clients that update finds blocks of its own, in memory that is sized for
// them or that is given.
func TestCrowd(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	crowd := func(memory uint64) Config {
		c := config(t, "ycsb-a", 320, 2000)
		c.WarmUp, c.Pool.Memory = 30_000, memory
		return c
	}
	for _, memory := range []uint64{0, 256 << 20} {
		if r := simulated(t, crowd(memory)); r.Failed > 0 || r.Operations != 2000 {
			t.Errorf("with %d bytes a node %d of %d operations failed: %s", memory, r.Failed, r.Operations, r.Error)
		}
	}
	if r, err := Run(context.Background(), crowd(6<<20)); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("6 MiB a node: %v, %v", r, err)
	}
}
