package check

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// Options of Linearizable. Zero values mean: exact clocks, a minute.
type Options struct {
	// Slack widens every operation by this much at both ends, for histories merged from clocks that
	// may differ.
	Slack time.Duration
	// Timeout bounds the search.
	Timeout time.Duration
}

// ErrUndecided is wrapped when the search did not end in time; the history may be right or wrong.
var ErrUndecided = errors.New("linearizability undecided")

// Linearizable returns nil when, for each key, some order of its operations respects their times
// and explains their answers, starting from an empty store. Otherwise the error is a *Violation, or
// wraps ErrUndecided.
//
// A write of unknown outcome may take effect at any one moment after its call or never; a read of
// unknown outcome and what the store refused say nothing.
func Linearizable(h History, o Options) error {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	ops := o.prepare(h)
	if v := neverWritten(ops); v != nil {
		return v
	}
	s := newSearch(ops, time.Now().Add(o.Timeout))
	switch s.try(ops, absent) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%w: %d operations, gave up after %v", ErrUndecided, len(ops), o.Timeout)
	}
	for _, key := range split(ops) {
		switch s.try(key, absent) {
		case porcupine.Illegal:
			return s.violation(key)
		case porcupine.Unknown:
			return fmt.Errorf("%w: there is a violation, but its key was not found within %v", ErrUndecided, o.Timeout)
		}
	}
	return fmt.Errorf("%w: the parts contradict the whole", ErrUndecided)
}

// pair is a value of a key. Values are unique to their writes.
type pair struct {
	key   string
	value Value
}

// prepare returns the operations that say something, on times of their own. An UPDATE of unknown
// outcome says nothing when no operation read its value: any order that has it is valid without it.
func (o Options) prepare(h History) []*Op {
	read := map[pair]bool{}
	for _, op := range h {
		if op.Kind == Get && op.Answer == OK {
			read[pair{string(op.Key), op.Value}] = true
		}
	}
	ops := make([]*Op, 0, len(h))
	for _, op := range h {
		if op.Kind == Scan || op.Answer == Refused || op.Answer == TimedOut || op.unknown() && op.Kind == Get ||
			op.unknown() && op.Kind == Update && !read[pair{string(op.Key), op.Value}] {
			continue
		}
		op.Call -= o.Slack
		if op.unknown() {
			op.Return = Never
		} else {
			op.Return += o.Slack
		}
		ops = append(ops, &op)
	}
	byCall(ops)
	return ops
}

// split returns the operations of each key, in the order of the first calls.
func split(ops []*Op) [][]*Op {
	at := map[string]int{}
	var keys [][]*Op
	for _, op := range ops {
		i, ok := at[string(op.Key)]
		if !ok {
			i = len(keys)
			at[string(op.Key)] = i
			keys = append(keys, nil)
		}
		keys[i] = append(keys[i], op)
	}
	return keys
}

// neverWritten finds a read that no order can explain, without a search.
func neverWritten(ops []*Op) *Violation {
	written := map[pair]bool{}
	for _, op := range ops {
		if op.Kind == Insert || op.Kind == Update {
			written[pair{string(op.Key), op.Value}] = true
		}
	}
	for _, op := range ops {
		if op.Kind == Get && op.Answer == OK && !written[pair{string(op.Key), op.Value}] {
			return &Violation{Key: op.Key, Why: "no operation wrote this value to this key", Ops: []*Op{op},
				Culprit: op}
		}
	}
	return nil
}

// A register's state is a small number: absent, or the index of its value.
const absent = 0

// step is an operation as the model sees it.
type step struct {
	op    *Op
	value int // index of op.Value
}

// search holds what all the tries on one history share.
type search struct {
	values   map[Value]int
	boxed    []any // the states as interfaces, so that a step allocates nothing
	deadline time.Time
}

func newSearch(ops []*Op, deadline time.Time) *search {
	s := &search{values: map[Value]int{}, deadline: deadline}
	for _, op := range ops {
		if _, ok := s.values[op.Value]; !ok {
			s.values[op.Value] = len(s.values) + 1
		}
	}
	for i := range len(s.values) + 2 { // one more stands for a value that occurs nowhere
		s.boxed = append(s.boxed, i)
	}
	return s
}

// try looks for an order of the operations, for every key starting from the given state.
func (s *search) try(ops []*Op, start int) porcupine.CheckResult {
	left := time.Until(s.deadline)
	if left <= 0 {
		return porcupine.Unknown // 0 would mean no limit
	}
	return porcupine.CheckOperationsTimeout(s.model(start), s.history(ops), left)
}

func (s *search) history(ops []*Op) []porcupine.Operation {
	out := make([]porcupine.Operation, len(ops))
	for i, op := range ops {
		out[i] = porcupine.Operation{
			ClientId: op.Worker, Input: &step{op, s.values[op.Value]}, Call: int64(op.Call), Return: int64(op.Return),
		}
	}
	return out
}

func (s *search) model(start int) porcupine.Model {
	return porcupine.Model{
		Partition: byKey,
		Init:      func() any { return s.boxed[start] },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := input.(*step).apply(state.(int))
			return ok, s.boxed[next]
		},
		Hash: func(state any) uint64 { return uint64(state.(int)) * 0x9e3779b97f4a7c15 },
	}
}

func byKey(h []porcupine.Operation) [][]porcupine.Operation {
	at := map[string]int{}
	var keys [][]porcupine.Operation
	for _, o := range h {
		k := string(o.Input.(*step).op.Key)
		i, ok := at[k]
		if !ok {
			i = len(keys)
			at[k] = i
			keys = append(keys, nil)
		}
		keys[i] = append(keys[i], o)
	}
	return keys
}

// apply reports whether the operation can have met the state with its answer, and the state that it
// leaves. One of unknown outcome can meet any state; as it never returns, an order may also put it
// behind everything else, where it is never seen: that is how it never takes effect.
func (t *step) apply(state int) (bool, int) {
	there := state != absent
	answer := t.op.Answer
	switch t.op.Kind {
	case Get:
		if answer == NotFound {
			return !there, state
		}
		return answer == OK && state == t.value, state
	case Insert:
		if answer == Exists || there && t.op.unknown() {
			return there, state
		}
		return !there && answer != NotFound, t.value
	case Update:
		if answer == NotFound || !there && t.op.unknown() {
			return !there, state
		}
		return there && answer != Exists, t.value
	default: // Delete
		if answer == NotFound || t.op.unknown() {
			return !there || t.op.unknown(), absent
		}
		return there && answer == OK, absent
	}
}
