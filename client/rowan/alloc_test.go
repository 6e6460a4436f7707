package rowan_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	logs "github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// large are servers as they are in use, but for memory.
func large(k kv.Kind) kv.Options {
	return kv.Options{
		Kind: k, Nodes: servers, Shards: 12, Workers: 1, Keys: 20_000,
		Log:       logs.Options{Ring: 2, Segments: 64, SegmentBytes: 256 << 10, Ahead: 24, Reserve: 6, Secret: 0x5eed},
		FullAfter: 10 * time.Second,
	}
}

// How many allocations there may be an operation: for PUTs segments are taken, digested and
// cleaned, and sources wait for leave, which allocates, seldom.
const (
	mostOfGet = 0.02
	mostOfPut = 0.1
)

// TestAllocations: neither clients nor servers allocate in the course of operations, once they have
// done some. Segments that are taken, and cleaned, do, seldom.
func TestAllocations(t *testing.T) { testAllocations(t, kv.Kinds(), inMem) }

func testAllocations(t *testing.T, kinds []kv.Kind, in func(kv.Options) (*place, error)) {
	if teeth.UnderRace {
		t.Skip("the race detector allocates")
	}
	each(t, kinds, func(t *testing.T, k kv.Kind) { allocations(t, k, in) })
}

func allocations(t *testing.T, k kv.Kind, in func(kv.Options) (*place, error)) {
	c := newReal(t, large(k), in)
	s, _, end := c.client()
	defer end()
	value := make([]byte, 100)
	keys := make([][]byte, 100)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key-%d", i)
		if err := s.Insert(keys[i], value); err != nil {
			t.Fatal(err)
		}
	}
	get := func(key []byte) error { _, err := s.Get(key); return err }
	put := func(key []byte) error { return s.Update(key, value) }
	run := func(n int, do func(key []byte) error) {
		for i := range n {
			if err := do(keys[i%len(keys)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	const n = 2000
	run(n, put)
	run(n, get)
	count := func(f func()) (allocations float64, took time.Duration) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		f()
		took = time.Since(began)
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), took
	}
	// What goes on anyway, such as leases, goes by time: behind each run it is counted for as long.
	// The least of some runs counts: each has all that its operations allocate.
	for _, v := range []struct {
		name string
		do   func([]byte) error
		most float64
	}{{"GET", get, mostOfGet}, {"PUT", put, mostOfPut}} {
		least := math.Inf(1)
		for try := 0; try < 8 && least > v.most; try++ {
			all, took := count(func() { run(n, v.do) })
			idle, pause := count(func() { time.Sleep(took) })
			least = min(least, (all-idle*float64(took)/float64(pause))/n)
		}
		if t.Logf("%.3f allocations a %s", least, v.name); least > v.most {
			t.Errorf("%.3f allocations a %s, want %v at most", least, v.name, v.most)
		}
	}
}
