package soak

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// soaked are the stores that TestSoak puts load on, and by how many workers. Those of a process that wait for a lock of
// sherman stand in line: each operation then takes a switch of goroutines, and 64 workers take seconds of two processors.
var soaked = []struct {
	store   string
	workers int
}{{"race-rtx", 64}, {"race-dtx", 64}, {"race", 64}, {"sherman-rtx", 64}, {"sherman", 16}}

// TestSoak: under keys that come and go, hot ones, pairs of all sizes, workers that come and go, and a pool that is full
// again and again, nothing stops, no answer is wrong, and nothing is left in the end.
func TestSoak(t *testing.T) {
	length := time.Second
	if os.Getenv("FARKV_LONG") == "1" {
		length = time.Minute
	}
	for _, c := range soaked {
		t.Run(c.store, func(t *testing.T) { soak(t, c.store, c.workers, length) })
	}
}

func soak(t *testing.T, store string, workers int, length time.Duration) {
	p, err := stores.Create("mem:", store, stores.Params{Nodes: 2, Records: 500, PairBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	target, err := Of(p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(target, Options{Workers: workers, Length: length, Seed: 1})
	t.Log(&r)
	if err != nil {
		t.Fatal(err)
	}
	report, err := p.Kind.Check(p.Fabric)
	if err != nil || len(report.Damage)+len(report.Waiting)+len(report.Unchecked) > 0 {
		t.Errorf("check: %v, damage: %q, waiting: %q, unchecked: %q", err, report.Damage, report.Waiting, report.Unchecked)
	}
}
