package workloads

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	known := []string{"load", "run", "shell", "help", "status", "recover", "recordcount", "operationcount",
		"get", "del", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "fusee", "fusee-cr"}
	for name, want := range map[string][]string{
		"laod": {"load"}, "statsu": {"status"}, "stat": {"status"}, "opertioncount": {"operationcount"}, "gte": {"get"},
		"fuse": {"fusee"}, "fusee-rc": {"fusee-cr"}, "rec": {"recover", "recordcount"}, "nosuch": nil, "": nil,
		"x": nil, "e": nil,
		"zzzzzzzzzz": nil, "run": {"run"}, "ycsb-g": nil, "ycbs-a": {"ycsb-a"},
	} {
		if got := Nearest(name, known); !slices.Equal(got, want) {
			t.Errorf("%q: %q, not %q", name, got, want)
		}
	}
	if got := DidYouMean("laod", known); got != "did you mean load? " {
		t.Errorf("%q", got)
	}
	if got := DidYouMean("nosuch", known); got != "" {
		t.Errorf("%q", got)
	}
}

// One mistake of each kind is a distance of 1, and the distance is the same both ways.
func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		d    int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"ab", "ba", 1}, {"abc", "abxc", 1}, {"abc", "ac", 1},
		{"abcd", "acbd", 1}} {
		if got := editDistance(c.a, c.b); got != c.d {
			t.Errorf("%q, %q: %d, not %d", c.a, c.b, got, c.d)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 6, -1)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		if d := editDistance(a, b); d != editDistance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Errorf("%q, %q: %d", a, b, d)
		}
	})
}
