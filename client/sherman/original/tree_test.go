package original

import (
	"testing"

	"github.com/farkv/farkv/workloads/check/ordered"
)

// TestTree: a tree is what a map is while it grows, in order and in none, changes and is emptied.
// Its leaves stay.
func TestTree(t *testing.T) {
	for _, c := range []struct {
		name    string
		ordered bool
		cache   int
	}{{"random", false, DefaultCache}, {"ordered", true, DefaultCache}, {"no cache", false, 0},
		{"small cache", false, 8 << 10}} {
		t.Run(c.name, func(t *testing.T) {
			const n = 5000
			f, o := memPool(t, 3, small(3, n, 100)), Options{CacheBytes: new(c.cache)}
			s := storeOn(t, f, o)
			full, few, empty := ordered.Map(t, ordered.Pool{
				Pairs: n, InOrder: c.ordered, Workers: [2]ordered.Store{s, storeOn(t, f, o)},
				Check: func(pairs int) map[string]uint64 { return checked(t, f, pairs) },
			})
			if full["levels"] < 3 || empty["leaves"] != empty["leaves without a pair"] {
				t.Errorf("full: %v, empty: %v", full, empty)
			}
			t.Logf("%v, and with a tenth of the keys %v, %+v", full, few, s.stats)
		})
	}
}
