package rcuckoo

import (
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// replicated is the store with replicas, kept, as the explorer sees it.
func replicated(far bool) *explore.Subject {
	s := subject(far, true, 80*time.Millisecond) // failure timers are longer than slow nodes take for a verb
	s.Replicas = [][2]int{{2, 2}, {3, 3}}
	return s
}

// TestExploreReplicas is TestExplore of pools with replicas: memory nodes die, too, and spares take their places.
func TestExploreReplicas(t *testing.T) {
	runs := uint64(100)
	if teeth.UnderRace {
		runs = 5
	}
	t.Run("inline", func(t *testing.T) { explore.Seeds(t, replicated(false), runs) })
	t.Run("extents", func(t *testing.T) { explore.Seeds(t, replicated(true), runs) })
}

// TestEnumerateReplicas lets clients and memory nodes crash at every verb of every operation.
func TestEnumerateReplicas(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: run without -race")
	}
	explore.Enumerate(t, replicated(true))
}
