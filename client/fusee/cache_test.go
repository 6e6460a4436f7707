package fusee

import (
	"testing"

	"github.com/farkv/farkv/node/rdma/trace"
)

// TestAdaptiveCache: a key that others write often is read by its slot, which wastes no bandwidth
// on replaced pairs; when it is only read, its cached pair is trusted again (FUSEE 4.6).
func TestAdaptiveCache(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	reader, writer := worker(t, f, Options{CacheThreshold: new(0.5)}, nil), worker(t, f, Options{}, nil)
	value := make([]byte, 1000)
	must(t, writer.Insert(k, value))
	get := func() uint64 {
		t.Helper()
		n := trace.Trips(reader.s.Endpoint, func() {
			if _, err := reader.Get(k); err != nil {
				t.Fatal(err)
			}
		})
		return n.BytesRead
	}
	get()
	pair := get()
	for range 20 {
		must(t, writer.Update(k, value))
		get()
	}
	must(t, writer.Update(k, value))
	before := reader.Stats().Bypassed
	if n := get(); reader.Stats().Bypassed != before+1 || n > pair {
		t.Errorf("a search of a key that is written often reads %d bytes, one that is not %d", n, pair)
	}
	for range 100 {
		get()
	}
	before = reader.Stats().Bypassed
	if get(); reader.Stats().Bypassed != before {
		t.Error("a key that is not written any more is still bypassed")
	}
}

// TestCounters: they saturate together, so that the ratio stays.
func TestCounters(t *testing.T) {
	var e entry
	for i := range 100_000 {
		e.accessed()
		if i%4 == 0 {
			e.invalidated()
		}
	}
	if r := float64(e.invalid) / float64(e.accesses); r < 0.2 || r > 0.3 {
		t.Errorf("ratio %.2f", r)
	}
	if e.bypass(0.5) || !e.bypass(0.1) {
		t.Error("the threshold does not decide")
	}
}
