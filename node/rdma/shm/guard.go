package shm

import (
	"fmt"
	"runtime/debug"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
)

// A file's pages may be missing when they are touched: none was left when an uncommitted one was to
// be made, or the file was truncated, which its owner can do at any time, and from which no mapping
// can be protected. The kernel then raises SIGBUS, which would end the process. So whatever touches
// the mapping of a file does that with debug.SetPanicOnFault, and the panic becomes an error.

// guard makes a fault in the mapping an error. It is used as
//
//	defer f.guard(&err)()
//
// ahead of what touches the mapping. With nil in place of &err the fault has no effect but that
// the function returns its named results as they are. Guards nest. A mem: pool has none: all of
// it is backed when it is touched. What was stored before the fault stays.
func (f *Fabric) guard(err *error) (end func()) {
	if !f.faults {
		return func() {}
	}
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			wrong := f.fault(r)
			if err != nil {
				*err = wrong
			}
		}
	}
}

// fault turns a panic into an error when it came from touching the pool, and goes on panicking
// otherwise. It wraps ErrTruncated or rdma.ErrFull; once the fabric closes rdma.ErrClosed, by which
// tasks learn that they have to return.
func (f *Fabric) fault(r any) error {
	if e, ok := r.(interface{ Addr() uintptr }); ok {
		// Elsewhere it is a bug, and ends the process as it would without a guard.
		if uint64(e.Addr()-uintptr(unsafe.Pointer(f.head))) < f.g.size() {
			if f.closing.Load() {
				return fmt.Errorf("%s: %w", f.name, rdma.ErrClosed)
			}
			// A truncation shows in the file's length. What is left is a page for which there was
			// no memory.
			if !f.backing.whole(f.g.size()) {
				return fmt.Errorf("%s: %w", f.name, ErrTruncated)
			}
			return fmt.Errorf("no memory behind an uncommitted page of %s: %w", f.name, rdma.ErrFull)
		}
	}
	panic(r)
}
