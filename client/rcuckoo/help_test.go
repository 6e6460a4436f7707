package rcuckoo

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // which reads the stack: benchmarks call must
		t.Fatal(err)
	}
}

// alone leaves out a test that has no concurrent tasks to race, and takes ten times as long under
// -race.
func alone(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one task at a time; run without -race")
	}
}

// small are parameters of a pool that tests change.
func small() table.Params {
	return table.Params{Shards: 3, Rows: 1000, Entries: 8, KeyBytes: 24, InlineBytes: 8, ExtentBytes: 100, F: 2.3,
		RowsPerLock: 16, LockWords: 1,
		Slabs: 10, SlabExtents: 8, Clients: 5, Timeout: time.Second}
}

func lay(t testing.TB, p table.Params, nodes int) *table.Layout {
	t.Helper()
	l, err := table.New(p, nodes)
	must(t, err)
	return l
}
