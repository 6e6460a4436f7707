package sherman

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// TestForgetful: a worker that remembers no metadata reads a leaf's first, always, as rTX's paper
// does.
func TestForgetful(t *testing.T) {
	f := memPool(t, small(RTX, 1, 1000, 100))
	s := storeOn(t, f, Options{Forgetful: true})
	for i := range 200 {
		must(t, s.Insert(fmt.Appendf(nil, "key%03d", i), shortValue))
	}
	for i := range 3 {
		must(t, s.Insert(fmt.Appendf(nil, "long%d", i), longValue))
	}
	for what, want := range map[string]uint64{"GET": 2, "UPDATE": 3} {
		op := map[string]func() error{
			"GET":    func() error { return getOnly(s, "key100") },
			"UPDATE": func() error { return s.Update([]byte("key100"), shortValue) },
		}[what]
		must(t, op())
		steady(t, s)
		if n := trace.Trips(s.ep, func() { must(t, op()) }); n.Trips != want {
			t.Errorf("%s took %d trips, want %d: %+v", what, n.Trips, want, n)
		}
	}
}

// TestWithout: what is left out costs no verbs, and what OPT1 and OPT2 save is there without them.
func TestWithout(t *testing.T) {
	cost := func(format string, without Without) (n rdma.Counters) {
		f := memPool(t, small(format, 1, 1000, 100))
		s := storeOn(t, f, Options{Forgetful: true, Without: without})
		for i := range 100 {
			must(t, s.Insert(fmt.Appendf(nil, "key%03d", i), shortValue))
		}
		update := func() { must(t, s.Update([]byte("key050"), shortValue)) }
		update()
		s.ep.Sleep(3 * time.Millisecond)
		n = trace.Trips(s.ep, update)
		return n
	}
	whole := cost(RTX, 0)
	for _, c := range []struct {
		what, format string
		without      Without
		trips        uint64
		writes       uint64
	}{
		{"rTX", RTX, 0, 3, 1}, {"rTX, a log always", RTX, LogElision, 6, 2},
		{"rTX, locks at the end", RTX, EarlyLocks, 4, 1},
		{"DTX", DTX, 0, 4, 2}, {"DTX, no log", DTX, Logs, 3, 1},
	} {
		if n := cost(c.format, c.without); n.Trips != c.trips || n.Writes != c.writes {
			t.Errorf("%s: an UPDATE takes %d trips and %d WRITEs, want %d and %d", c.what, n.Trips, n.Writes, c.trips,
				c.writes)
		}
	}
	if whole.Atomics != 3 {
		t.Errorf("an UPDATE takes %d atomics", whole.Atomics)
	}
}
