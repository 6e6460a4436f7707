package soak

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// soaked are the stores that TestSoak puts load on.
var soaked = []string{"race-rtx", "race-dtx", "race", "sherman-rtx", "sherman"}

// TestSoak: under keys that come and go, hot ones, pairs of all sizes, workers that come and go, and a pool that is full
// again and again, nothing stops, no answer is wrong, and nothing is left in the end.
func TestSoak(t *testing.T) {
	length := time.Second
	if os.Getenv("FARKV_LONG") == "1" {
		length = time.Minute
	}
	for _, store := range soaked {
		t.Run(store, func(t *testing.T) { soak(t, store, "mem:", length) })
	}
}

func soak(t *testing.T, store, addr string, length time.Duration) {
	p, err := stores.Create(addr, store, stores.Params{Nodes: 2, Records: 20000, PairBytes: 1000})
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
	r, err := Run(target, Options{Length: length, Seed: 1})
	t.Log(&r)
	if err != nil {
		t.Fatal(err)
	}
	report, err := p.Kind.Check(p.Fabric)
	if err != nil || len(report.Damage)+len(report.Waiting)+len(report.Unchecked) > 0 {
		t.Errorf("check: %v, damage: %q, waiting: %q, unchecked: %q", err, report.Damage, report.Waiting, report.Unchecked)
	}
}
