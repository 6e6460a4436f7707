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

// ProbeRDMA tells what RDMA devices this machine has. Errors wrap ErrNotBuilt, or ErrNoDevice when there is none; devices that
// were asked before one that failed are returned beside it.
func ProbeRDMA() ([]RDMADevice, error) { return ibverbs.Probe() }

// LibraryCalls returns how often a fabric's workers called libibverbs for verbs, as far as they have told, which they do when
// they wait; false: the fabric has no device.
func LibraryCalls(f rdma.Fabric) (calls uint64, ok bool) {
	if v, ok := f.(interface{ Stats() ibverbs.Stats }); ok {
		return v.Stats().Calls(), true
	}
	return 0, false
}
