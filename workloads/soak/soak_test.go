package soak

import (
	"cmp"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// soaked are the stores that TestSoak puts load on. Workers of a process that wait for a lock of
// sherman stand in line: each operation takes a switch of goroutines, and those of 64 workers take
// seconds of two processors. DTX has no locks that are wanted: of 64 workers of sherman-dtx one may
// be overtaken until its time is over.
var soaked = []struct {
	store string
	Options
}{
	{"race-rtx", Options{}}, {"race-dtx", Options{}}, {"race", Options{}}, {"sherman-rtx", Options{}},
	{"sherman-dtx", Options{Workers: 16}},
	{"sherman", Options{Workers: 16}},
	{"fusee", Options{}}, {"fusee-cr", Options{}}, {"swarm", Options{}}, {"swarm-apart", Options{}},
	{"dm-abd", Options{}},
	{"rcuckoo", Options{}},
	// A pool of FUSEE for few workers has blocks for pairs of many sizes, too: a minute shows it.
	{"fusee", Options{Workers: 16}},
}

// TestSoak: under keys that come and go, hot ones, pairs of all sizes, workers that come and go,
// and a pool that is full again and again, nothing stops, no answer is wrong, and nothing is left
// in the end.
func TestSoak(t *testing.T) {
	length := time.Second
	if os.Getenv("FARKV_LONG") == "1" {
		length = time.Minute
	}
	for _, c := range soaked {
		t.Run(c.store, func(t *testing.T) {
			t.Parallel() // many workers wait for memory now and then
			c.Length, c.Seed = length, 1
			if teeth.UnderRace { // where 64 would have two processors for a tenth of the time
				c.Workers = 16
			}
			soak(t, c.store, c.Options)
		})
	}
}

func soak(t *testing.T, store string, o Options) {
	p, err := stores.Create("mem:", store, stores.Params{Nodes: 2, Records: 500, PairBytes: 1000,
		Workers: cmp.Or(o.Workers, 64)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.As(store); err != nil {
		t.Fatal(err)
	}
	target, err := Of(p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), target, o)
	t.Log(&r)
	if err != nil {
		t.Fatal(err)
	}
	report, err := p.Kind.Check(p.Fabric)
	if err == nil && p.Kind.Majority && len(report.Waiting) > 0 && len(report.Damage)+len(report.Unchecked) == 0 {
		report, err = sweep(p)
	}
	if err != nil || !clean(&report) {
		t.Errorf("check: %v, damage: %q, waiting: %q, unchecked: %q", err, report.Damage, report.Waiting,
			report.Unchecked)
	}
}

// clean reports whether a check has found nothing.
func clean(r *stores.Report) bool { return len(r.Damage)+len(r.Waiting)+len(r.Unchecked) == 0 }

// sweep has the master sweep the pool, by a client that dies, and returns what check finds then.
// When clients need an epoch and no sweep, its fence cuts off what is in flight, and the buffers of
// that have no owner until the next sweep (R1 of package kit). Whether a load ends behind such an
// epoch or behind a sweep is chance.
func sweep(p *stores.Pool) (stores.Report, error) {
	ep, err := p.Fabric.Open("soak-dead")
	if err != nil {
		return stores.Report{}, err
	}
	dead := rdma.Client{ID: ep.Client(), Life: ep.Life()}
	if err := errors.Join(p.Fabric.RevokeLife(dead), ep.Close()); err != nil {
		return stores.Report{}, err
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r, err := p.Kind.Check(p.Fabric)
		if err == nil && clean(&r) || time.Since(began) > 10*time.Second {
			return r, err
		}
	}
}
