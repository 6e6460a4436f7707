package snapshot

import (
	"testing"

	"github.com/farkv/farkv/client/race"
)

// TestChoose asserts what Mend says about the word that a slot gets.
func TestChoose(t *testing.T) {
	old, a, b := race.Pack(1, 1, 10, 0), race.Pack(1, 1, 20, 0), race.Pack(1, 1, 30, 0)
	pa, pb := a.Pending(), b.Pending()
	for _, c := range []struct {
		words []race.Word
		want  race.Word
		ok    bool
	}{
		{[]race.Word{old}, old, true},
		{[]race.Word{pa}, 0, false},
		{[]race.Word{0}, 0, true},
		{[]race.Word{old, old}, old, true},
		{[]race.Word{old, a}, a, true},
		{[]race.Word{old, pa}, old, true},
		{[]race.Word{pa, pa}, 0, false},
		{[]race.Word{pa, 0}, 0, true},
		{[]race.Word{old, a, a}, a, true},
		{[]race.Word{old, a, b}, old, true},
		{[]race.Word{old, old, b}, old, true},
		{[]race.Word{old, pa, pa}, old, true},
		{[]race.Word{pa, a, pa}, a, true},
		{[]race.Word{pa, pb, pb}, 0, false},
		{[]race.Word{a, b, b, b}, b, true},
	} {
		got, ok := Choose(c.words)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%v: got %v, %v, want %v, %v", c.words, got, ok, c.want, c.ok)
		}
	}
}

// TestWinner asserts what Algorithm 2 says of the words that backups were first changed to.
func TestWinner(t *testing.T) {
	a, b, c := race.Pack(1, 1, 10, 0), race.Pack(1, 1, 20, 0), race.Pack(1, 1, 30, 0)
	tombstone := race.Tombstone(1, 1, 1)
	for _, x := range []struct {
		list []race.Word
		want race.Word
		by   Rule
	}{
		{[]race.Word{b}, b, Rule1},
		{[]race.Word{b, b, b}, b, Rule1},
		{[]race.Word{a, b, b}, b, Rule2},
		{[]race.Word{b, a}, a, Rule3},
		{[]race.Word{b, b, a, a}, a, Rule3}, // half is no majority
		{[]race.Word{c, b, a}, a, Rule3},
		{[]race.Word{a.Pending(), b.Pending(), b.Pending()}, b.Pending(), Rule2},
		{[]race.Word{a.Pending(), b, a.Pending()}, b, Rule1}, // b has won before
		{[]race.Word{a.Pending(), tombstone}, tombstone, Rule1},
	} {
		if got, by := Winner(x.list); got != x.want || by != x.by {
			t.Errorf("%v: got %v by rule %d, want %v by rule %d", x.list, got, by, x.want, x.by)
		}
	}
}
