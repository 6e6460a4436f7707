package memcopy

import (
	"sync/atomic"
	"unsafe"
)

// The processor keeps loads in order and stores in order; only a load may pass an earlier store.

// Release stores v behind everything before it.
func Release(p *uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// Settle keeps a later READ behind earlier WRITEs.
func Settle(own *uint64) { atomic.AddUint64(own, 1) }

// Next keeps one verb behind another where no WRITE comes before a READ.
func Next(*uint64) {}
