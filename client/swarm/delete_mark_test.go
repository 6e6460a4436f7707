package swarm

import (
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client/directory"
)

// TestOneVictim: an attempt of a DELETE finds the key at one object, and the next attempt at
// another one. These must not be attempts of one change: its client would not know which object
// is dying.
func TestOneVictim(t *testing.T) {
	p := small(3, 3, false)
	s := storeOn(t, storePool(t, 3, p), StoreOptions{})
	key := []byte("key")
	hash := xxhash.Sum64(key)
	var locations [2]uint64
	for n := range locations {
		must(t, s.encode(key, []byte("value")))
		must(t, s.draw())
		must(t, s.c.writeVerified(&s.spare, s.c.guess(&s.spare), s.pair, unseen))
		locations[n], s.location = s.location, 0
	}
	c := change{s: s, hash: hash, key: key}
	meet := func(location uint64) error {
		rest, err := c.mark([]directory.Entry{{Hash: hash, Location: location}})
		if err == nil && (len(rest) != 1 || rest[0].Location != location|dying) {
			t.Errorf("%v is left of object %d", rest, location)
		}
		return err
	}
	must(t, meet(locations[0]))
	must(t, meet(locations[0]))
	wantError(t, meet(locations[1]), errMoved)
	if want, _ := s.place(locations[0]); c.victim.At != want.At {
		t.Errorf("another object than the marked one is to end")
	}
}
