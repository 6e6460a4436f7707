package ops

import (
	"fmt"
	"strings"
	"testing"
)

// TestMargin: the answer is the least of what the nodes' majority and the store's copies outlive.
func TestMargin(t *testing.T) {
	copies := func(n int) *Bound { return &Bound{MayDie: n} }
	for _, c := range []struct {
		nodes, live int // voters; 0: they are no processes
		copies      *Bound
		want        int
		says        string
	}{
		{4, 4, copies(1), 1, "1 more node may die: 4 of 4 voters live, and 3 must; all data keeps a copy after " +
			"1 death"},
		{4, 3, copies(1), 0, "with the next death the pool ends"}, // a spare took a dead node's place
		{4, 2, nil, 0, "'farkv recover p' can do nothing"},
		{5, 5, copies(1), 1, "after 1 death"},
		{5, 5, copies(4), 2, "5 of 5 voters"},
		{7, 7, copies(0), 0, "some data has one copy"}, // rcuckoo with one replica
		{7, 6, copies(-1), 0, "stays lost, and 'farkv recover p' does not bring it back; 'farkv check p' walks"},
		{7, 3, copies(-1), 0, "'farkv down --force p' removes it, 'farkv up' makes another"},
		{5, 5, &Bound{MayDie: 0, Majority: true}, 0, "bare majority"},
		{1, 1, copies(0), 0, "1 of 1 voter "},
		{0, 0, copies(1), 1, "1 more node may die: all data keeps"},
		{2, 2, nil, 0, "with the next death the pool ends"},
	} {
		var all []Served
		for n := range c.nodes {
			all = append(all, Served{Voter: true, Reachable: n < c.live, InPool: n < c.live})
		}
		all = append(all, Served{Reachable: true, InPool: true}) // an eighth node is no voter
		m := margin(VotersOf(all), c.copies)
		if m != nil {
			m.pool = "p"
		}
		if m == nil || m.MayDie != c.want || !strings.Contains(m.String(), c.says) {
			t.Errorf("%d of %d voters, copies %v: %v, want %d and %q", c.live, c.nodes, c.copies, m, c.want, c.says)
		}
	}
	if m := margin(nil, nil); m != nil || fmt.Sprint(m) != "not known" {
		t.Errorf("of nothing follows %v", m)
	}
	// Those that were expelled, or started anew, help no decision though they answer.
	v := VotersOf([]Served{{Voter: true, Reachable: true, InPool: true, Expelled: true}, {Voter: true, Reachable: true},
		{Voter: true, Reachable: true, InPool: true}})
	if *v != (Voters{Nodes: 3, Live: 1, Needed: 2}) {
		t.Errorf("voters: %+v", v)
	}
}
