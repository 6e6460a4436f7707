package client

import "testing"

// TestSample: spans lie below the total, in order, do not overlap and pass no multiple of per. Of
// little they are all numbers, of much about as many as asked for, up to the end.
func TestSample(t *testing.T) {
	const most, run = 1024, 16
	for _, total := range []uint64{0, 1, 15, 16, 17, 1000, 1024, 1025, 5000, 1 << 33} {
		for _, per := range []uint64{1, 7, 16, 100, 1 << 40} {
			spans, whole := Sample(total, most, run, per)
			numbers, end := uint64(0), uint64(0)
			for _, s := range spans {
				if s.From < end || s.End <= s.From || s.End > total || s.End-s.From > run ||
					s.From/per != (s.End-1)/per {
					t.Fatalf("of %d by %d: span %v behind %d", total, per, s, end)
				}
				numbers, end = numbers+s.End-s.From, s.End
			}
			switch {
			case whole != (total <= most):
				t.Errorf("of %d by %d: whole is %v", total, per, whole)
			case whole && numbers != total:
				t.Errorf("of %d by %d: %d numbers", total, per, numbers)
			case !whole && (numbers < most || numbers > 2*most || end < total/2):
				t.Errorf("of %d by %d: %d numbers, up to %d", total, per, numbers, end)
			}
		}
	}
}
