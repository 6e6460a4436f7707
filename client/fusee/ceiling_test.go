package fusee

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/client/race"
)

// A life that deletes little reserves few tombstones: an identity has 2^32 of them, and what a life
// does not use is lost.
func TestShortLivesTakeFewTombstones(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	const lives = 20
	var limit uint64
	for range lives {
		c, leave := life(t, f, Options{})
		must(t, c.Insert([]byte("key"), nil))
		must(t, c.Delete([]byte("key")))
		limit = c.numbers.tombLimit
		leave()
	}
	if limit > lives*firstTombStep {
		t.Errorf("%d lives reserved %d tombstones, want %d a life at most", lives, limit, firstTombStep)
	}
}

// The steps of a long life grow, so that raising the ceiling costs it next to nothing.
func TestLongLifeRaisesSeldom(t *testing.T) {
	var n numbers
	raises := 0
	for ; n.tombLimit < 1<<20; raises++ {
		var err error
		n, err = n.reserve(maxOwnTomb)
		must(t, err)
	}
	if most := 1<<20/lastTombStep + 10; raises > most {
		t.Errorf("%d raises for %d tombstones, want %d at most", raises, n.tombLimit, most)
	}
}

// An identity that has used all its tombstones writes no more, in any life: the next tombstone
// would be a word that may still be in some slot. It reads and closes, and unfinished writes of
// it are still completed.
func TestSpentIdentityIsRefused(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	first, leave := life(t, f, Options{})
	const rest = 5
	must(t, first.writeCeiling(1, numbers{seqLimit: seqStep, tombLimit: maxOwnTomb - rest}))
	leave()
	c, leave := life(t, f, Options{})
	if c.id != 1 {
		t.Fatalf("client %d, want 1", c.id)
	}
	for i := range rest {
		must(t, c.Insert(fmt.Append(nil, i), nil))
		must(t, c.Delete(fmt.Append(nil, i)))
	}
	for range 2 { // of the same holder, and of the next
		for _, write := range []func() error{
			func() error { return c.Insert([]byte("key"), nil) },
			func() error { return c.Update([]byte("key"), nil) },
			func() error { return c.Delete([]byte("key")) },
		} {
			wantError(t, write(), ErrExhausted)
		}
		if _, err := c.Get([]byte("key")); err == nil {
			t.Error("a refused INSERT added its key")
		}
		leave()
		c, leave = life(t, f, Options{})
	}
	leave()
	checkClean(t, f)
}

// Recoveries of a spent identity have tombstones of their own, and end where those do.
func TestSpentIdentityIsRecovered(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c, leave := life(t, f, Options{})
	defer leave()
	n := numbers{seqLimit: seqStep, tomb: maxOwnTomb, tombLimit: maxOwnTomb}
	seen := map[race.Word]bool{}
	for range 3 * lastTombStep {
		w, err := c.tombstoneOf(2, &n, 7)
		must(t, err)
		if seen[w] {
			t.Fatalf("tombstone %v twice", w)
		}
		seen[w] = true
	}
	n.tomb, n.tombLimit = maxTomb, maxTomb
	if w, err := c.tombstoneOf(2, &n, 7); err == nil {
		t.Errorf("tombstone %v behind the last one", w)
	}
}
