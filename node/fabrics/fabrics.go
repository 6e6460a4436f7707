// Package fabrics turns an address into an open fabric. With its tests and the mains it is the only place that names
// the fabrics.
//
//	mem:              a private pool in this process's memory
//	shm:NAME          a pool that the processes of this machine share
package fabrics

import "errors"

// Geometry is the shape of a new pool.
type Geometry struct {
	Nodes   int    // memory nodes
	Memory  uint64 // bytes of registered memory at each
	Clients int    // workers at a time
}

// What callers branch on.
var (
	ErrNoPool  = errors.New("no such pool")
	ErrExists  = errors.New("pool exists")
	ErrAddress = errors.New("bad pool address")
	ErrInUse   = errors.New("pool is in use")
	ErrFormat  = errors.New("not a farkv pool")
)
