package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/teeth"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
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
func small() Params {
	return Params{Shards: 3, Rows: 1000, Entries: 8, KeyBytes: 24, InlineBytes: 8, ExtentBytes: 100, F: 2.3,
		RowsPerLock: 16, LockWords: 1,
		Slabs: 10, SlabExtents: 8, Clients: 5, Timeout: time.Second}
}

func lay(t testing.TB, p Params, nodes int) *Layout {
	t.Helper()
	l, err := New(p, nodes)
	must(t, err)
	return l
}

// sealNext gives a row its next version.
func sealNext(f *Form, r Row, shard int, n uint32) { f.Seal(r, shard, n, f.Version(r)+1) }

// fill returns a row with a number of pairs, sealed so often.
func fillRow(f *Form, shard int, n uint32, pairs, seals int) Row {
	r, scratch := make(Row, f.RowBytes), make([]byte, f.EntryBytes)
	for i := range pairs {
		f.Put(r, i, f.Inline(scratch, fmt.Appendf(nil, "key%d-%d", n, i), []byte("value")))
	}
	for range seals {
		sealNext(f, r, shard, n)
	}
	return r
}
