package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// Each test here shows one of the holes that FUSEE has when it is followed to the letter: it
// stops a client between two trips and lets another one act. teeth_test.go shows that the suites
// fail when a remedy is taken out.

// hooked runs a function just before its worker posts its n-th batch with a verb of a kind.
type hooked struct {
	rdma.Endpoint
	n    int
	verb rdma.Verb
	then func()
}

func (h *hooked) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if h.n > 0 && b.Op(i).Verb == h.verb {
			if h.n--; h.n == 0 {
				h.then()
			}
			break
		}
	}
	return h.Endpoint.Post(b)
}

// beforeCAS stops the worker before its n-th batch of CASes: the first proposes, the second changes
// the primary.
func (h *hooked) beforeCAS(n int, then func()) { h.n, h.verb, h.then = n, rdma.CompareSwap, then }

// beforeRead stops the worker before its n-th batch of READs.
func (h *hooked) beforeRead(n int, then func()) { h.n, h.verb, h.then = n, rdma.Read, then }

// pair of clients, the first of which can be stopped.
func stopped(t *testing.T, f rdma.Fabric) (a, b *Client, h *hooked) {
	a = worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint {
		h = &hooked{Endpoint: ep}
		return h
	})
	b = worker(t, f, Options{}, nil)
	for _, c := range []*Client{a, b} { // so that they have a block, and allocating posts nothing later
		must(t, c.Insert([]byte("warm"), []byte("0")))
		must(t, c.Delete([]byte("warm")))
	}
	return a, b, h
}

// everyReplicas runs a test with 1, 2, 3 and 5 replicas of the index.
func everyReplicas(t *testing.T, test func(t *testing.T, f rdma.Fabric)) {
	for _, r := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprintf("%d replicas", r), func(t *testing.T) {
			f := pool(t, 5, small(5, r, 2))
			test(t, f)
			checkClean(t, f)
		})
	}
}

func wantValue(t *testing.T, c *Client, key, want string) {
	t.Helper()
	got, err := c.Get([]byte(key))
	if want == "" {
		wantError(t, err, client.ErrNotFound)
	} else if err != nil || string(got) != want {
		t.Fatalf("%q: got %q, %v, want %q", key, got, err, want)
	}
}

var k = []byte("key")

// A DELETE that loses to an UPDATE would otherwise answer that it removed the key, and the UPDATE
// that it found it.
func TestDeleteLosesToUpdate(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		must(t, a.Insert(k, []byte("1")))
		h.beforeCAS(1, func() { must(t, b.Update(k, []byte("2"))) })
		must(t, a.Delete(k))
		wantValue(t, a, "key", "")
		wantValue(t, b, "key", "")
	})
}

func TestUpdateLosesToDelete(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		must(t, a.Insert(k, []byte("1")))
		h.beforeCAS(1, func() { must(t, b.Delete(k)) })
		must(t, a.Update(k, []byte("2"))) // before the DELETE
		wantValue(t, a, "key", "")
	})
}

// Two DELETEs that propose the same word would both win, and both free.
func TestTwoDeletes(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		must(t, a.Insert(k, []byte("1")))
		h.beforeCAS(1, func() { must(t, b.Delete(k)) })
		wantError(t, a.Delete(k), client.ErrNotFound)
	})
}

// rivalFor returns a key that would be inserted into the same slot of an empty index as k.
func rivalFor(c *Client) []byte {
	for i := 0; ; i++ {
		other := fmt.Appendf(nil, "rival %d", i)
		if slotFor(c, other) == slotFor(c, k) {
			return other
		}
	}
}

// slotFor returns where a key would be inserted now.
func slotFor(c *Client, key []byte) race.Slot {
	at, _, held, err := c.find(key, race.Hash(key), false)
	if err != nil || held != nil || at.room == 0 {
		panic(fmt.Sprint(err, held, at))
	}
	return at.free
}

// INSERTs of different keys want one empty slot: last-writer-wins would lose one of them.
func TestInsertsWantOneSlot(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		other := rivalFor(a)
		h.beforeCAS(1, func() { must(t, b.Insert(other, []byte("2"))) })
		must(t, a.Insert(k, []byte("1")))
		wantValue(t, a, "key", "1")
		wantValue(t, a, string(other), "2")
	})
}

// Two INSERTs of one key find different empty slots, since a key between them was deleted
// meanwhile, and both win.
func TestInsertsOfOneKeyInTwoSlots(t *testing.T) {
	for stop := 1; stop <= 2; stop++ { // before the proposal, and before the primary changes
		everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
			a, b, h := stopped(t, f)
			other := rivalFor(a)
			must(t, b.Insert(other, []byte("0")))
			mine := slotFor(a, k)
			var second error
			h.beforeCAS(stop, func() {
				must(t, b.Delete(other))
				if slotFor(b, k) == mine {
					t.Fatal("both find the same slot")
				}
				b.s.OpTimeout = 20 * time.Millisecond // a's proposal may keep it waiting for ever
				second = b.Insert(k, []byte("2"))
			})
			first := a.Insert(k, []byte("1"))
			switch {
			case second == nil:
				wantError(t, first, client.ErrExists)
				wantValue(t, a, "key", "2")
			case first == nil && (errors.Is(second, rdma.ErrTimeout) || errors.Is(second, client.ErrExists)):
				wantValue(t, a, "key", "1")
			case errors.Is(first, client.ErrExists): // r = 1: b's slot is the higher one, or a's own stop came too late
				t.Fatalf("%v, %v: neither inserted the key", first, second)
			default:
				t.Fatalf("%v, %v", first, second)
			}
		})
	}
}

// A writer stops between reading its slot and CASing the backups, so long that the object that it
// saw is in its slot again, several times. Without tags its CAS would succeed on some backups,
// and leave them undecided.
func TestSlowWriterMeetsRecycledObject(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		b.mem.Reclaim.Rest = 0
		must(t, b.Insert(k, []byte("1")))
		wantValue(t, a, "key", "1")
		unit := a.cache.Find(race.Hash(k)).word.Unit()
		h.beforeCAS(1, func() {
			for again := 0; again < 3; {
				must(t, b.Update(k, []byte("2")))
				if b.cache.Find(race.Hash(k)).word.Unit() == unit {
					again++
				}
			}
		})
		must(t, a.Update(k, []byte("3"))) // lost: before b's
		wantValue(t, a, "key", "2")
		must(t, b.Update(k, []byte("4")))
		wantValue(t, a, "key", "4")
	})
}

// A reader stops between slot and pair while the object is used for another key, and for the same
// key again.
func TestSlowReaderMeetsRecycledObject(t *testing.T) {
	everyReplicas(t, func(t *testing.T, f rdma.Fabric) {
		a, b, h := stopped(t, f)
		a.cache.Cache = locations.New[entry](0, entryBytes)
		b.mem.Reclaim.Rest = 0
		must(t, b.Insert(k, []byte("1")))
		must(t, b.Insert([]byte("other"), []byte("x")))
		unit := b.cache.Find(race.Hash(k)).word.Unit()
		h.beforeRead(2, func() {
			must(t, b.Update(k, []byte("2")))
			for b.cache.Find(race.Hash([]byte("other"))).word.Unit() != unit {
				must(t, b.Update([]byte("other"), []byte("y")))
			}
		})
		wantValue(t, a, "key", "2")
	})
}

// Two records of a cached key: an UPDATE must not take from its cache which key's pair a slot
// holds.
func TestCacheNamesAnotherKeysPair(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c := worker(t, f, Options{}, nil)
	must(t, c.Insert(k, []byte("1")))
	must(t, c.Insert([]byte("other"), []byte("2")))
	e, o := c.cache.Find(race.Hash(k)), c.cache.Find(race.Hash([]byte("other")))
	*e = *o
	wantValue(t, c, "key", "1")
	*c.cache.Find(race.Hash(k)) = *o
	must(t, c.Update(k, []byte("3")))
	wantValue(t, c, "key", "3")
	wantValue(t, c, "other", "2")
	checkClean(t, f)
}

// A pair that is not what its slot says is damage, not a pair that was reused, when the slot says
// so twice.
func TestDamagedPair(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c := worker(t, f, Options{CacheBytes: new(0)}, nil)
	must(t, c.Insert(k, []byte("1")))
	at, _, held, err := c.find(k, race.Hash(k), false)
	must(t, err)
	held.Release()
	b := c.s.Batch()
	p := b.Alloc(8)
	b.Write(c.s.Space.UnitAt(at.word.Unit(), 0).Add(layout.HeaderBytes), p)
	must(t, c.s.Do("test", b))
	b.Release()
	_, err = c.Get(k)
	wantError(t, err, client.ErrDamaged)
	if r, err := Check(f); err != nil || len(r.Damage) == 0 {
		t.Errorf("check sees nothing: %v", err)
	}
}
