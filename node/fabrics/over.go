package fabrics

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// A carrier is a row of the table of what the verbs of pools on memory nodes go over, by its name
// in addresses and in the records of consul: pools.
type carrier struct {
	name   string
	create func(o control.Options, g Geometry, format func(rdma.Fabric) error) (nodeFabric, error)
	open   func(o control.Options, c DeviceChoice) (nodeFabric, error)
	built  bool         // this program has it
	device bool         // its nodes have an RDMA device
	lacks  func() error // see scheme
}

// carriers is the table. Every node serves pools over the first one, whatever it was started for.
var carriers = []carrier{
	{name: "tcp", create: createTCP, open: openTCP, built: true},
	{name: ibverbs.Name, create: createVerbs, open: openVerbs, built: ibverbs.Built, device: true, lacks: lacksDevice},
}

// carrierOf returns a row. Errors wrap ErrNotBuilt or rdma.ErrNotSupported.
func carrierOf(fabric string) (carrier, error) {
	var names []string
	for _, c := range carriers {
		switch {
		case c.name == fabric && !c.built:
			return carrier{}, ErrNotBuilt
		case c.name == fabric:
			return c, nil
		}
		names = append(names, c.name)
	}
	return carrier{}, fmt.Errorf("its verbs go over %s: this version knows %s: %w", fabric,
		strings.Join(names, " and "),
		rdma.ErrNotSupported)
}

// schemesOnNodes returns the rows of schemes for pools on memory nodes.
func schemesOnNodes() (rows []scheme) {
	for _, c := range carriers {
		rows = append(rows, scheme{
			name: c.name, form: c.name + ":HOST:PORT,...", create: createOnNodes, open: openOnNodes,
			remove: removeOnNodes,
			parse: func(rest string) (Address, error) {
				nodes, err := parseNodes(c.name, rest)
				if err == nil {
					err = Lacks(c.name)
				}
				return Address{Nodes: nodes}, err
			},
			lacks: c.lacks,
		})
	}
	return rows
}

// NodeFabrics returns the fabrics that memory nodes may be started for; the first is one that all
// of them serve.
func NodeFabrics() (names []string) {
	for _, c := range carriers {
		names = append(names, c.name)
	}
	return names
}

// NeedsDevice reports whether the verbs of a fabric go over an RDMA device.
func NeedsDevice(fabric string) bool {
	return slices.ContainsFunc(carriers, func(c carrier) bool { return c.name == fabric && c.device })
}

// MetaFabric is what a node's registration with Consul tells the fabric of its device by.
const MetaFabric = "fabric"

// The environment in which clients choose their RDMA device. What is not set is chosen: a port that
// is up, and that reaches the pool, if there is such.
const (
	EnvDevice = "FARKV_RDMA_DEVICE" // its name, such as mlx5_0
	EnvPort   = "FARKV_RDMA_PORT"   // from 1
	EnvGID    = "FARKV_RDMA_GID"    // index of one of the port's addresses, from 0
)

// ErrDevice is wrapped when an RDMA device is chosen in words that are not understood.
var ErrDevice = errors.New("bad choice of an RDMA device")

// DeviceChoice chooses an RDMA device, a port and an address of it in the words of an operator,
// which are described at EnvDevice. What is "" the environment chooses.
type DeviceChoice struct{ Device, Port, GID string }

// parse returns the choice, and what the environment says where there is none.
func (c DeviceChoice) parse() (own ibverbs.Choice, err error) {
	own.Device = cmp.Or(c.Device, os.Getenv(EnvDevice))
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
		return 0, fmt.Errorf("%w: %s %q: want a number from %d (hint: 'farkv doctor' lists devices, ports and GIDs)",
			ErrDevice, name,
			text, least)
	}
	return n, nil
}

// Device is an open RDMA device of a memory node: its NodeConfig.Device.
type Device = ibverbs.Device

// OpenDevice opens the RDMA device of a memory node that is started for a fabric and listens on the
// given HOST:PORT; nil: it needs none. Errors wrap ErrNotBuilt, ErrDevice or ErrNoDevice.
func OpenDevice(fabric string, c DeviceChoice, listen string) (*Device, error) {
	if !NeedsDevice(fabric) {
		return nil, nil
	}
	own, err := c.parse()
	if err != nil {
		return nil, err
	}
	return ibverbs.OpenDevice(own, listen)
}

// Lacks returns why this program cannot use a fabric of memory nodes; nil: it can. Errors wrap
// ErrNotBuilt or rdma.ErrNotSupported.
func Lacks(fabric string) error {
	_, err := carrierOf(fabric)
	return err
}

// DeviceStats count what workers ask of their device.
type DeviceStats = rdma.DeviceStats

// DeviceOf tells what the workers of an open pool asked of their device so far, and which device
// and port that is; false: its verbs go over none.
func DeviceOf(f rdma.Fabric) (s DeviceStats, device string, port int, ok bool) {
	over, ok := f.(rdma.DeviceReporter)
	if !ok {
		return s, "", 0, false
	}
	device, port = over.Port()
	return over.Stats(), device, port, true
}

// nodeFabric is a fabric with memory nodes that are processes. Consul is told which of them it
// reaches.
type nodeFabric interface {
	rdma.Fabric
	rdma.NodeMonitor
	rdma.CloseNotifier
}

func createTCP(o control.Options, g Geometry, format func(rdma.Fabric) error) (nodeFabric, error) {
	return onNodes(tcp.Create(o, g.tcp(), func(f *tcp.Fabric) error { return format(f) }))
}

func openTCP(o control.Options, _ DeviceChoice) (nodeFabric, error) { return onNodes(tcp.Open(o)) }

func createVerbs(o control.Options, g Geometry, format func(rdma.Fabric) error) (nodeFabric, error) {
	own, err := DeviceChoice{}.parse()
	if err != nil {
		return nil, err
	}
	return onNodes(ibverbs.Create(o, g.tcp(), ibverbs.Options{Choice: own},
		func(f *ibverbs.Fabric) error { return format(f) }))
}

func openVerbs(o control.Options, c DeviceChoice) (nodeFabric, error) {
	own, err := c.parse()
	if err != nil {
		return nil, err
	}
	return onNodes(ibverbs.Open(o, ibverbs.Options{Choice: own}))
}

// lacksDevice returns why there is no device that tells what it is.
func lacksDevice() error {
	if all, err := ProbeRDMA(); len(all) == 0 {
		return err
	}
	return nil
}

// createOver makes a pool with verbs that go over a fabric.
func createOver(fabric string, o control.Options, g Geometry, format func(rdma.Fabric) error) (nodeFabric, error) {
	c, err := carrierOf(fabric)
	if err != nil {
		return nil, err
	}
	return c.create(o, g, format)
}

// openOver opens a pool with verbs that go over a fabric.
func openOver(fabric string, o control.Options, choice DeviceChoice) (nodeFabric, error) {
	c, err := carrierOf(fabric)
	if err != nil {
		return nil, err
	}
	return c.open(o, choice)
}

// onNodes keeps a nil pointer from becoming a nodeFabric that is not nil.
func onNodes[F nodeFabric](f F, err error) (nodeFabric, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
