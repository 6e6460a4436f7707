// Package history records what users of a registry's Store did with its records, and judges whether
// that is linearizable: each record is a register that is replaced by compare-and-swap.
package history

import (
	"fmt"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Log is the history of some records. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	now   int64
	users map[string][]porcupine.Operation // by key
	// versions are those of values, which no two Swaps share.
	versions map[string]map[string]uint64
}

// New returns an empty one.
func New() *Log {
	return &Log{users: map[string][]porcupine.Operation{}, versions: map[string]map[string]uint64{}}
}

// action is one use of a record.
type action struct {
	swap      bool
	from, to  string
	ok, known bool
}

// Begin returns the moment at which something is begun.
func (l *Log) Begin() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	return l.now
}

func (l *Log) add(user int, key string, began, ended int64, a action) {
	l.users[key] = append(l.users[key], porcupine.Operation{ClientId: user, Input: a, Call: began, Return: ended})
}

// Loaded notes what a Load or a List found. A value that has another version than before, or a
// version that is another value's, is an error.
func (l *Log) Loaded(user int, key string, began int64, value string, version uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	l.add(user, key, began, l.now, action{to: value})
	if l.versions[key] == nil {
		l.versions[key] = map[string]uint64{"": 0}
	}
	of := l.versions[key]
	if before, seen := of[value]; seen && before != version {
		return fmt.Errorf("%s: value %q has versions %d and %d", key, value, before, version)
	}
	for other, v := range of {
		if v == version && other != value {
			return fmt.Errorf("%s: version %d is that of %q and %q", key, version, other, value)
		}
	}
	of[value] = version
	return nil
}

// Swapped notes what became of a Swap: from is the value of the version that it was to replace. It
// is not known to have been done after an error.
func (l *Log) Swapped(user int, key string, began int64, from, to string, ok, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	ended := l.now
	if !known {
		ended = 1 << 62 // it may still happen
	}
	l.add(user, key, began, ended, action{true, from, to, ok, known})
}

// Len returns the number of uses.
func (l *Log) Len() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ops := range l.users {
		n += len(ops)
	}
	return n
}

// Check returns an error when no order of what was done explains what was seen, or a version did
// not grow.
func (l *Log) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, ops := range l.users {
		if r := porcupine.CheckOperationsTimeout(register, ops, 20*time.Second); r != porcupine.Ok {
			return fmt.Errorf("%s: %d operations are not linearizable (%s)", key, len(ops), r)
		}
		of := l.versions[key]
		for _, op := range ops {
			a := op.Input.(action)
			from, a1 := of[a.from]
			to, a2 := of[a.to]
			if a.swap && a.ok && a1 && a2 && to <= from {
				return fmt.Errorf("%s: version %d follows version %d", key, to, from)
			}
		}
	}
	return nil
}

var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		now, a := state.(string), input.(action)
		switch {
		case !a.swap:
			return now == a.to, now
		case a.known && !a.ok:
			return now != a.from, now
		case now == a.from:
			return true, a.to
		}
		return !a.known, now // unknown: perhaps it never happens
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}
