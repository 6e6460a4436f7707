//go:build !amd64

package shm

import "sync/atomic"

// Processors of weaker order than amd64 may let any plain access pass another. A locked instruction on a word that
// only the endpoint knows keeps what is before it before what is behind it.

// release stores v behind everything before it.
func release(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// settle keeps a later READ behind earlier WRITEs.
func settle(own *uint64) { atomic.AddUint64(own, 1) }

// next keeps one verb behind another where no WRITE comes before a READ.
func next(own *uint64) { atomic.AddUint64(own, 1) }
