package reports

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/unchanged"
)

// TestUnchangedReports compares the numbers in the tables of all reports, of a size that is too small to say anything, with
// what they were.
func TestUnchangedReports(t *testing.T) {
	if raced {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const seed = 1
	f := newSize(true, seed)
	f.records, f.ops, f.warmUp, f.micro, f.crashWarmUp = 1000, 2000, 2000, 50, 10_000
	f.clients, f.crashSecond, f.second = []int{4, 16}, time.Millisecond, 200*time.Microsecond
	unchangedTables(t, Fusee, fuseeExperiments, f)

	s := newSwarmSize(true, seed)
	s.records, s.ops, s.warmUp, s.longer, s.manyKeys, s.manyWarmUp, s.crowdKeys, s.bigKeys = 300, 1000, 1000, 1000, 1000, 4000, 200, 200
	unchangedTables(t, Swarm, swarmExperiments, s)

	r := newRcuckooSize(true, seed)
	r.rows, r.tables, r.keys = 1000, []int{200, 500}, 10_000
	r.table, r.ops, r.warmUp, r.smaller = 4000, 800, 300, 2000
	r.failRows, r.failFor = 5_000, 2*time.Millisecond
	unchangedTables(t, Rcuckoo, rcuckooExperiments, r)
}

func unchangedTables[S any](t *testing.T, p *Paper, list []experiment[S], size S) {
	t.Helper()
	runs := unchanged.Runs{}
	for _, e := range list {
		parts, err := do(t.Context(), p, []experiment[S]{e}, size, Options{Quick: true})
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		n := unchanged.Numbers{}
		for i, row := range parts[0].Rows {
			for k, cell := range row {
				if cell.number {
					if err := n.Add(fmt.Sprintf("row %d.%s", i, parts[0].Header[k]), cell); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		runs[e.name] = n
	}
	unchanged.Compare(t, p.Name, runs)
}
