// Package fabrics turns an address into an open fabric. With its tests and the mains it is the only place that names
// the fabrics.
//
//	mem:                     a private pool in this process's memory
//	shm:NAME                 a pool that this user's processes of this machine share
//	shared:NAME              the same, of a file that other users may change: see shm.Shared
//	tcp:HOST:PORT,...        a pool on memory nodes that are processes
//	rdma:HOST:PORT,...       the same, but that verbs go from RNIC to RNIC
//	consul:HOST:PORT/POOL    one of these, found by its name in the Consul of that agent, which keeps its board
//	NAME                     a pool of this machine that 'farkv up' made
//
// To open a tcp: or rdma: pool the address of one of its nodes will do, better of several. What the nodes ask for comes from
// the environment, see Security, and so does the choice of an RDMA device: see EnvDevice.
package fabrics

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// Geometry is the shape of a new pool.
type Geometry struct {
	Nodes   int    // memory nodes
	Memory  uint64 // bytes of registered memory at each
	Clients int    // workers at a time
	// Addresses are the nodes of a consul: pool, and behind them its witnesses; left out, nodes that are registered there and
	// have no pool are taken. Those of a tcp: or rdma: pool are its address.
	Addresses []string
	Store     string // by which it is formatted, for a consul: pool's record
	// Fabric is what verbs of a consul: pool go over, "tcp" or "rdma"; "": what its nodes were started for.
	Fabric string
}

func (g Geometry) shm() shm.Geometry {
	return shm.Geometry{Nodes: g.Nodes, Memory: g.Memory, Clients: g.Clients}
}

// MaxNodes bounds the memory nodes of a pool, MaxMemory the bytes of each.
const (
	MaxNodes  = shm.MaxNodes
	MaxMemory = shm.MaxMemory
)

// What callers branch on.
var (
	ErrNoPool  = rdma.ErrNoPool
	ErrExists  = rdma.ErrExists
	ErrAddress = errors.New("bad pool address")
	ErrInUse   = rdma.ErrInUse
	ErrFormat  = shm.ErrFormat
	// ErrIrregular is an ErrFormat of what is no file, which Remove leaves alone even when it is forced.
	ErrIrregular = shm.ErrIrregular
	ErrFolder    = shm.ErrFolder
	// ErrForeign is wrapped when other users may change a pool that is not opened as shared:NAME, or when a process is
	// none of its clients'. ErrTruncated is an ErrNoPool of one that is open.
	ErrForeign   = shm.ErrForeign
	ErrTruncated = shm.ErrTruncated
)

// Address is a parsed address.
type Address struct {
	Scheme string   // "mem", "shm", "tcp", "rdma" or "consul"
	Name   string   // of a shm pool, or a consul pool
	Shared bool     // a shm pool is shared with other users
	Agent  string   // of a consul pool: HOST:PORT
	Nodes  []string // of a tcp or rdma pool: HOST:PORT
}

func (a Address) String() string {
	switch a.Scheme {
	case overTCP, overRDMA:
		return a.Scheme + ":" + strings.Join(a.Nodes, ",")
	case "consul":
		return "consul:" + a.Agent + "/" + a.Name
	}
	if a.Shared {
		return shared + ":" + a.Name
	}
	return a.Scheme + ":" + a.Name
}

// shared is the scheme of addresses of shm pools that other users may change.
const shared = "shared"

// users returns with which users a shm pool is shared.
func (a Address) users() (all []shm.Option) {
	if a.Shared {
		return []shm.Option{shm.Shared}
	}
	return nil
}

// Remote tells whether the pool's memory nodes are processes, maybe of other machines.
func (a Address) Remote() bool { return a.Nodes != nil || a.Scheme == "consul" }

// Parse parses an address. Errors wrap ErrAddress; those about a fabric that this program lacks rdma.ErrNotSupported or
// ErrNotBuilt as well.
func Parse(addr string) (Address, error) {
	a := Address{Scheme: "shm", Name: addr}
	scheme, rest, ok := strings.Cut(addr, ":")
	switch {
	case ok && scheme == shared:
		a = Address{Scheme: "shm", Name: rest, Shared: true}
	case ok:
		a = Address{Scheme: scheme, Name: rest}
	}
	switch a.Scheme {
	case "mem":
		if a.Name != "" {
			return Address{}, fmt.Errorf("%w %q: mem: takes no name, since only one process sees that pool",
				ErrAddress, addr)
		}
	case "shm":
		if err := shm.CheckName(a.Name); err != nil {
			return Address{}, fmt.Errorf("%w: %w", ErrAddress, err)
		}
	case overTCP, overRDMA:
		nodes, err := parseNodes(scheme, rest)
		if err == nil {
			err = Lacks(scheme)
		}
		if err != nil {
			return Address{}, fmt.Errorf("%w %q: %w", ErrAddress, addr, err)
		}
		return Address{Scheme: scheme, Nodes: nodes}, nil
	case "consul":
		agent, name, err := consul.Parse(rest)
		if err != nil {
			return Address{}, fmt.Errorf("%w %q: %w", ErrAddress, addr, err)
		}
		return Address{Scheme: "consul", Agent: agent, Name: name}, nil
	case "sim":
		return Address{}, fmt.Errorf("%w %q: virtual time is no pool to attach to: "+
			"'farkv sim run STORE' makes its own; use shm:NAME here: %w", ErrAddress, addr, rdma.ErrNotSupported)
	default:
		return Address{}, fmt.Errorf("%w %q: want NAME, shm:NAME, shared:NAME, mem:, tcp:HOST:PORT,..., rdma:HOST:PORT,... "+
			"or consul:HOST:PORT/POOL", ErrAddress, addr)
	}
	return a, nil
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

// Create makes a pool and opens it. Nobody else sees it before format, which writes its first content, has returned
// nil. Errors wrap ErrAddress, ErrExists, ErrFormat, ErrFolder, rdma.ErrFull, rdma.ErrNotSupported, or what format
// returned.
func Create(addr string, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	begin := func(f rdma.Fabric) error {
		if format == nil {
			return nil
		}
		return format(f)
	}
	switch a.Scheme {
	case "shm":
		return known(shm.Create(a.Name, g.shm(), node.Serve, func(f *shm.Fabric) error { return begin(f) }, a.users()...))
	case overTCP, overRDMA:
		return createOnNodes(a, g, begin)
	case "consul":
		return createConsul(a, g, begin)
	}
	f, err := shm.NewMem(g.shm(), node.Serve)
	if err != nil {
		return nil, err
	}
	if err := begin(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Open opens a pool that is there. Errors wrap ErrAddress, ErrNoPool, ErrFormat, ErrForeign, ErrFolder, ErrToken,
// ErrDevice, ErrNoDevice, ErrNotBuilt, rdma.ErrNodeDown, fs.ErrPermission or rdma.ErrNotSupported.
func Open(addr string) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	switch a.Scheme {
	case "mem":
		return nil, fmt.Errorf("open %s: %w: only the process that makes a mem: pool sees it", a, ErrNoPool)
	case overTCP, overRDMA:
		return openOnNodes(a)
	case "consul":
		return openConsul(a)
	}
	return known(shm.Open(a.Name, node.Serve, a.users()...))
}

// known keeps a nil pointer from becoming an rdma.Fabric that is not nil.
func known[F rdma.Fabric](f F, err error) (rdma.Fabric, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Remove takes a pool away. Unless forced it refuses, with an error wrapping ErrInUse, while clients live, and with
// one wrapping ErrFormat what is no pool.
func Remove(addr string, force bool) error {
	a, err := Parse(addr)
	if err != nil {
		return err
	}
	if a.Scheme == "mem" {
		return fmt.Errorf("remove %s: %w: a mem: pool ends with the process that made it", a, ErrNoPool)
	}
	switch a.Scheme {
	case overTCP, overRDMA:
		return removeOnNodes(a, force)
	case "consul":
		return removeConsul(a, force)
	}
	return shm.Remove(a.Name, force, a.users()...)
}

// Room returns the folder of this machine's pools, and how many bytes are free in it.
func Room() (folder string, free uint64, err error) { return shm.Room() }

// List returns the addresses of this machine's pools, sorted.
func List() ([]string, error) {
	names, err := shm.List()
	for i, name := range names {
		names[i] = Address{Scheme: "shm", Name: name}.String()
	}
	return names, err
}

// AsListed returns under which address a pool that List returned opens: as shared:NAME where other users may change it and it
// belongs to this process's user or to root, and otherwise as it is.
func AsListed(addr string) string {
	a, err := Parse(addr)
	if err != nil || a.Scheme != "shm" || a.Shared || !shm.MeantShared(a.Name) {
		return addr
	}
	a.Shared = true
	return a.String()
}
