package workloads

import "sync/atomic"

// Counts are operations of a workload that ended, by kind. A ReadModifyWrite is one operation.
type Counts struct {
	OK, Failed [Ops]uint64
}

// Ended returns how many operations ended, and how many of these failed.
func (c *Counts) Ended() (all, failed uint64) {
	for op := range Ops {
		all += c.OK[op] + c.Failed[op]
		failed += c.Failed[op]
	}
	return all, failed
}

// Add adds o to c.
func (c *Counts) Add(o *Counts) {
	for op := range Ops {
		c.OK[op] += o.OK[op]
		c.Failed[op] += o.Failed[op]
	}
}

// Since returns what was counted behind an earlier state of the same counters.
func (c Counts) Since(earlier *Counts) Counts {
	for op := range Ops {
		c.OK[op] -= earlier.OK[op]
		c.Failed[op] -= earlier.Failed[op]
	}
	return c
}

// LiveCounts counts one worker's operations at the moment at which they end, also while its next
// one hangs. The worker adds; other goroutines may read at any time. Each fills two cache lines,
// because processors fetch lines in pairs: so counters that lie side by side share no line, and
// workers do not slow each other down.
type LiveCounts struct {
	ok, failed [Ops]atomic.Uint64
	rests      atomic.Bool
	_          [128 - 2*8*Ops - 4]byte
}

// Rest records whether the worker has nothing to do now, such as until its next operation is due.
func (l *LiveCounts) Rest(rests bool) { l.rests.Store(rests) }

// Rests reports whether the worker has nothing to do now.
func (l *LiveCounts) Rests() bool { return l.rests.Load() }

// Add counts an operation that ended. Only the worker calls it.
func (l *LiveCounts) Add(op Op, failed bool) {
	if failed {
		l.failed[op].Add(1)
	} else {
		l.ok[op].Add(1)
	}
}

// Load returns what was counted so far.
func (l *LiveCounts) Load() (c Counts) {
	for op := range Ops {
		c.OK[op], c.Failed[op] = l.ok[op].Load(), l.failed[op].Load()
	}
	return c
}
