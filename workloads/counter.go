package workloads

import "sync/atomic"

// window bounds the numbers that Acknowledged has handed out and does not know to be inserted yet:
// one a worker.
const window = 1 << 16

// Acknowledged hands out the numbers of new records and knows up to which all of them have been
// inserted, so that readers choose only records that are there. It is safe for concurrent use and
// never blocks.
type Acknowledged struct {
	next atomic.Int64
	last atomic.Int64 // every number up to it has been acknowledged
	// ring holds, at n modulo window, n+1 once n has been acknowledged. A slot is not cleared: its
	// number tells laps apart, and n+window is handed out only once last has passed n.
	ring [window]atomic.Int64
}

// NewAcknowledged returns a counter that begins with start. All numbers below start count as
// inserted.
func NewAcknowledged(start int64) *Acknowledged {
	a := new(Acknowledged)
	a.next.Store(start)
	a.last.Store(start - 1)
	return a
}

// Next hands out a number. It has none, and says so, while too many are not acknowledged.
func (a *Acknowledged) Next() (int64, bool) {
	for {
		n := a.next.Load()
		if n-a.last.Load() > window {
			return 0, false
		}
		if a.next.CompareAndSwap(n, n+1) {
			return n, true
		}
	}
}

// Last returns the largest number such that it and all before it are inserted.
func (a *Acknowledged) Last() int64 { return a.last.Load() }

// Acknowledge records that record n has been inserted. The caller that fills the gap behind last
// advances last past all acknowledged numbers that follow. No number is missed: of two callers that
// read each other's slots, the one that stores later sees the earlier store.
func (a *Acknowledged) Acknowledge(n int64) {
	a.ring[n&(window-1)].Store(n + 1)
	for {
		last := a.last.Load()
		if a.ring[(last+1)&(window-1)].Load() != last+2 {
			return
		}
		a.last.CompareAndSwap(last, last+1)
	}
}
