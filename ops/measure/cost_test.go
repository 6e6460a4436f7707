package measure

import "testing"

func TestCostOf(t *testing.T) {
	// The floor and the store are slow in the same round, which says nothing of their ratio.
	c, err := costOf([]float64{90, 30, 20, 40, 60}, []float64{30, 10, 10, 10, 30})
	if want := (Cost{Store: 30, Floor: 10, Low: 2, High: 3}); err != nil || c != want || c.Ratio() != 3 {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
	if _, err := costOf(nil, nil); err == nil {
		t.Error("nothing was measured, and it has a cost")
	}
}
