package swarm

import (
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// crowded is a pool with one bucket in its directory.
func crowded() Params {
	p := small(3, 3, false)
	p.Buckets = 1
	return p
}

// TestCrowdedBucket: no master sweeps, and each INSERT of a key of its own finds room where others
// were deleted, whatever their hashes. A bucket of live keys is full.
func TestCrowdedBucket(t *testing.T) {
	const inserts, live = 20 * directory.Slots, directory.Slots - 4
	s := storeOn(t, storePool(t, 3, crowded()), StoreOptions{})
	key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n) }
	for n := range inserts {
		if n >= live {
			must(t, s.Delete(key(n-live)))
		}
		must(t, s.Insert(key(n), []byte("value")))
	}
	for n := range live {
		_, err := s.Get(key(inserts - live + n))
		must(t, err)
		_, err = s.Get(key(inserts - 2*live + n))
		wantError(t, err, client.ErrNotFound)
	}
	for n := range directory.Slots - live {
		must(t, s.Insert(key(inserts+n), []byte("value")))
	}
	wantError(t, s.Insert(key(inserts+live), []byte("value")), client.ErrFull)
	must(t, s.Delete(key(inserts)))
	must(t, s.Insert(key(inserts+live), []byte("value")))
}

// TestFewDead: also without a sweep, the directory names few of the objects of which the keys were
// deleted.
func TestFewDead(t *testing.T) {
	f := storePool(t, 3, crowded())
	s := storeOn(t, f, StoreOptions{})
	for n := range 5 * directory.Slots {
		key := fmt.Appendf(nil, "key-%d", n)
		must(t, s.Insert(key, []byte("value")))
		must(t, s.Delete(key))
	}
	r, err := Check(f)
	must(t, err)
	for _, fact := range r.Facts {
		if fact.Name == "deleted keys with an entry" && fact.Count > directory.Slots/4 {
			t.Errorf("%d entries are dead", fact.Count)
		}
	}
}

// TestSlowSweep: an INSERT that finds no object waits for a sweep that begins late and takes long,
// until its timeout is over.
func TestSlowSweep(t *testing.T) {
	p := small(3, 3, false)
	p.Regions, p.Objects, p.Buckets = 3, 8, 16
	l, err := newPlan(p, 3)
	must(t, err)
	s := sim.New(sim.Options{Nodes: 3, Memory: l.bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	must(t, Make(s, p))
	key := func(n int) []byte { return fmt.Appendf(nil, "key-%d", n) }
	const slow = time.Second / 2 // to begin, and to end: together less than the timeout
	deleted, swept := false, false
	nothing := func() {}
	s.Go("client", func(ep rdma.Endpoint) {
		k, err := OpenStore(ep, StoreOptions{})
		must(t, err)
		for n := range p.Regions * p.Objects {
			must(t, k.Insert(key(n), []byte("value")))
		}
		must(t, k.Delete(key(0)))
		for deleted = true; !swept; {
			ep.Sleep(time.Millisecond)
		}
		began := s.Now()
		must(t, k.Insert([]byte("new"), []byte("value")))
		if took := s.Now() - began; took < 2*slow {
			t.Errorf("the INSERT waited for %v, and so for no slow sweep", took)
		}
	})
	s.Go("master", func(ep rdma.Endpoint) {
		m, err := NewRecoverer(ep)
		must(t, err)
		for !deleted {
			ep.Sleep(time.Millisecond)
		}
		for range sweptFor {
			sweepOnce(t, s, ep, m, nothing, nothing)
		}
		for swept = true; ; {
			ep.Sleep(time.Millisecond)
			if asked, err := m.asked(s.View()); err != nil || asked != 0 {
				must(t, err)
				break
			}
		}
		ep.Sleep(slow)
		sweepOnce(t, s, ep, m, func() { ep.Sleep(slow) }, nothing)
	})
	must(t, s.Run())
}

// TestCrowdedHalfDeleted: an INSERT takes the place of another key, of which the deleter died after
// its mark. First it ends that key for clients that have it cached.
func TestCrowdedHalfDeleted(t *testing.T) {
	f := storePool(t, 3, crowded())
	x, y, z := storeOn(t, f, StoreOptions{}), storeOn(t, f, StoreOptions{}), storeOn(t, f, StoreOptions{})
	key := []byte("key")
	must(t, x.Insert(key, []byte("old")))
	for n := range directory.Slots - 1 {
		must(t, x.Insert(fmt.Appendf(nil, "other-%d", n), []byte("value")))
	}
	_, err := y.Get(key)
	must(t, err)
	c := change{s: x, hash: xxhash.Sum64(key), key: key}
	must(t, c.run(c.mark))
	if v, err := y.Get(key); err != nil || string(v) != "old" {
		t.Errorf("a key that no client has deleted yet: got %q, %v", v, err)
	}
	must(t, z.Insert([]byte("new"), []byte("value")))
	_, err = y.Get(key)
	wantError(t, err, client.ErrNotFound)
	must(t, z.Delete([]byte("new"))) // the place of the old key is free, and no other one is
	must(t, z.Insert(key, []byte("again")))
	wantError(t, z.Insert([]byte("new"), []byte("value")), client.ErrFull)
}

// crowdedFar is a bucket with entries of deleted keys. Their objects lie in one region: two of its
// three nodes have no replica of the bucket.
type crowdedFar struct {
	*Store
	keys  [][]byte // of the bucket
	nodes []int    // the two
	near  int      // a region that has most of its replicas, and the first, on the bucket's nodes
	far   int
}

func newCrowdedFar(t *testing.T, s *Store) *crowdedFar {
	t.Helper()
	c := &crowdedFar{Store: s, near: -1, far: -1}
	bucket := s.dir.BucketOf(xxhash.Sum64([]byte("key")))
	for n := 0; len(c.keys) < 2*directory.Slots; n++ {
		if key := fmt.Appendf(nil, "key-%d", n); s.dir.BucketOf(xxhash.Sum64(key)) == bucket {
			c.keys = append(c.keys, key)
		}
	}
	holders := map[int]bool{}
	for _, a := range s.plan.dir.Sections()[int(bucket)] {
		holders[a.Node()] = true
	}
	for r, at := range s.regions {
		var others []int
		for _, a := range at[:s.Replicas] {
			if !holders[a.Node()] {
				others = append(others, a.Node())
			}
		}
		switch {
		case len(others) >= 2 && c.far < 0:
			c.far, c.nodes = r, others[:2]
		case len(others) <= 1 && holders[at[0].Node()]:
			c.near = r
		}
	}
	if c.far < 0 || c.near < 0 {
		t.Fatal("no region lies apart from the bucket: this test shows nothing")
	}
	return c
}

// from makes the next INSERTs take objects of a region.
func (c *crowdedFar) from(region int) {
	c.objects.region, c.objects.free, c.objects.location = region, nil, 0
}

// TestDeadOutOfReach: while the bucket has room, an INSERT does not need the nodes of deleted
// keys. In a full bucket it takes the place of a deleted key with an object in reach, and fails
// if there is none.
func TestDeadOutOfReach(t *testing.T) {
	const far = 4
	for _, near := range []int{0, 1} { // deleted keys with objects that stay in reach
		p := small(6, 3, false)
		p.Buckets, p.Timeout = 6, 200*time.Millisecond
		f := storePool(t, 6, p)
		c := newCrowdedFar(t, storeOn(t, f, StoreOptions{}))
		keys := c.keys
		insert := func(n int) {
			t.Helper()
			for ; n > 0; n-- {
				must(t, c.Insert(keys[0], []byte("value")))
				keys = keys[1:]
			}
		}
		c.from(c.far)
		insert(far)
		c.from(c.near)
		insert(near)
		for _, key := range c.keys[:far+near] {
			must(t, c.Delete(key))
			c.pendingDrops = nil // as if another client had deleted it, and died
		}
		for _, n := range c.nodes {
			must(t, f.KillNode(n))
		}
		insert(directory.Slots - far)
		wantError(t, c.Insert(keys[0], []byte("value")), rdma.ErrNodeDown)
	}
}
