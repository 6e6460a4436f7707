package board

import "time"

// MinLease and MaxLease bound leases, of nodes and of masters.
const (
	MinLease = time.Microsecond
	MaxLease = time.Minute
)

// ExpelWait is for how long, on its own clock, a process that cannot see a lease's holder waits
// until that lease is over on the holder's clock, if it began on both before the wait. The seventh
// is for clocks: one that is fast by 1/16 measures a lease of one that is slow by 1/16 as 17/15 of
// it, which is less than 8/7 (and more than 9/8).
func ExpelWait(lease time.Duration) time.Duration { return lease + lease/7 }
