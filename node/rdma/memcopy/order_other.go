//go:build !amd64

package memcopy

import "sync/atomic"

// Processors of weaker order than amd64 may let any plain access pass another. A locked instruction
// on a word that only the endpoint knows keeps what is before it before what is behind it.

// Release stores v behind everything before it.
func Release(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Settle keeps a later READ behind earlier WRITEs.
func Settle(own *uint64) { atomic.AddUint64(own, 1) }

// Next keeps one verb behind another where no WRITE comes before a READ.
func Next(own *uint64) { atomic.AddUint64(own, 1) }
