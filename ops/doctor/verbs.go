package doctor

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/format"
)

// libibverbs reports whether programs find the devices, of which the kernel has some or none; err
// is why not all of them were found.
func libibverbs(t *Topic, devices bool, found int, err error) {
	switch {
	case err == nil:
		t.ok("libibverbs", "built in")
	case errors.Is(err, fabrics.ErrNotBuilt):
		t.missing("libibverbs", "this farkv is built without it, and cannot tell of atomics, device memory and queues",
			"apt-get install libibverbs-dev rdma-core, and go build -tags ibverbs ./ops/farkv")
	case errors.Is(err, fabrics.ErrNoDevice) && !devices:
		t.ok("libibverbs", "built in")
	case errors.Is(err, fabrics.ErrNoDevice):
		t.missing("libibverbs", "built in, and finds no device: "+err.Error(),
			"apt-get install ibverbs-providers: it has a driver for each kind of device")
	case found > 0:
		t.warn("libibverbs", "built in, and a device does not answer: "+err.Error(), "")
	default:
		t.missing("libibverbs", "built in, and a device does not answer: "+err.Error(), "")
	}
}

// capabilities tells what a device can do, and what farkv does instead where it cannot; false:
// nothing could be done instead.
func capabilities(t *Topic, c *fabrics.RDMADevice) bool {
	for _, p := range c.Ports {
		if p.State == "ACTIVE" {
			t.ok("MTU", fmt.Sprintf("%d in use at port %d", p.MTU, p.Port))
		}
	}
	can := func(has bool, what, found, instead string) {
		if has {
			t.ok(what, found)
		} else {
			t.warn(what, instead, "")
		}
	}
	with := map[string]string{"HCA": "CAS and FAA, atomic among the device's own verbs",
		"global": "CAS and FAA, atomic with the processors', too"}
	atomics := with[c.Atomics]
	can(atomics != "", "atomics", atomics, c.Atomics+": stores need compare and swap, and this device is of no use")
	can(c.MaskedAtomics, "masked CAS", "in the device", "none: made of plain ones, at a trip more for each wrong guess")
	can(c.DeviceMemory > 0, "device memory", format.Size(c.DeviceMemory), "none: main memory stands for it")
	can(c.SharedReceive > 0, "shared receive queues", format.Count(c.SharedReceive), "none: no messages")
	striding := cmp.Or(c.MultiPacket, "not known")
	if striding == "yes" {
		striding = "of raw packets only"
	}
	t.ok("striding queues", striding+": a message takes an entry")
	shared := cmp.Or(c.SharedPackets, "not known")
	if shared != "no" {
		shared += ", by a probe that has never run; not used"
	}
	t.ok("multi-packet queues", shared+": a ring has a shared receive queue for each size of its places")
	t.ok("limits", fmt.Sprintf("%s queue pairs of %s requests, %d READs and atomics at a time, %s regions",
		format.Count(c.QueuePair), format.Count(c.Requests), c.RdAtomic, format.Count(c.Regions)))
	return atomics != ""
}
