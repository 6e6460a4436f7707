package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Violation is a part of one key's history that no order of the operations explains.
type Violation struct {
	Key []byte
	Why string
	// Ops are enough for the contradiction, sorted by call. An operation that returned after the
	// culprit counts as still running.
	Ops []*Op
	// Culprit is the first operation to return with an answer that cannot be explained.
	Culprit *Op
}

// shownOps bounds the lines of a report; the culprit and what came last are always among them.
const shownOps = 40

func (v *Violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "not linearizable: key %q: %s\n", v.Key, v.Why)
	ops := v.Ops
	if n := len(ops) - shownOps; n > 0 {
		fmt.Fprintf(&b, "    ... %d earlier operations\n", n)
		ops = ops[n:]
	}
	for _, op := range ops {
		mark, end := ' ', "..."
		if op == v.Culprit {
			mark = '>'
		}
		if op.Return != Never {
			end = (op.Return - v.Ops[0].Call).String()
		}
		fmt.Fprintf(&b, "  %c %12s .. %-12s %s\n", mark, op.Call-v.Ops[0].Call, end, op)
	}
	return strings.TrimRight(b.String(), "\n")
}

// shrinkTime bounds the search for a smaller contradiction.
const shrinkTime = 10 * time.Second

// violation narrows down why one key's operations cannot be ordered. Each step keeps a proof: what
// is left cannot be ordered either, and that it is part of the history means that the history
// cannot.
func (s *search) violation(ops []*Op) *Violation {
	s.deadline = time.Now().Add(shrinkTime)
	ops, culprit := s.shortestPrefix(ops)
	ops = s.dropObservers(ops, culprit)
	ops, cut := s.lastQuiet(ops)
	why := fmt.Sprintf("no order of these %d operations explains their answers", len(ops))
	if cut {
		why += ", whatever the key held before"
	}
	return &Violation{Key: culprit.Key, Why: why, Ops: ops, Culprit: culprit}
}

// shortestPrefix cuts the history at the first return that makes it impossible. Prefixes of a
// possible history are possible, so the place can be bisected.
func (s *search) shortestPrefix(ops []*Op) ([]*Op, *Op) {
	returns := slices.DeleteFunc(slices.Clone(ops), (*Op).unknown)
	slices.SortStableFunc(returns, func(a, b *Op) int { return int(min(max(a.Return-b.Return, -1), 1)) })
	lo, hi := 0, len(returns)-1 // the culprit is in returns[lo:hi+1]
	for lo < hi {
		mid := (lo + hi) / 2
		if s.try(prefix(ops, returns[mid].Return), absent) == porcupine.Illegal {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return prefix(ops, returns[hi].Return), returns[hi]
}

// prefix is what an observer knew at a time: later calls have not happened, and what has not
// returned is pending.
func prefix(ops []*Op, at time.Duration) []*Op {
	out := make([]*Op, 0, len(ops))
	for _, op := range ops {
		switch {
		case op.Call > at:
		case op.Return <= at:
			out = append(out, op)
		case op.Kind != Get:
			p := *op
			p.Answer, p.Return, p.Err = Pending, Never, ""
			out = append(out, &p)
		}
	}
	return out
}

// dropObservers leaves out operations that changed nothing and are not needed for the
// contradiction: first many at once, then one by one.
func (s *search) dropObservers(ops []*Op, culprit *Op) []*Op {
	for size := len(ops); size >= 1; size /= 2 {
		for from := 0; from < len(ops); {
			to := min(from+size, len(ops))
			var fewer []*Op
			for i, op := range ops {
				if i < from || i >= to || op == culprit || !op.observes() {
					fewer = append(fewer, op)
				}
			}
			if len(fewer) < len(ops) && s.try(fewer, absent) == porcupine.Illegal {
				from = to - (len(ops) - len(fewer))
				ops = fewer
			} else {
				from = to
			}
		}
	}
	return ops
}

// lastQuiet leaves out everything before the last moment at which no operation with a known outcome
// was running, if the rest is impossible from any state that the key may have had then.
func (s *search) lastQuiet(ops []*Op) ([]*Op, bool) {
	for i := len(ops) - 1; i > 0; i-- {
		if !quiet(ops, i) {
			continue
		}
		var rest []*Op
		for j, op := range ops {
			if j >= i || op.unknown() {
				rest = append(rest, op)
			}
		}
		if s.impossible(rest) {
			return rest, true
		}
	}
	return ops, false
}

func quiet(ops []*Op, i int) bool {
	return !slices.ContainsFunc(ops[:i], func(op *Op) bool { return !op.unknown() && op.Return >= ops[i].Call })
}

// impossible reports whether ops cannot be ordered from any state: absent, a value that they
// mention, or any other.
func (s *search) impossible(ops []*Op) bool {
	starts := map[int]bool{absent: true, len(s.values) + 1: true}
	for _, op := range ops {
		starts[s.values[op.Value]] = true
	}
	for start := range starts {
		if s.try(ops, start) != porcupine.Illegal {
			return false
		}
	}
	return true
}
