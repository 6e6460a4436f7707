package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// unanswered are the answers that do not say what an operation did, or that it did nothing for a
// reason of its own.
var unanswered = []check.Answer{check.TimedOut, check.Refused, check.Uncertain, check.Failed}

// gap is a time in which a worker got no answer that says what happened.
type gap struct {
	worker   int
	from, to time.Duration
}

func (g gap) String() string {
	return fmt.Sprintf("%v (worker %d)", (g.to - g.from).Round(time.Millisecond), g.worker)
}

// longestGap returns the longest that ended behind a moment.
func longestGap(h check.History, behind time.Duration) (longest gap) {
	last := map[int]time.Duration{} // when each worker was answered last
	ops := slices.Clone(h)
	slices.SortStableFunc(ops, func(a, b check.Op) int { return int(a.Return - b.Return) })
	for _, op := range ops {
		from, ok := last[op.Worker]
		if !ok {
			from = op.Call
		}
		if op.Answer == check.Pending || slices.Contains(unanswered, op.Answer) {
			last[op.Worker] = from
			continue
		}
		last[op.Worker] = op.Return
		if op.Return > behind && op.Return-from > longest.to-longest.from {
			longest = gap{op.Worker, from, op.Return}
		}
	}
	return longest
}

// within returns the operations of a time.
func within(h check.History, from, to time.Duration) (all check.History) {
	for _, op := range h {
		if op.Return >= from && op.Call <= to {
			all = append(all, op)
		}
	}
	return all
}

// endedBefore returns the operations that were answered before a moment, calledBehind those that
// began behind it.
func endedBefore(h check.History, end time.Duration) check.History {
	return slices.DeleteFunc(slices.Clone(h), func(op check.Op) bool { return op.Return > end })
}

func calledBehind(h check.History, begin time.Duration) check.History {
	return slices.DeleteFunc(slices.Clone(h), func(op check.Op) bool { return op.Call < begin })
}

// of returns the operations of a process, by the number of its first worker.
func of(h check.History, first int) (all check.History) {
	for _, op := range h {
		if op.Worker >= first && op.Worker < first+proofWorkers {
			all = append(all, op)
		}
	}
	return all
}

// opTimeout is the timeout of operations on a pool that names none.
const opTimeout = 2 * time.Second

// gaveUp reports whether an operation waited for the whole timeout of the pool. How long others
// wait depends on the machine: what they waited for may have been late alone.
func gaveUp(t *testing.T, op *check.Op) bool {
	t.Helper()
	over := op.Answer == check.TimedOut || op.Answer == check.Uncertain
	if !over || op.Return-op.Call < opTimeout {
		return false
	}
	t.Logf("given up at %v: %v", op.Return, op)
	return true
}

// noneFails wants each operation to have been answered, but for those that waited for the whole
// timeout of the pool.
func noneFails(t *testing.T, h check.History) {
	t.Helper()
	wrong := 0
	for _, op := range h.With(unanswered...) {
		if gaveUp(t, &op) {
			continue
		}
		if op.Kind == check.Insert && op.Answer == check.Uncertain {
			// Its slot was mended, and another key took it before the inserter could look: FUSEE
			// cannot tell then.
			t.Logf("a known limit: at %v, after %v: %v", op.Return, op.Return-op.Call, &op)
			continue
		}
		if wrong++; wrong <= 5 {
			t.Errorf("at %v, after %v: %v", op.Return, op.Return-op.Call, &op)
		}
	}
}

// allSay wants operations that fail to tell in their answer what is known of their effect, and why
// they failed.
func allSay(t *testing.T, h check.History) {
	t.Helper()
	for _, op := range h.With(check.Failed, check.Refused) {
		if strings.Contains(op.Err, rdma.ErrRevoked.Error()) || strings.Contains(op.Err, rdma.ErrUnreachable.Error()) {
			continue // it was declared dead, or could not be replaced by another worker
		}
		t.Errorf("at %v, after %v: %v", op.Return, op.Return-op.Call, &op)
	}
	for _, op := range h.With(check.Uncertain) {
		if op.Err == "" {
			t.Errorf("at %v: %v, and no word of why", op.Return, &op)
		}
	}
}

// allWork waits until each worker of a process is answered that asks behind a moment.
func (s *stage) allWork(first int, behind time.Duration, clients ...*process) {
	s.t.Helper()
	s.until(fmt.Sprintf("workers %d to %d are answered behind %v", first, first+proofWorkers-1, behind), func() bool {
		time.Sleep(statusPause)
		for _, p := range clients {
			p.alive()
		}
		answered := map[int]bool{}
		for _, op := range of(s.history(), first) {
			answered[op.Worker] = answered[op.Worker] || op.Call > behind && op.Answer < check.Refused
		}
		return !slices.Contains(slices.Collect(maps.Values(answered)), false) && len(answered) == proofWorkers
	})
}
