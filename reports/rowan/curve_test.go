package rowan

import "testing"

// TestCurve: between two points values are on a line, below the first they are its, and beyond the
// most there are none.
func TestCurve(t *testing.T) {
	c := curve{{10, 1}, {20, 3}, {18, 9}, {30, 5}}
	for load, want := range map[float64]float64{5: 1, 10: 1, 15: 2, 20: 3, 24: 7, 30: 5} {
		if got, ok := c.at(load); !ok || got != want {
			t.Errorf("at %g: %g, %t, want %g", load, got, ok, want)
		}
	}
	if _, ok := c.at(31); ok {
		t.Error("there is a value beyond the most")
	}
}
