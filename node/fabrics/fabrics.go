// Package fabrics turns an address into an open fabric. With its tests and the mains it is the only place that names
// the fabrics.
//
//	mem:              a private pool in this process's memory
//	shm:NAME          a pool that the processes of this machine share
//	NAME              the same as shm:NAME
package fabrics

import (
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// Geometry is the shape of a new pool.
type Geometry = shm.Geometry

// MaxNodes bounds the memory nodes of a pool, MaxMemory the bytes of each.
const (
	MaxNodes  = shm.MaxNodes
	MaxMemory = shm.MaxMemory
)

// What callers branch on.
var (
	ErrNoPool  = shm.ErrNoPool
	ErrExists  = shm.ErrExists
	ErrAddress = errors.New("bad pool address")
	ErrInUse   = shm.ErrInUse
	ErrFormat  = shm.ErrFormat
	// ErrIrregular is an ErrFormat of what is no file, which Remove leaves alone even when it is forced.
	ErrIrregular = shm.ErrIrregular
	ErrFolder    = shm.ErrFolder
)

// Committer is a fabric whose memory has to be asked for before it is written: Commit makes sure that n bytes at off
// of a node are backed, or returns an error wrapping rdma.ErrFull.
type Committer interface {
	Commit(node int, off, n uint64) error
}

// Address is a parsed address.
type Address struct {
	Scheme string // "mem" or "shm"
	Name   string // of a shm pool
}

func (a Address) String() string { return a.Scheme + ":" + a.Name }

// Parse parses an address. Errors wrap ErrAddress; those about a fabric that this version lacks rdma.ErrNotSupported
// as well.
func Parse(addr string) (Address, error) {
	a := Address{Scheme: "shm", Name: addr}
	if scheme, rest, ok := strings.Cut(addr, ":"); ok {
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
	case "sim":
		return Address{}, fmt.Errorf("%w %q: virtual time is no pool to attach to: "+
			"'farkv sim run STORE' makes its own; use shm:NAME here: %w", ErrAddress, addr, rdma.ErrNotSupported)
	case "tcp", "rdma", "consul":
		return Address{}, fmt.Errorf("%w %q: this version knows mem: and shm:NAME: %w",
			ErrAddress, addr, rdma.ErrNotSupported)
	default:
		return Address{}, fmt.Errorf("%w %q: want mem:, shm:NAME or NAME", ErrAddress, addr)
	}
	return a, nil
}

// Create makes a pool and opens it. Nobody else sees it before format, which writes its first content, has returned
// nil. Errors wrap ErrAddress, ErrExists, ErrFormat, ErrFolder, rdma.ErrFull, rdma.ErrNotSupported, or what format
// returned.
func Create(addr string, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	begin := func(f *shm.Fabric) error {
		if format == nil {
			return nil
		}
		return format(f)
	}
	if a.Scheme == "shm" {
		return known(shm.Create(a.Name, g, node.Serve, begin))
	}
	f, err := shm.NewMem(g, node.Serve)
	if err != nil {
		return nil, err
	}
	if err := begin(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Open opens a pool that is there. Errors wrap ErrAddress, ErrNoPool, ErrFormat, ErrFolder, fs.ErrPermission or
// rdma.ErrNotSupported.
func Open(addr string) (rdma.Fabric, error) {
	a, err := Parse(addr)
	if err != nil {
		return nil, err
	}
	if a.Scheme == "mem" {
		return nil, fmt.Errorf("open %s: %w: only the process that makes a mem: pool sees it", a, ErrNoPool)
	}
	return known(shm.Open(a.Name, node.Serve))
}

// known keeps a nil *shm.Fabric from becoming an rdma.Fabric that is not nil.
func known(f *shm.Fabric, err error) (rdma.Fabric, error) {
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
	return shm.Remove(a.Name, force)
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
