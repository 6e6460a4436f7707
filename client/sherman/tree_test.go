package sherman

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/ordered"
)

// TestTree: a tree is what a map is while it grows, in order and in none, changes and is emptied.
// No leaf is left then but the root.
func TestTree(t *testing.T) {
	for _, c := range []struct {
		name, format string
		ordered      bool
		cache        int
	}{
		{"random", RTX, false, DefaultCache}, {"ordered", RTX, true, DefaultCache}, {"no cache", RTX, false, 0},
		{"small cache", RTX, false, 8 << 10}, {"DTX", DTX, false, DefaultCache},
		{"DTX, ordered, small cache", DTX, true, 8 << 10},
		{"DTX, no cache", DTX, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 3000
			f, o := memPool(t, small(c.format, 3, n, 100)), Options{CacheBytes: new(c.cache)}
			s := storeOn(t, f, o)
			full, few, empty := ordered.Map(t, ordered.Pool{
				Pairs: n, InOrder: c.ordered, Workers: [2]ordered.Store{s, storeOn(t, f, o)},
				Check: func(pairs int) map[string]uint64 { return checked(t, f, pairs) },
			})
			if full["levels"] < 3 || empty["leaves"] != 1 || empty["levels"] != 1 {
				t.Errorf("full: %v, empty: %v", full, empty)
			}
			t.Logf("%v, and with a tenth of the keys %v, %+v", full, few, s.stats)
		})
	}
}
