package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/trace"
)

// pool makes a formatted pool of this process.
func pool(t testing.TB, nodes int, p layout.Params) *shm.Fabric {
	t.Helper()
	l, err := layout.New(p, nodes, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: l.Bytes, Clients: p.Clients}, node.Serve)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := session.Make(f, p); err != nil {
		t.Fatal(err)
	}
	return f
}

// worker opens a client, through an endpoint that wrap may change. thrifty gives a client a small
// cache, unless the options have one: to clear a large one is most of the time that Open takes.
func thrifty(o Options) Options {
	if o.CacheBytes == nil {
		o.CacheBytes = new(64 << 10)
	}
	return o
}

func worker(t testing.TB, f rdma.Fabric, o Options, wrap func(rdma.Endpoint) rdma.Endpoint) *Client {
	t.Helper()
	ep, err := f.Open(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		ep = wrap(ep)
	}
	c, err := Open(ep, thrifty(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, rdma.ErrClosed) {
			t.Error(err)
		}
		ep.Close()
	})
	return c
}

// ownBlocks lists the blocks in which a client allocates.
func ownBlocks(c *Client) (list []*memory.Block) {
	for _, s := range c.mem.Holdings.Slabs {
		list = append(list, s.Blocks...)
	}
	return list
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // which reads the stack: benchmarks call must
		t.Fatal(err)
	}
}

func wantError(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want an error wrapping %v", got, want)
	}
}

// TestTrips asserts the trip counts of FUSEE 4.3 and 4.6, and what this package's duplicate rule
// adds: a trip of an INSERT, in which its word becomes final (duplicate.go).
func TestTrips(t *testing.T) {
	for _, r := range []struct {
		index                                                  int
		insert, update, updateMiss, search, searchMiss, absent int
	}{
		// With one replica the INSERT's second trip is fenced, and takes two latencies; the log is
		// committed beside the CAS.
		{1, 4, 2, 3, 1, 2, 1},
		{2, 5, 4, 5, 1, 2, 1},
		{3, 5, 4, 5, 1, 2, 1},
		{5, 5, 4, 5, 1, 2, 1},
	} {
		t.Run(fmt.Sprintf("%d index replicas", r.index), func(t *testing.T) {
			f := pool(t, 5, small(5, r.index, 2))
			c, cold := worker(t, f, Options{}, nil), worker(t, f, Options{CacheBytes: new(0)}, nil)
			value := make([]byte, 100)
			must(t, c.Insert([]byte("first"), value)) // allocates a block
			must(t, cold.Update([]byte("first"), value))
			for _, c := range []*Client{c, cold} {
				must(t, c.Insert([]byte("third"), value))
				must(t, c.Delete([]byte("third")))
			}
			trips := func(what string, c *Client, want int, wantErr error, op func() error) {
				t.Helper()
				var err error
				n := trace.Trips(c.s.Endpoint, func() { err = op() })
				if !errors.Is(err, wantErr) {
					t.Errorf("%s: got %v, want %v", what, err, wantErr)
				}
				if int(n.Trips) != want {
					t.Errorf("%s took %d trips, want %d (%+v)", what, n.Trips, want, n)
				}
			}
			k := []byte("second")
			get := func(c *Client) func() error { return func() error { _, err := c.Get(k); return err } }
			trips("insert", c, r.insert, nil, func() error { return c.Insert(k, value) })
			trips("insert of a key that exists", c, 2, client.ErrExists, func() error { return c.Insert(k, value) })
			trips("update on a hit", c, r.update, nil, func() error { return c.Update(k, value) })
			trips("search on a hit", c, r.search, nil, get(c))
			trips("search on a miss", cold, r.searchMiss, nil, get(cold))
			trips("update on a miss", cold, r.updateMiss, nil, func() error { return cold.Update(k, value) })
			trips("search of a replaced pair", c, 2, nil, get(c))
			trips("delete on a miss", cold, r.updateMiss, nil, func() error { return cold.Delete(k) })
			trips("update of an absent key", cold, r.absent, client.ErrNotFound,
				func() error { return cold.Update(k, value) })
			trips("delete of an absent key", cold, r.absent, client.ErrNotFound, func() error { return cold.Delete(k) })
			trips("search of an absent key", cold, r.absent, client.ErrNotFound, get(cold))
			must(t, c.Insert(k, value))
			trips("delete on a hit", c, r.update, nil, func() error { return c.Delete(k) })
		})
	}
}

// TestRules asserts 3, 4 and 5 trips of a slot write (FUSEE 4.3), besides the trip in which an
// UPDATE writes its object. A writer that died after proposing to some backups plays the loser.
func TestRules(t *testing.T) {
	for _, r := range []struct {
		replicas, foreign int // index replicas, and backups that the other writer has changed
		rule              snapshot.Rule
		trips             int
	}{
		{4, 0, snapshot.Rule1, 4},
		{4, 1, snapshot.Rule2, 5},
		{3, 1, snapshot.Rule3, 6},
		{5, 2, snapshot.Rule3, 6},
	} {
		t.Run(fmt.Sprintf("rule %d with %d replicas", r.rule, r.replicas), func(t *testing.T) {
			f := pool(t, 5, small(5, r.replicas, 2))
			c := worker(t, f, Options{}, nil)
			k := []byte("key")
			must(t, c.Insert(k, []byte("old")))
			propose(t, c, k, r.foreign, (^race.Word(0)).Final())
			var err error
			n := trace.Trips(c.s.Endpoint, func() { err = c.Update(k, []byte("new")) })
			must(t, err)
			if int(n.Trips) != r.trips || c.Stats().Rules[r.rule] == 0 {
				t.Errorf("took %d trips, want %d; won by rules %v", n.Trips, r.trips, c.Stats().Rules)
			}
			if v, err := c.Get(k); err != nil || string(v) != "new" {
				t.Errorf("got %q, %v", v, err)
			}
			checkClean(t, f)
		})
	}
}

// propose changes n backups of a key's slot to word, as a writer would that then dies or stalls.
func propose(t testing.TB, c *Client, key []byte, n int, word race.Word) {
	t.Helper()
	e := c.cache.Find(race.Hash(key))
	if e == nil {
		t.Fatalf("%q is not cached", key)
	}
	b := c.s.Batch()
	defer b.Release()
	for i := range n {
		b.CompareSwap(c.s.Index.Address(e.slot(), c.s.IndexReplicas-1-i), uint64(e.word), uint64(word))
	}
	must(t, c.s.Do("test", b))
	for i := range n {
		if !b.Op(i).Swapped() {
			t.Fatalf("backup holds %v", race.Word(b.Op(i).Result))
		}
	}
}

func checkClean(t testing.TB, f rdma.Fabric) client.Report {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	for _, d := range append(r.Damage, r.Waiting...) {
		t.Error(d)
	}
	return r
}

// TestDeadWinner: a loser ends at its timeout with ErrUncertain when the winner is gone, and
// leaves others alone.
func TestDeadWinner(t *testing.T) {
	f := pool(t, 3, small(3, 3, 2))
	c := worker(t, f, Options{Timeout: 300 * time.Millisecond}, nil)
	a, b := []byte("a"), []byte("b")
	must(t, c.Insert(a, []byte("1")))
	must(t, c.Insert(b, []byte("1")))
	propose(t, c, a, 2, race.Pack(1, 1, 7, 1))
	wantError(t, c.Update(a, []byte("2")), client.ErrUncertain)
	wantError(t, c.Delete(a), client.ErrUncertain)
	must(t, c.Update(b, []byte("2")))
	if v, err := c.Get(a); err != nil || string(v) != "1" {
		t.Errorf("got %q, %v", v, err)
	}
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) == 0 {
		t.Error("check does not see the unfinished write")
	}
}
