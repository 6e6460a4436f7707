package kit

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Budget is the time that a worker may use for an operation. It does not rely on the clock to be
// right, only on its differences: what passes between two looks at it counts as a quarter of the
// budget at most, since the clock may have been set.
type Budget struct {
	clock rdma.Env
	total time.Duration
	// left is what was left of the time at the moment looked.
	left   time.Duration
	looked time.Duration
	// trust is how many batches may be posted before the next look, and trusted behind each.
	trust, trusted int
}

// budgetShares: what passes between two looks at the clock counts as one of so many parts at most.
const budgetShares = 4

// NewBudget returns a budget for operations that take no longer than total each. None is left until
// Begin. trusted bounds the batches between two looks at the clock: see Next.
func NewBudget(clock rdma.Env, total time.Duration, trusted int) Budget {
	return Budget{clock: clock, total: total, trusted: trusted}
}

// Begin begins the time of an operation.
func (b *Budget) Begin() { b.left, b.looked, b.trust = b.total, b.clock.Now(), b.trusted }

// Left returns how much of the time is left; 0: none.
func (b *Budget) Left() time.Duration {
	now := b.clock.Now()
	b.left = max(b.left-min(max(now-b.looked, 0), b.total/budgetShares), 0)
	b.looked, b.trust = now, b.trusted
	return b.left
}

// Over reports whether no time is left.
func (b *Budget) Over() bool { return b.Left() == 0 }

// Used reports whether more than one of so many parts of the time has passed.
func (b *Budget) Used(share int) bool { return b.Left() < b.total-b.total/time.Duration(share) }

// Next returns how much is left for the next batch. For a few batches it does not look at the
// clock, if each was complete as soon as it was posted, as on memory of one machine: there a look
// takes as long as a small batch. What else takes time between these batches is seen at the next
// look. So none are trusted where other code runs between them.
func (b *Budget) Next() time.Duration {
	if b.trust > 0 {
		return b.left
	}
	return b.Left()
}

// Posted notes a batch that was posted just now, behind a call of Next.
func (b *Budget) Posted(batch *rdma.Batch) {
	if b.trust--; !batch.Finished() {
		b.trust = 0
	}
}
