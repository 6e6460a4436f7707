package fabrics

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// What the verbs of pools on memory nodes go over, as in addresses and in the records of consul: pools.
const (
	overTCP  = "tcp"
	overRDMA = ibverbs.Name
)

// MetaFabric is what a node's registration with Consul tells the fabric of its device by.
const MetaFabric = "fabric"

// The environment in which clients choose their RDMA device. What is not set is chosen: a port that is up, and that reaches the
// pool, if there is such.
const (
	EnvDevice = "FARKV_RDMA_DEVICE" // its name, such as mlx5_0
	EnvPort   = "FARKV_RDMA_PORT"   // from 1
	EnvGID    = "FARKV_RDMA_GID"    // index of one of the port's addresses, from 0
)

// ErrDevice is wrapped when an RDMA device is chosen in words that are not understood.
var ErrDevice = errors.New("bad choice of an RDMA device")

// DeviceChoice chooses an RDMA device, a port and an address of it in the words of an operator, which are described at
// EnvDevice. What is "" the environment chooses.
type DeviceChoice struct{ Device, Port, GID string }

// parse returns the choice, and what the environment says where there is none.
func (c DeviceChoice) parse() (own ibverbs.Choice, err error) {
	own.Device = c.Device
	if own.Device == "" {
		own.Device = os.Getenv(EnvDevice)
	}
	if own.Port, err = number("--port", c.Port, EnvPort, 1); err != nil {
		return own, err
	}
	gid, err := number("--gid", c.GID, EnvGID, 0)
	own.GID = gid + 1
	return own, err
}

// most bounds the numbers of ports and of GIDs: libibverbs' are of 8 bits, and of 16.
const most = 1<<16 - 1

// number reads a number that is a flag's, or else a variable's; least-1: neither is set.
func number(flag, text, variable string, least int) (int, error) {
	name := flag
	if text == "" {
		name, text = "$"+variable, os.Getenv(variable)
	}
	if text == "" {
		return least - 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%w: %s %q: want a number from %d (hint: 'farkv doctor' lists devices, ports and GIDs)", ErrDevice, name,
			text, least)
	}
	return n, nil
}

// Device is an open RDMA device of a memory node: its NodeConfig.Device.
type Device = ibverbs.Device

// OpenDevice opens an RDMA device for a memory node that listens on the given HOST:PORT. Errors wrap ErrNotBuilt, ErrDevice or
// ErrNoDevice.
func OpenDevice(c DeviceChoice, listen string) (*Device, error) {
	own, err := c.parse()
	if err != nil {
		return nil, err
	}
	return ibverbs.OpenDevice(own, listen)
}

// Lacks tells why this program cannot use a fabric of memory nodes, "tcp" or "rdma"; nil: it can. Errors wrap ErrNotBuilt or
// rdma.ErrNotSupported.
func Lacks(fabric string) error {
	switch {
	case fabric == overRDMA && !ibverbs.Built:
		return ErrNotBuilt
	case fabric != overTCP && fabric != overRDMA:
		return otherFabric(fabric)
	}
	return nil
}

// DeviceStats count what workers ask of their device.
type DeviceStats = rdma.DeviceStats

// DeviceOf tells what the workers of an open pool asked of their device so far, and which device and port that is; false: its
// verbs go over none.
func DeviceOf(f rdma.Fabric) (s DeviceStats, device string, port int, ok bool) {
	over, ok := f.(rdma.DeviceReporter)
	if !ok {
		return s, "", 0, false
	}
	device, port = over.Port()
	return over.Stats(), device, port, true
}

// nodeFabric is a fabric whose memory nodes are processes. Consul is told which of them it reaches.
type nodeFabric interface {
	rdma.Fabric
	rdma.NodeMonitor
	rdma.CloseNotifier
}

// createOver makes a pool whose verbs go over a fabric.
func createOver(fabric string, o tcp.Options, g tcp.Geometry, format func(rdma.Fabric) error) (nodeFabric, error) {
	switch fabric {
	case overTCP:
		return onNodes(tcp.Create(o, g, func(f *tcp.Fabric) error { return format(f) }))
	case overRDMA:
		own, err := DeviceChoice{}.parse()
		if err != nil {
			return nil, err
		}
		return onNodes(ibverbs.Create(o, g, ibverbs.Options{Choice: own}, func(f *ibverbs.Fabric) error { return format(f) }))
	}
	return nil, otherFabric(fabric)
}

// openOver opens a pool whose verbs go over a fabric.
func openOver(fabric string, o tcp.Options) (nodeFabric, error) {
	switch fabric {
	case overTCP:
		return onNodes(tcp.Open(o))
	case overRDMA:
		own, err := DeviceChoice{}.parse()
		if err != nil {
			return nil, err
		}
		return onNodes(ibverbs.Open(o, ibverbs.Options{Choice: own}))
	}
	return nil, otherFabric(fabric)
}

func otherFabric(fabric string) error {
	return fmt.Errorf("its verbs go over %s: this version knows %s and %s: %w", fabric, overTCP, overRDMA, rdma.ErrNotSupported)
}

// onNodes keeps a nil pointer from becoming a nodeFabric that is not nil.
func onNodes[F nodeFabric](f F, err error) (nodeFabric, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
