package sherman

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma/trace"
)

// TestForgetful: a worker that remembers no metadata reads a leaf's first, always, as rTX's paper does.
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
