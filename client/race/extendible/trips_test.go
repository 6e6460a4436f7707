package extendible

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/trace"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// memPool makes a pool of memory of this process.
func memPool(t testing.TB, nodes int, format string, p Params) rdma.Fabric {
	t.Helper()
	return memPoolOf(t, nodes, format, p, 8<<20)
}

func memPoolOf(t testing.TB, nodes int, format string, p Params, memory uint64) rdma.Fabric {
	t.Helper()
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: memory, Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, Make(f, format, p))
	return f
}

func storeOn(t testing.TB, f rdma.Fabric) *Store {
	t.Helper()
	ep, err := f.Open("worker")
	must(t, err)
	s, err := Open(ep, Options{})
	must(t, err)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sound expects a pool that is whole, with so many pairs.
func sound(t testing.TB, f rdma.Fabric, pairs uint64) {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Waiting) > 0 || r.Facts[0].Count != pairs {
		t.Errorf("check finds %+v, want %d pairs", r, pairs)
	}
}

// key returns a key by its number. No two of those that are tried here have the
// same fingerprint.
func key(i int) []byte { return fmt.Appendf(nil, "key %d", i) }

// TestTrips asserts what operations take on the critical path: uncontended, and
// by a client that has a copy of the directory from before a rehash. The look is
// a READ more for UPDATE, DELETE and INSERT, and no trip more for a GET.
func TestTrips(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f := memPool(t, nodes, RTX, Params{Groups: 64, PairBytes: 200, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
		s, stale := storeOn(t, f), storeOn(t, f)
		value := make([]byte, 8)
		must(t, s.Insert(key(1), value))
		must(t, s.Insert(key(2), value))
		count := func(what string, s *Store, trips, reads, writes, atomics uint64, want error,
			op func(s *Store) error) {
			t.Helper()
			n := trace.Trips(s.ep, func() {
				if err := op(s); !errors.Is(err, want) {
					t.Errorf("%s: %v", what, err)
				}
			})
			if n.Trips != trips || n.Reads != reads || n.Writes != writes || n.Atomics != atomics {
				t.Errorf("%d nodes: %s took %d trips, %d READs, %d WRITEs, %d atomics, want %d, %d, %d, %d", nodes,
					what, n.Trips, n.Reads, n.Writes, n.Atomics, trips, reads, writes, atomics)
			}
		}
		get := func(s *Store) error { _, err := s.Get(key(1)); return err }
		absent := func(s *Store) error { _, err := s.Get(key(0)); return err }
		update := func(s *Store) error { return s.Update(key(1), value) }
		insert := func(s *Store) error { return s.Insert(key(3), value) }
		remove := func(s *Store) error { return s.Delete(key(3)) }
		count("GET", s, 2, 4, 0, 0, nil, get)
		count("GET of nothing", s, 2, 3, 0, 0, client.ErrNotFound, absent)
		count("UPDATE", s, 4, 5, 1, 1, nil, update)
		count("INSERT", s, 5, 6, 1, 2, nil, insert)
		count("INSERT of what is there", s, 2, 4, 1, 0, client.ErrExists, insert)
		count("DELETE", s, 4, 5+1, 1, 1+1, nil, remove)
		// The test waits for what the DELETE has left in the background: the CAS,
		// and the look behind it.
		count("DELETE of nothing, at once", s, 2+2, 3, 1, 0, client.ErrNotFound, remove)
		count("INSERT behind a DELETE", s, 5, 6, 1, 2, nil, insert)
		_ = get(stale)
		must(t, s.split())
		// It reads the entry and the descriptor; for a key that has moved also
		// those of the new subtable.
		before := trace.Trips(stale.ep, func() { must(t, get(stale)) }).Trips
		if before != 4+2 && before != 4+2+2 {
			t.Errorf("GET behind a rehash took %d trips", before)
		}
		count("GET", stale, 2, 4, 0, 0, nil, get)
		must(t, s.Close())
		must(t, stale.Close())
		sound(t, f, 3)
	}
}

// split splits the subtable of key 1.
func (s *Store) split() error {
	s.start(key(1))
	in, err := s.directory.find(s.op.hash)
	if err != nil {
		return err
	}
	s.splits = func(int) bool { return true }
	defer func() { s.splits = nil }()
	return s.makeRoom(in)
}

// TestAllocations: in steady state nothing is allocated.
func TestAllocations(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("the race detector allocates")
	}
	f := memPool(t, 2, RTX, Params{Groups: 64, PairBytes: 200, Depth: 8, Clients: 8, Timeout: 20 * time.Second})
	s := storeOn(t, f)
	value := make([]byte, 100)
	for i := range 100 {
		must(t, s.Insert(key(i), value))
	}
	n := 0
	for _, c := range []struct {
		what string
		op   func() error
	}{
		{"GET", func() error { _, err := s.Get(key1[n%100]); return err }},
		{"UPDATE", func() error { return s.Update(key1[n%100], value) }},
		{"DELETE and INSERT", func() error { return errors.Join(s.Delete(key1[n%100]), s.Insert(key1[n%100], value)) }},
	} {
		for range 200 {
			n++
			must(t, c.op())
		}
		if got := testing.AllocsPerRun(1000, func() { n++; must(t, c.op()) }); got > 0 {
			t.Errorf("%s allocates %v times", c.what, got)
		}
	}
	must(t, s.Close())
	sound(t, f, 100)
}

var key1 = func() (all [100][]byte) {
	for i := range all {
		all[i] = key(i)
	}
	return all
}()
