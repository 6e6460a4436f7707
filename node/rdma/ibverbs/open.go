package ibverbs

import (
	"errors"
	"fmt"
	"net"

	"github.com/farkv/farkv/node/rdma/control"
)

// ErrNotBuilt is wrapped when this program was built without libibverbs.
var ErrNotBuilt = errors.New("this program was built without libibverbs " +
	"(hint: install libibverbs-dev and a C compiler, then build with 'go build -tags ibverbs')")

// Info is what a device is and can do: see Probe. It is what 'farkv doctor' shows; nothing else
// goes by it.
type Info struct {
	Device    string
	Firmware  string
	Vendor    uint32
	Ports     []Port
	QueuePair int    // queue pairs at most
	Requests  int    // work requests of one
	RdAtomic  int    // READs and atomics in flight of one, as the side that executes them
	Atomics   string // "none", "HCA" (with those of the same device) or "global" (with the processor's, too)
	Regions   int    // registered memories
	RegionMax uint64 // bytes of one
	// Capabilities of which farkv uses something else where they are missing.
	MaskedAtomics bool   // else masked compare and swaps are made of plain ones
	DeviceMemory  uint64 // bytes; 0: the node's memory does
	SharedReceive int    // shared receive queues
	// whether receive queues of raw packets take many an entry: "yes", "no", or why that is not
	// known
	MultiPacket string
	// the same of shared receive queues of messages, which farkv does not use: by a probe that has
	// never run
	SharedPackets string
}

// Probe tells what devices this machine has. The error wraps ErrNotBuilt, or ErrNoDevice when there
// is none; beside those that tell it says why others do not.
func Probe() ([]Info, error) { return probe() }

// OpenDevice opens the device of a memory node that listens on the given HOST:PORT. Without a host
// in it, or with a name, the device is chosen without regard to the address. The error wraps
// ErrNotBuilt, or ErrNoDevice where there is none. The caller closes the device behind the node.
func OpenDevice(c Choice, listen string) (*Device, error) {
	var local net.IP
	if host, _, err := net.SplitHostPort(listen); err == nil {
		local = net.ParseIP(host)
	}
	a, err := openAdapter(c, local)
	if err != nil {
		return nil, fmt.Errorf("open the node's RDMA device: %w", err)
	}
	return &Device{a}, nil
}

// Open opens a pool with devices in its nodes. Errors are those of control.Open, or wrap
// ErrNotBuilt or ErrNoDevice. The device comes first: without one the pool's nodes are not asked. A
// pool of another fabric is refused: see control.OtherFabric.
func Open(o control.Options, own Options) (*Fabric, error) {
	a, err := deviceFor(o, own)
	if err != nil {
		return nil, err
	}
	o.Fabric = Name
	p, err := control.Open(o)
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return newFabric(p, a, own), nil
}

// Create makes a pool on nodes that have devices, and opens it: see control.Create.
//
// format is called when the nodes have the pool and no other process can open it yet. If it fails,
// or this process dies in it, the nodes give the pool up. The fabric belongs to the caller once
// Create returns without an error.
func Create(o control.Options, g control.Geometry, own Options, format func(*Fabric) error) (*Fabric, error) {
	a, err := deviceFor(o, own)
	if err != nil {
		return nil, err
	}
	o.Fabric = Name
	var f *Fabric
	p, err := control.Create(o, g, func(p *control.Pool) error {
		f = newFabric(p, a, own)
		if format == nil {
			return nil
		}
		return format(f)
	})
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	if f == nil || f.Pool != p {
		panic("ibverbs: a pool was made and never formatted")
	}
	return f, nil
}

// deviceFor opens the device by which this machine reaches the pool's first node: the others are
// taken to be on the same network. A Choice that names a device goes before that.
func deviceFor(o control.Options, own Options) (adapter, error) {
	var local net.IP
	if len(o.Addresses) > 0 {
		local = towards(o.Addresses[0])
	}
	a, err := openAdapter(own.Choice, local)
	if err != nil {
		return nil, fmt.Errorf("open an RDMA device: %w", err)
	}
	return a, nil
}
