package locks

import (
	"testing"
)

// TestTurn: ahead and has, for tickets and looks of all kinds.
func TestTurn(t *testing.T) {
	for _, c := range []struct {
		what  string
		turn  turn
		ahead uint64
		has   bool
	}{
		{"no failed try", turn{}, 0, true},
		{"about to take a ticket", turn{queue: 1}, 0, false},
		{"served next", turn{queue: 1, taken: true, number: 7, serving: 7}, 0, true},
		{"passed", turn{queue: 1, taken: true, number: 7, serving: 70}, 0, true},
		{"last in turn", turn{queue: 1, taken: true, number: turnsAtOnce - 1}, turnsAtOnce - 1, true},
		{"first that waits", turn{queue: 1, taken: true, number: turnsAtOnce}, turnsAtOnce, false},
		{"serving stands still", turn{queue: 1, taken: true, number: 300, serving: 100, still: 3}, 25, false},
		{"for longer", turn{queue: 1, taken: true, number: 300, serving: 100, still: 5}, 6, true},
		{"for very long", turn{queue: 1, taken: true, number: 1 << 63, still: 1000}, 1, true},
	} {
		if ahead, has := c.turn.ahead(), c.turn.has(); ahead != c.ahead || has != c.has {
			t.Errorf("%s: %d ahead, its turn: %v; want %d, %v", c.what, ahead, has, c.ahead, c.has)
		}
	}
}
