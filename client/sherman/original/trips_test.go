package original

import (
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

func wantText(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%v does not say %q", err, p)
		}
	}
}

// checkAfterClose closes a worker and checks the pool.
func checkAfterClose(t testing.TB, f rdma.Fabric, s *Store, keys int) {
	t.Helper()
	must(t, s.Close())
	checked(t, f, keys)
}

// TestTrips asserts what operations take on the critical path, and the verbs and bytes of one that
// inserts 8 bytes (rTX's Table 2: READ 1 KB, WRITE of the entry and 8 bytes of a release, one CAS).
func TestTrips(t *testing.T) {
	p, _, err := Size(Shape{Nodes: 1, Records: 2000, KeyBytes: 8, ValueBytes: 100, Clients: 8})
	must(t, err)
	f := memPool(t, 1, p)
	s := storeOn(t, f, Options{})
	key := func(i int) []byte { return fmt.Appendf(nil, "k%06d", i) }
	short, long := []byte("8 bytes."), make([]byte, 60)
	for i := range 500 {
		must(t, s.Insert(key(2*i), short))
	}
	for i := range 500 { // and blocks
		must(t, s.Update(key(2*i), short))
	}
	must(t, s.Insert(key(2001), long))
	must(t, s.Delete(key(302))) // leaves are full
	count := func(what string, want rdma.Counters, f func() error) {
		t.Helper()
		must(t, s.work(true))
		n := trace.Trips(s.ep, func() { must(t, f()) })
		if n.Trips != want.Trips || n.Reads != want.Reads || n.Writes != want.Writes || n.Atomics != want.Atomics ||
			want.BytesRead > 0 && n.BytesRead != want.BytesRead ||
			want.BytesWrote > 0 && n.BytesWrote != want.BytesWrote {
			t.Errorf("%s: %+v, want %+v", what, n, want)
		}
	}
	get := func(k []byte) func() error {
		return func() error { _, err := s.Get(k); return err }
	}
	count("get", rdma.Counters{Trips: 1, Reads: 1, BytesRead: 1024}, get(key(300)))
	count("get, beside", rdma.Counters{Trips: 2, Reads: 2}, get(key(2001)))
	count("update", rdma.Counters{Trips: 3, Reads: 1, Writes: 1, Atomics: 2, BytesRead: 1024, BytesWrote: 24},
		func() error { return s.Update(key(300), short) })
	count("insert", rdma.Counters{Trips: 3, Reads: 1, Writes: 1, Atomics: 2, BytesRead: 1024, BytesWrote: 24},
		func() error { return s.Insert(key(301), short) })
	count("delete", rdma.Counters{Trips: 3, Reads: 1, Writes: 1, Atomics: 2, BytesRead: 1024, BytesWrote: 8},
		func() error { return s.Delete(key(301)) })
	count("update of another length", rdma.Counters{Trips: 3, Reads: 1, Writes: 2, Atomics: 2},
		func() error { return s.Update(key(300), short[:3]) })
	count("update, beside", rdma.Counters{Trips: 3, Reads: 1, Writes: 2, Atomics: 2},
		func() error { return s.Update(key(2001), long) })
	count("delete, beside", rdma.Counters{Trips: 4, Reads: 1, Writes: 1, Atomics: 3},
		func() error { return s.Delete(key(2001)) })
	count("insert of a key that is there", rdma.Counters{Trips: 3, Reads: 1, Atomics: 2}, func() error {
		wantError(t, s.Insert(key(300), short), client.ErrExists)
		return nil
	})
	// 32 leaves are read side by side.
	count("scan", rdma.Counters{Trips: 1, Reads: 4}, func() error {
		return s.Scan(key(40), 70, func(_, _ []byte) bool { return true })
	})
}

// TestAllocations: GET and UPDATE allocate nothing in steady state.
func TestAllocations(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 100))
	s := storeOn(t, f, Options{})
	key, beside, value := []byte("key"), []byte("beside"), make([]byte, 60)
	must(t, s.Insert(key, value[:8]))
	must(t, s.Insert(beside, value))
	turn := func() {
		must(t, s.Update(key, value[:8]))
		must(t, s.Update(beside, value))
		_, err := s.Get(key)
		must(t, err)
		_, err = s.Get(beside)
		must(t, err)
	}
	for range 200 {
		turn()
	}
	if got := testing.AllocsPerRun(1000, turn); got > 0 {
		t.Errorf("%v allocations", got)
	}
}
