// Package fabrics turns an address into an open fabric. With its tests and the mains it is the only
// place that names the fabrics: in the tables of schemes.go and over.go, where a new one is a line.
//
//	mem:                     a private pool in this process's memory
//	shm:NAME                 a pool that this user's processes of this machine share
//	shared:NAME              the same, of a file that other users may change: see shm.Shared
//	tcp:HOST:PORT,...        a pool on memory nodes that are processes
//	rdma:HOST:PORT,...       the same, but that verbs go from RNIC to RNIC
//	consul:HOST:PORT/POOL    one of these, found by name in Consul, which keeps its registry
//	NAME                     a pool of this machine that 'farkv up' made
//
// To open a tcp: or rdma: pool the address of one of its nodes will do, better of several. What the
// nodes ask for comes from the environment, see Security, and so does the choice of an RDMA device:
// see EnvDevice.
package fabrics

import (
	"errors"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// Geometry is the shape of a new pool.
type Geometry struct {
	Nodes   int    // memory nodes
	Memory  uint64 // bytes of registered memory at each
	Clients int    // workers at a time
	// Telemetry is how many bytes more are registered at each node: see rdma.Geometry.
	Telemetry uint64
	// Addresses are the nodes of a consul: pool, and behind them its witnesses; left out, nodes
	// that are registered there and have no pool are taken. Those of a tcp: or rdma: pool are its
	// address.
	Addresses []string
	Store     string // by which it is formatted, for a consul: pool's record
	// Fabric is what verbs of a consul: pool go over, "tcp" or "rdma"; "": what its nodes were
	// started for.
	Fabric string
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
	// ErrIrregular is an ErrFormat of what is no file, which Remove leaves alone even when it is
	// forced.
	ErrIrregular = shm.ErrIrregular
	ErrFolder    = shm.ErrFolder
	// ErrForeign is wrapped when other users may change a pool that is not opened as shared:NAME,
	// or when a process is none of its clients'. ErrTruncated is an ErrNoPool of one that is open.
	ErrForeign   = shm.ErrForeign
	ErrTruncated = shm.ErrTruncated
)

// Create makes a pool and opens it. The pool is not visible to other processes before format, which
// writes its first content, has returned nil. Errors wrap ErrAddress, ErrExists, ErrFormat,
// ErrFolder, rdma.ErrFull, rdma.ErrNotSupported, or what format returned.
func Create(addr string, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	if format == nil {
		format = func(rdma.Fabric) error { return nil }
	}
	return schemeOf(a.Scheme).create(a, g, format)
}

// Open opens a pool that is there. Errors wrap ErrAddress, ErrNoPool, ErrFormat, ErrForeign,
// ErrFolder, ErrToken, ErrDevice, ErrNoDevice, ErrNotBuilt, rdma.ErrNodeDown, fs.ErrPermission or
// rdma.ErrNotSupported.
func Open(addr string) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	return schemeOf(a.Scheme).open(a)
}

// Remove takes a pool away. Unless forced it refuses, with an error wrapping ErrInUse, while
// clients live, and with one wrapping ErrFormat what is no pool.
func Remove(addr string, force bool) error {
	a, err := Parse(addr)
	if err != nil {
		return err
	}
	return schemeOf(a.Scheme).remove(a, force)
}

// Room returns the folder of this machine's pools, and how many bytes are free in it.
func Room() (folder string, free uint64, err error) { return shm.Room() }

// List returns the addresses of this machine's pools, sorted.
func List() (all []string, err error) {
	for _, s := range schemes() {
		if s.list == nil {
			continue
		}
		names, wrong := s.list()
		for _, name := range names {
			all = append(all, Address{Scheme: s.name, Name: name}.String())
		}
		err = errors.Join(err, wrong)
	}
	slices.Sort(all)
	return all, err
}

// AsListed returns under which address a pool that List returned opens: as shared:NAME where other
// users may change it and it belongs to this process's user or to root, and otherwise as it is.
func AsListed(addr string) string {
	a, err := Parse(addr)
	if err != nil || schemeOf(a.Scheme).shared == nil {
		return addr
	}
	if shared := schemeOf(a.Scheme).shared(a); shared.Shared && !a.Shared {
		return shared.String()
	}
	return addr
}
