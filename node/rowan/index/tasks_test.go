package index_test

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shard is a log with tasks of all kinds, and what its tests know of it.
type shard struct {
	*log
	keys    int
	version []atomic.Int64 // of each key: the last one that was numbered
	pending []atomic.Int64 // of each key: entries that may still be indexed
	removed []atomic.Int64 // of each key: odd while its tombstone is removed, and counted on
}

func newShard(expected, keys, entries int, hash func(key int) uint64) *shard {
	return &shard{
		log: newLog(expected, entries, hash), keys: keys, version: make([]atomic.Int64, keys),
		pending: make([]atomic.Int64, keys), removed: make([]atomic.Int64, keys),
	}
}

// update numbers an entry of a key and indexes it, as a worker does, or as a digest, which comes
// later.
func (s *shard) update(key int, deleted bool, wait func()) {
	s.pending[key].Add(1)
	at := s.append(key, int(s.version[key].Add(1)), deleted)
	wait()
	s.put(at, wait)
	s.pending[key].Add(-1)
}

// forget removes a key's tombstone if nothing older is left that may come.
func (s *shard) forget(key int, wait func()) {
	at := s.find(key)
	if at == 0 || !s.at(at).deleted {
		return
	}
	wait()
	if s.pending[key].Load() > 0 {
		return
	}
	s.removed[key].Add(1)
	if s.x.Remove(s.hash(key), at) {
		s.drop(at)
	}
	s.removed[key].Add(1)
}

// traverse goes through all chains, and says which key it missed that had an item all the while.
func (s *shard) traverse(wait func()) error {
	before := make([]int64, s.keys)
	for key := range before {
		removed := s.removed[key].Load()
		if before[key] = -1; removed%2 == 0 && s.find(key) != 0 {
			before[key] = removed
		}
	}
	seen := make([]int, s.keys)
	var room []uint64
	for chain := range s.x.Chains() {
		wait()
		room = s.x.Chain(chain, room[:0])
		for _, at := range room {
			seen[s.at(at).key]++
		}
	}
	for key, removed := range before {
		if seen[key] == 0 && removed >= 0 && s.removed[key].Load() == removed {
			return fmt.Errorf("key %d is missed", key)
		}
	}
	return nil
}

// settled says what is wrong in the end: each key has its newest entry, or none if it was removed.
func (s *shard) settled() string {
	for key := range s.keys {
		last, found := s.version[key].Load(), s.find(key)
		switch {
		case found == 0 && last > 0 && s.removed[key].Load() == 0:
			return fmt.Sprintf("key %d has no item", key)
		case found != 0 && int64(s.at(found).version) != last:
			return fmt.Sprintf("key %d has version %d, want %d", key, s.at(found).version, last)
		}
	}
	return s.accounts()
}

// TestTasks has tasks that interfere with each other, seed by seed: they are interleaved at their
// waits. At each wait every key has at most one item, and its version never falls while the item is
// there.
func TestTasks(t *testing.T) {
	first, seeds := seedsOf(t, 600)
	for seed := first; seed < first+seeds; seed++ {
		if wrong := tasks(seed); wrong != "" {
			t.Fatalf("seed %d (FARKV_SEED): %s", seed, wrong)
		}
	}
}

// seedsOf returns the first seed and how many.
func seedsOf(t *testing.T, seeds uint64) (first, n uint64) {
	for name, v := range map[string]*uint64{"FARKV_SEED": &first, "FARKV_SEEDS": &seeds} {
		if text := os.Getenv(name); text != "" {
			var err error
			if *v, err = strconv.ParseUint(text, 10, 32); err != nil {
				t.Fatalf("%s=%s: %v", name, text, err)
			}
		}
	}
	return first, seeds
}

// tasks runs what a seed says.
func tasks(seed uint64) (wrong string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	hash := ownHash
	if rng.IntN(2) == 0 {
		hash = sharedHash
	}
	s := newShard(rng.IntN(30), 1+rng.IntN(30), 10_000, hash)
	all := s.start(rng)
	defer func() {
		if e := recover(); e != nil {
			wrong = fmt.Sprint(e)
		}
		for _, r := range all {
			r.stop()
		}
	}()
	version, removed := make([]int, s.keys), make([]int64, s.keys)
	for n := 0; len(all) > 0; n++ {
		if n > 10_000 {
			return "the tasks do not end"
		}
		i := rng.IntN(len(all))
		if err, more := all[i].next(); err != nil {
			return err.Error()
		} else if !more {
			all = slices.Delete(all, i, i+1)
		}
		for key := range version {
			now, gone := 0, s.removed[key].Load()
			if found := s.find(key); found != 0 {
				now = s.at(found).version
			}
			if now < version[key] && (now != 0 || gone == removed[key]) {
				return fmt.Sprintf("key %d has version %d, and had %d", key, now, version[key])
			}
			version[key], removed[key] = now, gone
		}
	}
	return s.settled()
}

var errStopped = errors.New("the test is over")

// routine is a task that goes on from one wait to the next.
type routine struct {
	next func() (error, bool)
	stop func()
}

// start makes tasks: two that put or delete, one each that moves, removes, and traverses.
func (s *shard) start(rng *rand.Rand) (all []routine) {
	steps := 1 + rng.IntN(60)
	add := func(step func(wait func()) error) {
		next, stop := iter.Pull(func(yield func(error) bool) {
			defer func() {
				if e := recover(); e != nil && e != errStopped {
					yield(fmt.Errorf("%v", e))
				}
			}()
			wait := func() {
				if !yield(nil) {
					panic(errStopped)
				}
			}
			for range steps {
				wait()
				if err := step(wait); err != nil {
					panic(err)
				}
			}
		})
		all = append(all, routine{next, stop})
	}
	add(func(wait func()) error { s.update(rng.IntN(s.keys), rng.IntN(3) == 0, wait); return nil })
	add(func(wait func()) error { s.update(rng.IntN(s.keys), rng.IntN(3) == 0, wait); return nil })
	add(func(wait func()) error { s.move(rng.IntN(s.keys), wait); return nil })
	add(func(wait func()) error { s.forget(rng.IntN(s.keys), wait); return nil })
	add(s.traverse)
	return all
}

// TestParallel has the same tasks at the same time. The race detector sees what has no lock.
func TestParallel(t *testing.T) {
	const keys = 200
	steps := 3_000
	if os.Getenv("FARKV_LONG") == "1" {
		steps = 300_000
	}
	s := newShard(keys/2, keys, 4*steps, func(key int) uint64 { return ownHash(key % (keys / 2)) })
	var group sync.WaitGroup
	task := func(seed uint64, step func(rng *rand.Rand) error) {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 2))
			for range steps {
				if err := step(rng); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for seed := range uint64(3) {
		task(seed, func(rng *rand.Rand) error { s.update(rng.IntN(keys), rng.IntN(3) == 0, noWait); return nil })
	}
	task(3, func(rng *rand.Rand) error { s.move(rng.IntN(keys), noWait); return nil })
	task(4, func(rng *rand.Rand) error { s.forget(rng.IntN(keys), noWait); return nil })
	task(5, func(rng *rand.Rand) error {
		if rng.IntN(keys) > 0 {
			return nil
		}
		return s.traverse(noWait)
	})
	group.Wait()
	if wrong := s.settled(); wrong != "" {
		t.Error(wrong)
	}
}
