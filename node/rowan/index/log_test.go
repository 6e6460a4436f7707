package index_test

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/farkv/farkv/node/rowan/index"
)

// entry is what the index names in these tests.
type entry struct {
	key, version int
	deleted      bool
	garbage      atomic.Int32 // how often it was said to be
}

// log is the entries of one index, one behind the other. None is overwritten, so that every point
// is a quiet one.
type log struct {
	x       *index.Index
	hash    func(key int) uint64
	entries []entry
	used    atomic.Int64
}

func newLog(expected, entries int, hash func(key int) uint64) *log {
	return &log{x: index.New(expected), hash: hash, entries: make([]entry, entries)}
}

// Addresses have all of their bits: the highest one is set, the lowest one is not always 0.
const logBase, logStride = 1 << 47, 67

// append adds an entry and returns its address.
func (l *log) append(key, version int, deleted bool) uint64 {
	i := l.used.Add(1) - 1
	e := &l.entries[i]
	e.key, e.version, e.deleted = key, version, deleted
	return logBase + uint64(i)*logStride
}

func (l *log) at(addr uint64) *entry {
	if i := (addr - logBase) / logStride; addr >= logBase && (addr-logBase)%logStride == 0 &&
		i < uint64(l.used.Load()) {
		return &l.entries[i]
	}
	panic(fmt.Sprintf("the index names %#x, where there is no entry", addr))
}

// put indexes an entry, waits before it reads any, and reports whether it did.
func (l *log) put(at uint64, wait func()) bool {
	given := l.at(at)
	old, updated, err := l.x.Update(l.hash(given.key), at, func(old uint64) (index.Relation, error) {
		wait()
		switch e := l.at(old); {
		case e.key != given.key:
			return index.OtherKey, nil
		case e.version < given.version:
			return index.Older, nil
		}
		return index.AsNew, nil
	})
	if err != nil {
		panic(err)
	}
	switch {
	case !updated && old != at:
		l.drop(at)
	case updated && old != 0:
		l.drop(old)
	}
	return updated
}

// drop notes that an entry is garbage.
func (l *log) drop(addr uint64) { l.at(addr).garbage.Add(1) }

// find returns the address of a key's entry; 0: there is none.
func (l *log) find(key int) (found uint64) {
	for _, at := range l.x.Lookup(l.hash(key), nil) {
		if l.at(at).key != key {
			continue
		}
		if found != 0 {
			panic(fmt.Sprintf("key %d has items of %#x and %#x", key, found, at))
		}
		found = at
	}
	return found
}

// move copies a key's entry, as a collector does, and waits between.
func (l *log) move(key int, wait func()) {
	old := l.find(key)
	if old == 0 {
		return
	}
	wait()
	e := l.at(old)
	at := l.append(e.key, e.version, e.deleted)
	wait()
	if l.x.Replace(l.hash(key), old, at) {
		l.drop(old)
	} else {
		l.drop(at)
	}
}

// remove removes a key's tombstone.
func (l *log) remove(key int, wait func()) bool {
	old := l.find(key)
	if old == 0 || !l.at(old).deleted {
		return false
	}
	wait()
	if !l.x.Remove(l.hash(key), old) {
		return false
	}
	l.drop(old)
	return true
}

// all returns the entries that the index names, by the chain, and says what is wrong with them.
func (l *log) all() (named []uint64, wrong string) {
	for i := range l.x.Chains() {
		named = l.x.Chain(i, named)
	}
	if n := l.x.Len(); n != len(named) {
		return nil, fmt.Sprintf("%d items, but the chains have %d", n, len(named))
	}
	keys := map[int]bool{}
	for _, at := range named {
		key := l.at(at).key
		if keys[key] {
			return nil, fmt.Sprintf("key %d has two items", key)
		}
		keys[key] = true
		if !slices.Contains(l.x.Lookup(l.hash(key), nil), at) {
			return nil, fmt.Sprintf("key %d has an item that is not found", key)
		}
	}
	return named, ""
}

// accounts says what is wrong with what was said to be garbage, when nothing is under way: each
// entry is named once, or garbage once.
func (l *log) accounts() string {
	named, wrong := l.all()
	for i := int64(0); wrong == "" && i < l.used.Load(); i++ {
		at, e := logBase+uint64(i)*logStride, &l.entries[i]
		n := int(e.garbage.Load())
		if slices.Contains(named, at) {
			n++
		}
		if n != 1 {
			wrong = fmt.Sprintf("the entry of key %d and version %d is named or garbage %d times", e.key, e.version, n)
		}
	}
	return wrong
}
