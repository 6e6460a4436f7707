package fabrics

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/ibverbs"
)

// RDMADevice is what an RDMA device is and can do, as libibverbs tells.
type RDMADevice = ibverbs.Info

// What callers of ProbeRDMA branch on.
var (
	ErrNotBuilt = ibverbs.ErrNotBuilt
	ErrNoDevice = ibverbs.ErrNoDevice
)

// ProbeRDMA tells what RDMA devices this machine has. Errors wrap ErrNotBuilt, or ErrNoDevice when
// there is none; beside those that tell it says why others do not.
func ProbeRDMA() ([]RDMADevice, error) { return ibverbs.Probe() }

// LibraryCalls returns how often the workers of a fabric called libibverbs for verbs: this one,
// which asks, so far, and others as far as they have told; false: the fabric has no device.
func LibraryCalls(f rdma.Fabric, worker rdma.Endpoint) (calls uint64, ok bool) {
	told, _, _, ok := DeviceOf(f)
	if !ok {
		return 0, false
	}
	calls = told.Calls()
	if own, ok := worker.(rdma.DeviceWorker); ok {
		calls += own.Untold().Calls()
	}
	return calls, true
}
