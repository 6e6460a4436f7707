package membership

import "time"

// MinLease and MaxLease bound leases, of nodes and of masters. A record with a lease out of these
// bounds is damaged: a candidate never waits longer than ExpelWait(MaxLease) for it.
const (
	MinLease = time.Microsecond
	MaxLease = time.Minute
)

// ExpelWait returns how long a process waits, on its own clock, for the end of a lease that another
// process holds. The wait begins after the lease has begun on the holder's clock. Then the lease is
// over on the holder's clock when the wait is over.
//
// The seventh makes up for the rates of the clocks, each of which may be wrong by 1/16. A clock
// that is fast by 1/16 measures a lease of a clock that is slow by 1/16 as 17/15 of it, which is
// less than 8/7 and more than 9/8.
func ExpelWait(lease time.Duration) time.Duration { return lease + lease/7 }
