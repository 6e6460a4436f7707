package rowan_test

import (
	"fmt"
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

// mostAllocations is how many there may be an operation, of what is not of operations.
const mostAllocations = 0.5

// TestAllocations: neither clients nor servers allocate in the course of operations, once they have done some. Segments
// that are taken, and cleaned, do, seldom.
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
	run := func(n int) {
		for i := range n {
			if _, err := s.Get(keys[i%len(keys)]); err != nil {
				t.Fatal(err)
			}
			if err := s.Update(keys[i%len(keys)], value); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(2000)
	count := func(f func()) (allocations float64, took time.Duration) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		f()
		took = time.Since(began)
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), took
	}
	// What goes on anyway, such as leases, goes by time. It counts twice, since it is not even.
	idle, pause := count(func() { time.Sleep(500 * time.Millisecond) })
	const n = 2000
	all, took := count(func() { run(n) })
	if per := (all - 2*idle*float64(took)/float64(pause)) / (2 * n); per > mostAllocations {
		t.Errorf("%.2f allocations an operation", per)
	}
}
