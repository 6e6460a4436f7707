package swarm

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/trace"
)

// TestStoreTrips asserts the trips of operations without contention, SWARM's and DM-ABD's (Table
// 2).
func TestStoreTrips(t *testing.T) {
	for _, c := range []struct {
		apart                                  bool
		get, missed, update, unknown, ins, del uint64
	}{
		{false, 1, 2, 1, 3, 4, 4},
		{true, 2, 3, 2, 5, 4, 4}, // values are fetched, and writers read first
	} {
		p := small(3, 3, c.apart)
		l, err := newPlan(p, 3)
		must(t, err)
		// The latency is fixed, so no replica is slow by chance.
		f := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
		t.Cleanup(func() { f.Close() })
		must(t, Make(f, p))
		x, y := storeOn(t, f, StoreOptions{Apart: c.apart}), storeOn(t, f, StoreOptions{Apart: c.apart})
		trips := func(what string, s *Store, want uint64, wantErr error, op func() error) {
			t.Helper()
			var err error
			s.ep.Sleep(time.Millisecond) // guesses in one tick are stale
			n := trace.Trips(s.ep, func() { err = op() })
			if wantErr == nil && err != nil || !errors.Is(err, wantErr) {
				t.Errorf("%s: got %v, want %v", what, err, wantErr)
			}
			if n.Trips != want {
				t.Errorf("%s: %s takes %d trips, want %d (%+v)", formatName(false, c.apart), what, n.Trips, want, n)
			}
		}
		key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n) }
		get := func(s *Store, n int) func() error { return func() error { _, err := s.Get(key(n)); return err } }
		update := func(s *Store, n int) func() error { return func() error { return s.Update(key(n), key(n)) } }
		for _, s := range []*Store{x, y} {
			s.stock(t)
		}
		trips("INSERT", x, c.ins, nil, func() error { return x.Insert(key(200), key(200)) })
		trips("GET", x, c.get, nil, get(x, 200))
		trips("GET of what is not cached", y, c.missed, nil, get(y, 200))
		trips("GET", y, c.get, nil, get(y, 200))
		trips("UPDATE", y, c.update, nil, update(y, 200))
		trips("UPDATE", y, c.update, nil, update(y, 200))
		trips("UPDATE behind others", x, c.update, nil, update(x, 200))
		trips("INSERT of what is there", y, c.ins-2, client.ErrExists,
			func() error { return y.Insert(key(200), key(200)) })
		must(t, x.Insert(key(201), key(201)))
		trips("UPDATE of what is not cached", y, c.unknown, nil, update(y, 201))
		trips("DELETE", y, c.del, nil, func() error { return y.Delete(key(201)) })
		trips("GET of what is known to be there no more", x, 1+1+1, client.ErrNotFound, get(x, 201))
		trips("GET of what was deleted", y, 1+1, client.ErrNotFound, get(y, 201))
		trips("GET of what never was there", y, 1, client.ErrNotFound, get(y, 300))
		trips("UPDATE of what never was there", y, 1, client.ErrNotFound, update(y, 300))
		trips("DELETE of what never was there", y, 1, client.ErrNotFound, func() error { return y.Delete(key(300)) })
	}
}

// stock gives a worker some buffers of each segment, and objects, as it has after a while.
func (s *Store) stock(t testing.TB) {
	t.Helper()
	for _, w := range []*buffers.Worker{s.index, s.values} {
		for n := range s.nodes {
			for seg := range uint64(w.Segments) {
				var mine [10]uint16
				for i := range mine {
					p, _, err := w.Allocate(n, seg)
					must(t, err)
					mine[i] = p
				}
				for _, p := range mine {
					w.Give(n, seg, p)
				}
			}
		}
	}
	for range 2 {
		must(t, s.Insert(fmt.Appendf(nil, "stock %d of %d", s.objects.chunk, s.ep.Client()), nil))
	}
}

// TestStoreAllocations: GET and UPDATE of what is cached make none.
func TestStoreAllocations(t *testing.T) {
	for _, apart := range []bool{false, true} {
		s := storeOn(t, storePool(t, 3, small(3, 3, apart)), StoreOptions{Apart: apart})
		key, value := []byte("some key"), make([]byte, 1000)
		must(t, s.Insert(key, value))
		for range 50 {
			must(t, s.Update(key, value))
		}
		if n := testing.AllocsPerRun(200, func() { must(t, s.Update(key, value)) }); n != 0 {
			t.Errorf("UPDATE makes %v allocations", n)
		}
		if n := testing.AllocsPerRun(200, func() { _, err := s.Get(key); must(t, err) }); n != 0 {
			t.Errorf("GET makes %v allocations", n)
		}
	}
}

// TestIdentityAgain: a client that has an identity after another one writes above all that its
// predecessor wrote, though the clock is set back. A client that closes leaves its successor a
// ceiling that is not ahead.
func TestIdentityAgain(t *testing.T) {
	f := storePool(t, 3, small(3, 3, false))
	key := []byte("key")
	var last uint64
	for n := range 5 {
		ep, err := f.Open("again")
		must(t, err)
		s, err := OpenStore(ep, StoreOptions{})
		must(t, err)
		if ep.Client() != 1 {
			t.Fatalf("client %d", ep.Client())
		}
		if s.ticks.Used() < last || s.ticks.Used() > last+ceilingAhead/2 {
			t.Errorf("client %d begins at %d behind %d", n, s.ticks.Used(), last)
		}
		s.c.opt.Clock = &still{time.Nanosecond}
		if n == 0 {
			must(t, s.Insert(key, []byte("0")))
		}
		must(t, s.Update(key, fmt.Append(nil, n)))
		last = s.ticks.Used()
		if v, err := s.Get(key); err != nil || string(v) != fmt.Sprint(n) {
			t.Errorf("got %q, %v, want %d", v, err, n)
		}
		must(t, s.Close())
		must(t, ep.Close())
	}
}

// TestSameHash: keys with the same hash are told apart, in the directory and in the cache.
func TestSameHash(t *testing.T) {
	s := storeOn(t, storePool(t, 3, small(3, 3, false)), StoreOptions{})
	one, two := []byte("one"), []byte("two")
	must(t, s.Insert(one, []byte("1")))
	*s.cache.Put(xxhash.Sum64(two)) = *s.cache.Find(xxhash.Sum64(one)) // as if their hashes were equal
	if _, err := s.Get(two); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a cached location is another key's: got %v", err)
	}
	*s.cache.Put(xxhash.Sum64(two)) = *s.cache.Find(xxhash.Sum64(one))
	if err := s.Update(two, []byte("2")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a cached location is another key's: got %v", err)
	}
	location := s.cache.Find(xxhash.Sum64(one)).location
	must(t, s.dir.Change(xxhash.Sum64(two), 1<<62, func(b []directory.Entry) ([]directory.Entry, error) {
		return append(b, directory.Entry{Hash: xxhash.Sum64(two), Location: location}), nil
	}))
	if _, err := s.Get(two); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("an entry is another key's: got %v", err)
	}
	must(t, s.Insert(two, []byte("2")))
	for key, want := range map[string]string{"one": "1", "two": "2"} {
		if v, err := s.Get([]byte(key)); err != nil || string(v) != want {
			t.Errorf("key %q: got %q, %v", key, v, err)
		}
	}
	if err := s.Delete(two); err != nil {
		t.Error(err)
	}
	if v, err := s.Get(one); err != nil || string(v) != "1" {
		t.Errorf("another key of the hash was deleted: got %q, %v", v, err)
	}
}

// TestHalfDeleted: a client that died after its mark has deleted nothing yet. A client that asks
// the directory deletes the key for all clients, also for those that have it cached, before it
// reports that the key does not exist, or inserts it again.
func TestHalfDeleted(t *testing.T) {
	for _, op := range []string{"get", "update", "delete", "insert"} {
		f := storePool(t, 3, small(3, 3, false))
		x, y, z := storeOn(t, f, StoreOptions{}), storeOn(t, f, StoreOptions{}), storeOn(t, f, StoreOptions{})
		key := []byte("key")
		must(t, x.Insert(key, []byte("old")))
		_, err := y.Get(key)
		must(t, err)
		c := change{s: x, hash: xxhash.Sum64(key), key: key}
		must(t, c.run(func(b []directory.Entry) ([]directory.Entry, error) {
			rest, at, err := c.find(b)
			if err == nil {
				rest[at].Location |= dying
			}
			return rest, err
		}))
		if v, err := y.Get(key); err != nil || string(v) != "old" {
			t.Errorf("a key that no client has deleted yet: got %q, %v", v, err)
		}
		want := ""
		switch op {
		case "get":
			_, err = z.Get(key)
			wantError(t, err, client.ErrNotFound)
		case "update":
			wantError(t, z.Update(key, []byte("new")), client.ErrNotFound)
		case "delete":
			wantError(t, z.Delete(key), client.ErrNotFound)
		case "insert":
			want = "new"
			must(t, z.Insert(key, []byte(want)))
		}
		v, err := y.Get(key)
		if want == "" && !errors.Is(err, client.ErrNotFound) || string(v) != want {
			t.Errorf("behind %s of a key that was half deleted: got %q, %v; want %q", op, v, err, want)
		}
	}
}
