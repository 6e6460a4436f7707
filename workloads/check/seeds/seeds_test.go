package seeds

import "testing"

func TestChosen(t *testing.T) {
	for _, c := range []struct {
		seed, seeds  string
		first, count uint64
	}{{"", "", 1, Few(50)}, {"7", "", 7, Few(50)}, {"", "3", 1, 3}, {"7", "1", 7, 1}} {
		t.Setenv("FARKV_SEED", c.seed)
		t.Setenv("FARKV_SEEDS", c.seeds)
		if first, count := Chosen(t, 50); first != c.first || count != c.count {
			t.Errorf("$FARKV_SEED=%s and $FARKV_SEEDS=%s are %d from %d on", c.seed, c.seeds, count, first)
		}
	}
}
