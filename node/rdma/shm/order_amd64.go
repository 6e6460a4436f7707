package shm

import (
	"sync/atomic"
	"unsafe"
)

// The processor keeps loads in order and stores in order; only a load may pass an earlier store.

// release stores v behind everything before it.
func release(p *uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// settle keeps a later READ behind earlier WRITEs.
func settle(own *uint64) { atomic.AddUint64(own, 1) }

// next keeps one verb behind another where no WRITE comes before a READ.
func next(*uint64) {}
