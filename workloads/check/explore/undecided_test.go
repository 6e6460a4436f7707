package explore

import (
	"bytes"
	"strings"
	"testing"
)

// TestUndecided: a run is counted when the checker finds no order of its answers in time, and the
// plan of the lowest such seed is reported.
func TestUndecided(t *testing.T) {
	coroutines(t)
	s := toySubject("")
	if r := s.Fuzz(t.Context(), Search{First: 5, Runs: 20}); r.Failure != nil || r.Undecided > 0 ||
		r.UndecidedPlan != nil {
		t.Fatalf("%v, %d undecided, plan %v", r.Failure, r.Undecided, r.UndecidedPlan)
	}
	s.Search = 1
	r := s.Fuzz(t.Context(), Search{First: 5, Runs: 20})
	if r.Failure != nil || r.Undecided < 20 || r.UndecidedSeed != 5 || r.UndecidedPlan == nil {
		t.Fatalf("%v, %d undecided, seed %d, plan %v", r.Failure, r.Undecided, r.UndecidedSeed, r.UndecidedPlan)
	}
	if stats, f := s.Try(r.UndecidedPlan); f != nil || stats.Undecided != 1 {
		t.Errorf("its plan: %v, %+v", f, stats)
	}
	var b bytes.Buffer
	if _, err := s.Replay(r.UndecidedPlan, &b); err != nil || !strings.Contains(b.String(), "\nverdict: undecided") {
		t.Errorf("%v, %s", err, &b)
	}
}
