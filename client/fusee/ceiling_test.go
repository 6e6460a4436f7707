package fusee

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/client/fusee/session"
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
		limit = c.s.Numbers.TombLimit
		leave()
	}
	if limit > lives*session.FirstTombStep {
		t.Errorf("%d lives reserved %d tombstones, want %d a life at most", lives, limit, session.FirstTombStep)
	}
}

// The steps of a long life grow, so that raising the ceiling costs it next to nothing.
func TestLongLifeRaisesSeldom(t *testing.T) {
	var n session.Numbers
	raises := 0
	for ; n.TombLimit < 1<<20; raises++ {
		var err error
		n, err = n.Reserve(session.MaxOwnTomb)
		must(t, err)
	}
	if most := 1<<20/session.LastTombStep + 10; raises > most {
		t.Errorf("%d raises for %d tombstones, want %d at most", raises, n.TombLimit, most)
	}
}

// An identity that has used all its tombstones writes no more, in any life: the next tombstone
// would be a word that may still be in some slot. It reads and closes, and unfinished writes of
// it are still completed.
func TestSpentIdentityIsRefused(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	first, leave := life(t, f, Options{})
	const rest = 5
	must(t, first.s.WriteCeiling(1, session.Numbers{SeqLimit: session.SeqStep, TombLimit: session.MaxOwnTomb - rest}))
	leave()
	c, leave := life(t, f, Options{})
	if c.s.ID != 1 {
		t.Fatalf("client %d, want 1", c.s.ID)
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
			wantError(t, write(), session.ErrExhausted)
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
	n := session.Numbers{SeqLimit: session.SeqStep, Tomb: session.MaxOwnTomb, TombLimit: session.MaxOwnTomb}
	seen := map[race.Word]bool{}
	for range 3 * session.LastTombStep {
		w, err := c.s.TombstoneOf(2, &n, 7)
		must(t, err)
		if seen[w] {
			t.Fatalf("tombstone %v twice", w)
		}
		seen[w] = true
	}
	n.Tomb, n.TombLimit = session.MaxTomb, session.MaxTomb
	if w, err := c.s.TombstoneOf(2, &n, 7); err == nil {
		t.Errorf("tombstone %v behind the last one", w)
	}
}
