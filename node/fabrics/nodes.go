package fabrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/node/telemetry"
)

// What a memory node is made of, and tells of itself.
type (
	// Node is a memory node that is a process.
	Node = memnode.Node
	// NodeConfig shapes one; its Handler is set by Serve.
	NodeConfig = memnode.Config
	// NodeInfo is what a node tells of itself, NodeStats what it has done.
	NodeInfo  = control.NodeInfo
	NodeStats = control.NodeStats
	// Server is what a node tells of a store's server beside it.
	Server = control.Server
)

// What callers of nodes branch on.
var (
	ErrToken = transport.ErrToken
	// ErrConnections is wrapped when a node has as many connections as it takes.
	ErrConnections = transport.ErrConnections
	ErrTLS         = transport.ErrTLS
	ErrFile        = memnode.ErrFile
	ErrMemory      = memnode.ErrMemory
)

// Resolve returns the address of a pool if 'farkv up --fabric tcp NAME', or rdma, started its
// memory nodes on this machine; any other address is returned as it is. Errors wrap local.ErrFolder
// or local.ErrRecord.
func Resolve(addr string) (string, error) {
	at, err := local.Resolve(addr)
	if err != nil {
		return "", fmt.Errorf("look for pool %s: %w", addr, err)
	}
	return cmp.Or(at, addr), nil
}

// UsualName is the name of the pool that is meant where none is named.
const UsualName = "farkv"

// UsualPool returns the pool that is meant where none is named: that of UsualName, on the memory
// nodes that were started under that name on this machine, or else in its shared memory.
func UsualPool() string {
	if at, err := local.Resolve(UsualName); err == nil && at != "" {
		return UsualName
	}
	return Address{Scheme: NamedFabrics()[0], Name: UsualName}.String()
}

// NodeOf returns the configuration of a node that offers so many bytes, with room beside them for
// the usual telemetry.
func NodeOf(memory uint64) NodeConfig {
	return NodeConfig{Memory: memory, Telemetry: telemetry.Bytes(telemetry.Records)}
}

// RegionOf returns the shape of the persistent memory of a node: Config.Region.
func RegionOf(c NodeConfig, power bool) pmem.Options {
	size := c.Bytes()
	return pmem.Options{Memory: size, Table: memnode.TableBytes(size), Power: power}
}

// Serve starts a memory node.
func Serve(c NodeConfig) (*Node, error) {
	c.Handler = node.Serve
	return memnode.Listen(c)
}

// Inspect asks the nodes of an address what they are, those of its pool first, each in its place;
// of a consul: pool those that its record names. errs are those of nodes that do not tell. Where
// this process has the pool open, as f, it is none of the processes that nodes count; f may be nil.
func Inspect(ctx context.Context, a Address, f rdma.Fabric) (infos []NodeInfo, errs []error, err error) {
	o, err := nodesOf(a)
	if err != nil {
		return nil, nil, err
	}
	if own, ok := f.(rdma.ProcessNamer); ok {
		o.Self = own.Process()
	}
	infos, errs = control.Inspect(ctx, o)
	for _, i := range infos {
		if i.Pool != nil && len(i.Pool.Addresses) > len(o.Addresses) { // the address names a part of them
			o.Addresses = i.Pool.Addresses
			infos, errs = control.Inspect(ctx, o)
			break
		}
	}
	return infos, errs, nil
}

// nodesOf returns how to reach the nodes of an address.
func nodesOf(a Address) (control.Options, error) {
	s, err := securityOf(a.Nodes)
	if err != nil {
		return control.Options{}, err
	}
	o := control.Options{Addresses: a.Nodes, Security: s}
	if a.Agent != "" {
		o.Addresses, err = recorded(a)
	}
	return o, err
}

// recorded returns the nodes that a consul: pool's record names.
func recorded(a Address) (nodes []string, err error) {
	_, err = atConsul("look up", a, func(_ *consul.Agent, p *consul.Pool) (rdma.Fabric, error) {
		r, err := p.Record()
		nodes = r.Nodes
		return nil, err
	})
	return nodes, err
}

// parseNodes parses HOST:PORT,...
func parseNodes(scheme, list string) ([]string, error) {
	nodes := strings.Split(list, ",")
	for i, n := range nodes {
		host, port, err := net.SplitHostPort(n)
		if p, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || p == 0 {
			return nil, fmt.Errorf("node %q: want HOST:PORT, as in %s:10.0.0.1:7070,10.0.0.2:7070", n, scheme)
		}
		if slices.Contains(nodes[:i], n) {
			return nil, fmt.Errorf("node %s is named twice", n)
		}
	}
	return nodes, nil
}

func createOnNodes(a Address, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	o, err := nodesOf(a)
	if err != nil {
		return nil, err
	}
	if o.Addresses, o.Witnesses, err = divide(a.Nodes, g.Nodes); err != nil {
		return nil, fmt.Errorf("create %s: %w", a, err)
	}
	return createOver(a.Scheme, o, g, format)
}

func (g Geometry) tcp() control.Geometry {
	return control.Geometry{Nodes: g.Nodes, Memory: g.Memory, Clients: g.Clients, Telemetry: g.Telemetry}
}

// divide tells nodes and witnesses apart: those behind the wanted number hold no memory.
func divide(addresses []string, nodes int) (holding, witnesses []string, err error) {
	if len(addresses) < nodes {
		return nil, nil, fmt.Errorf("%w: the pool is to have %d memory nodes, and there are addresses of %d",
			ErrAddress, nodes, len(addresses))
	}
	return addresses[:nodes], addresses[nodes:], nil
}

// openOnNodes opens a pool by addresses of its nodes. If its registry is kept elsewhere, it is
// opened there.
func openOnNodes(a Address) (rdma.Fabric, error) {
	o, err := nodesOf(a)
	if err != nil {
		return nil, err
	}
	f, err := openOver(a.Scheme, o, DeviceChoice{})
	if registry, ok := registryOf(err); ok {
		return openConsul(registry)
	}
	return f, err
}

// registryOf returns the consul: address that has to open a pool, where err says so.
func registryOf(err error) (Address, bool) {
	var other *control.OtherRegistry
	if !errors.As(err, &other) {
		return Address{}, false
	}
	registry, wrong := Parse(other.Registry)
	return registry, wrong == nil && registry.Agent != ""
}

// NodeOptions are how to open a pool beside a memory node of this process: see Node.Beside.
type NodeOptions = control.Options

// OpenBeside opens the pool that a memory node of this process is in, beside that node. The choice
// is of a device, where the pool needs one.
func OpenBeside(o NodeOptions, c DeviceChoice) (rdma.Fabric, error) {
	f, err := openOver(cmp.Or(o.Fabric, carriers[0].name), o, c)
	if registry, ok := registryOf(err); ok {
		return openNamed(registry, o, c)
	}
	return f, err
}

func removeOnNodes(a Address, force bool) error {
	o, err := nodesOf(a)
	if err == nil {
		err = control.Remove(o, force)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", a, err)
	}
	return nil
}

// Fault is what an administrator breaks at a memory node for a time: see control.Fault.
type Fault = control.Fault

// What bounds a Fault.
const (
	MaxFault = control.MaxFault
	MaxSlow  = control.MaxSlow
)

// Break makes a memory node suffer a fault, or ends it: see control.Break. If the pool's nodes are
// no processes the error wraps rdma.ErrNotSupported.
func Break(ctx context.Context, a Address, node int, f Fault) error {
	if !a.Remote() {
		return fmt.Errorf("break node %d of %s: its nodes are no processes: %w", node, a, rdma.ErrNotSupported)
	}
	o, err := nodesOf(a)
	if err != nil {
		return err
	}
	return control.Break(ctx, o, node, f)
}
