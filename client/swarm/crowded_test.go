package swarm

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/directory"
)

// crowded is a pool whose directory has one bucket.
func crowded() Params {
	p := small(3, 3, false)
	p.Buckets = 1
	return p
}

// TestCrowdedBucket: no master sweeps, and each INSERT of a key of its own finds room where others were deleted, whatever their
// hashes. A bucket of live keys is full.
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

// TestCrowdedHalfDeleted: an INSERT that takes the place of another key, whose DELETE died behind its mark, first ends that
// key for those who have it cached.
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
		t.Errorf("a key that nobody deleted: got %q, %v", v, err)
	}
	must(t, z.Insert([]byte("new"), []byte("value")))
	_, err = y.Get(key)
	wantError(t, err, client.ErrNotFound)
	must(t, z.Delete([]byte("new"))) // the place of the old key is free, and no other one is
	must(t, z.Insert(key, []byte("again")))
	wantError(t, z.Insert([]byte("new"), []byte("value")), client.ErrFull)
}
