package index_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rowan/index"
)

const (
	benchItems = 1 << 20
	benchRound = 1 << 16 // operations on one table, before the other one's turn
)

// lockedMap is Go's map from hashes to addresses, with a lock: what is the least that would do
// without an index, if no two keys had the same hash.
type lockedMap struct {
	mu sync.Mutex
	m  map[uint64]uint64
}

func (l *lockedMap) lookup(hash uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m[hash]
}

func (l *lockedMap) replace(hash, old, at uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m[hash] != old {
		return false
	}
	l.m[hash] = at
	return true
}

func (l *lockedMap) insert(hash, at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m[hash] = at
}

func (l *lockedMap) remove(hash uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, hash)
}

// BenchmarkIndex compares an index of a million items, as many as expected or several times as
// many, with Go's map. They take turns, by one worker and by four. What is measured is processor
// time, so that other programs do not count.
func BenchmarkIndex(b *testing.B) {
	for _, over := range []int{1, 2, 4, 16} {
		before := heap()
		x := index.New(benchItems / over)
		for i := range benchItems {
			x.Insert(ownHash(i), at(i), x.Lookup(ownHash(i), nil))
		}
		indexBytes := float64(heap()-before) / benchItems
		before = heap()
		l := &lockedMap{m: make(map[uint64]uint64, benchItems/over)}
		for i := range benchItems {
			l.insert(ownHash(i), at(i))
		}
		mapBytes := float64(heap()-before) / benchItems

		for _, op := range []struct {
			name           string
			onIndex, onMap func(i int)
		}{
			{"lookup", func(i int) {
				var room [4]uint64
				x.Lookup(ownHash(i), room[:0])
			}, func(i int) { l.lookup(ownHash(i)) }},
			{"lookup-absent", func(i int) {
				var room [4]uint64
				x.Lookup(ownHash(i+benchItems), room[:0])
			}, func(i int) { l.lookup(ownHash(i + benchItems)) }},
			{"replace", func(i int) { x.Replace(ownHash(i), at(i), at(i)) },
				func(i int) { l.replace(ownHash(i), at(i), at(i)) }},
			{"remove-insert", func(i int) {
				var room [4]uint64
				x.Remove(ownHash(i), at(i))
				x.Insert(ownHash(i), at(i), x.Lookup(ownHash(i), room[:0]))
			}, func(i int) { l.remove(ownHash(i)); l.insert(ownHash(i), at(i)) }},
		} {
			for _, workers := range []int{1, 4} {
				b.Run(fmt.Sprintf("x%d/%s/%d", over, op.name, workers), func(b *testing.B) {
					var took [2]time.Duration
					rounds := b.N/benchRound + 1
					for n := range rounds {
						for k, do := range []func(int){op.onIndex, op.onMap} {
							took[k] += perOp(do, workers, n)
						}
					}
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(float64(took[0])/float64(rounds), "ns/index")
					b.ReportMetric(float64(took[1])/float64(rounds), "ns/map")
					b.ReportMetric(indexBytes, "B/index")
					b.ReportMetric(mapBytes, "B/map")
				})
			}
		}
		runtime.KeepAlive(x)
		runtime.KeepAlive(l)
	}
}

// perOp returns the processor time of one of a round's operations, on items that workers take at
// random: those of one worker are no other's.
func perOp(do func(i int), workers, round int) time.Duration {
	before := realtime.CPU()
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for n := range benchRound / workers {
				i := (n + round*benchRound) * 0x9e3779b1 % (benchItems / workers)
				do(i*workers + w)
			}
		})
	}
	group.Wait()
	return (realtime.CPU() - before) / benchRound
}
