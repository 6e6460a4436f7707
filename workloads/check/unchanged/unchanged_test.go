package unchanged

import (
	"strings"
	"testing"
)

// TestDifferences: what changed is listed by its path, and a rename that is listed is no change.
func TestDifferences(t *testing.T) {
	numbers := func(v any) Numbers {
		n := Numbers{}
		if err := n.Add("", v); err != nil {
			t.Fatal(err)
		}
		return n
	}
	type m = map[string]any
	was := Runs{"a": numbers(m{"old": m{"x": 1, "y": []int{1, 2}}, "text": "dropped"}), "b": numbers(m{"n": 0.5, "gone": 1})}
	is := Runs{"a": numbers(m{"new": m{"x": 1, "y": []int{1, 2}}, "text": "other"}),
		"b": numbers(m{"n": 0.25, "list": []m{{"name": "one", "v": 3}}})}
	Renamed["old"] = "new"
	defer delete(Renamed, "old")
	got := strings.Join(strings.Fields(was.differences(is)), " ")
	want := "b: 3 of 2 numbers gone was 1 is absent list[one].v was absent is 3 n was 0.5 is 0.25"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	long := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	one := numbers(m{"l": long})
	long[3]++
	if other := numbers(m{"l": long}); len(one) != 1 || one["l[hash]"] == other["l[hash]"] {
		t.Errorf("long lists are %v and %v", one, other)
	}
}
