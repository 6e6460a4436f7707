package simulate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestRehash: a client that dies in a rehash of RACE on rTX is helped behind its lease, and one of
// the original is not.
func TestRehash(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, store := range []string{"race-rtx", "race"} {
		c := config(t, "rtx-a", 6, 0, "readproportion=0", "updateproportion=0", "insertproportion=1",
			"recordcount=2400")
		c.Store, c.Profile, c.WarmUp, c.Duration, c.Lease = store, "rtx-testbed", 0, 30*time.Millisecond, time.Hour
		c.Pool = stores.Params{Nodes: 1, Records: 12_000, Timeout: 100 * time.Millisecond,
			Own: stores.Values{"groups": 32}}
		r, err := Rehash(context.Background(), c, true)
		if err != nil {
			t.Fatal(err)
		}
		const lease = 8 * time.Millisecond
		if r.Whole.Failed > 0 || r.Took <= 0 || r.Died <= 0 {
			t.Errorf("%s: %d operations fail where all live; a rehash takes %v", store, r.Whole.Failed, r.Took)
		}
		helped := r.Again > lease && r.Again < lease+2*time.Millisecond
		if rtx := store == "race-rtx"; rtx != helped || rtx != (r.After.Failed == 0) {
			t.Errorf("%s: a rehash whose client died is done %v later, and %d operations fail", store, r.Again,
				r.After.Failed)
		}
	}
}

// TestSilence: the master knows of a death as late as it is told to.
func TestSilence(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, silence := range []time.Duration{0, 3 * time.Millisecond} {
		c := config(t, "ycsb-a", 4, 0)
		c.Duration, c.Lease, c.Silence, c.Faults = 8*time.Millisecond, time.Millisecond, silence,
			`crash client="client 1" at=1ms`
		known := 0.0
		for _, e := range simulated(t, c).Events {
			if strings.Contains(e.What, "client") && known == 0 {
				known = 1e3*e.Seconds - 1
			}
		}
		if least := float64(silence) / 1e6; known <= least || known > least+1.5 {
			t.Errorf("with a silence of %v the master does something about a client %.2f ms behind its death",
				silence, known)
		}
	}
}

// TestLoading: memory that rests for a while is used again when loading takes as long as that.
func TestLoading(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	handed := func(loading time.Duration) (n uint64) {
		c := config(t, "rtx-c", 1, 1, "recordcount=4000")
		c.Store, c.Profile, c.Loading, c.Memory = "sherman-rtx", "rtx-testbed", loading, true
		c.Pool = stores.Params{Nodes: 1, Records: 4000, Memory: 64 << 20}
		for _, u := range simulated(t, c).Memory {
			if u.Name == "chunks of nodes" {
				n = u.Count
			}
		}
		return n
	}
	if atOnce, slowly := handed(0), handed(time.Minute); slowly == 0 || atOnce < 2*slowly {
		t.Errorf("loading at once takes %d chunks, and in a minute %d", atOnce, slowly)
	}
}

// TestLeases: of clients that all live, locks are suspected where a lease is shorter than stalls,
// or than what their transactions take and leases do not count that, and nowhere else.
func TestLeases(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	short, long := 10*time.Microsecond, 50*time.Millisecond
	for _, test := range []struct {
		what      string
		l         Leases
		suspected bool
	}{
		{"no stalls", Leases{Writes: 1, ObjectOptions: stores.ObjectOptions{Drift: short}, Offset: time.Hour, PPM: 50},
			false},
		{"stalls", Leases{Writes: 1, ObjectOptions: stores.ObjectOptions{Drift: short}, Stalls: 500,
			Stall: time.Millisecond}, true},
		{"a long lease", Leases{Writes: 1, ObjectOptions: stores.ObjectOptions{Drift: long}, Stalls: 500,
			Stall: time.Millisecond}, false},
		{"a fixed lease", Leases{Writes: 40, ObjectOptions: stores.ObjectOptions{Drift: short, Flat: true}}, true},
		{"a regulated lease", Leases{Writes: 40, ObjectOptions: stores.ObjectOptions{Drift: short}}, false},
	} {
		l := test.l
		l.Profile, l.Clients, l.Objects, l.Duration, l.Seed = "rtx-testbed", 8, 30, 4*time.Millisecond, 1
		if l.Writes > 1 {
			l.Objects = 1000
		}
		r, err := l.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if (r.Suspected > 0) != test.suspected || r.Transactions < 20 || (r.Stalls > 0) != (l.Stalls > 0) {
			t.Errorf("%s: %+v", test.what, *r)
		}
	}
}
