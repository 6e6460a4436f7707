package directory

import (
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/trace"
)

const someHash = 1 << 62 // of bucket 0

// three is a pool of three replicas, and a worker that goes round one of them for a second; -1:
// none.
func three(t *testing.T, buckets uint64, buffers int) (f *shm.Fabric, a *arena, around func(r int) *Client) {
	f, a = pool(t, Shape{Nodes: 3, Replicas: 3, Buckets: buckets}, buffers)
	return f, a, func(r int) *Client {
		c := worker(t, f, a, Options{Slow: 10 * time.Millisecond})
		if r >= 0 {
			c.begin(0)
			c.quorum.MarkSlow(c.at[r].Node())
		}
		return c
	}
}

func (c *Client) locations(t *testing.T, hash uint64) (all []uint64) {
	t.Helper()
	entries, err := c.Lookup(hash)
	must(t, err)
	for _, e := range entries {
		all = append(all, e.Location)
	}
	return all
}

// promises has a majority promise a round to c, which goes no further: it is dead, for all that
// others know.
func (c *Client) promises(t *testing.T) {
	t.Helper()
	c.begin(0)
	_, err := c.look()
	must(t, err)
	must(t, c.prepare())
}

// half is a change that gets as far as the first replica: those behind have promised a higher round
// to a client that is dead.
func half(t *testing.T, f *shm.Fabric, a *arena, around func(int) *Client, location uint64, then func()) error {
	t.Helper()
	x, before := hooked(t, f, a, Options{})
	before[stepAccept] = func() {
		around(0).promises(t)
		before[stepRead] = then
	}
	return put(x, someHash, location)
}

// TestHelped: a change that got no further than one replica is finished by a client that meets it
// there, or overruled by one that does not. The change's own client does not make it again in the
// first case, and does in the second, unless so much has changed that it cannot know.
func TestHelped(t *testing.T) {
	for others := range uint64(remembered + 2) {
		for _, round := range []int{1, 0} { // round 0 goes around the first replica, and does not meet it
			f, a, around := three(t, 1, 500)
			must(t, put(around(-1), someHash, 1))
			want := []uint64{1}
			err := half(t, f, a, around, 2, func() {
				c := around(round)
				if others == 0 && round > 0 { // a lookup meets it, too
					c.locations(t, someHash)
				}
				if round > 0 {
					want = append(want, 2)
				}
				for range others {
					must(t, touch(c, someHash+1))
				}
			})
			switch {
			case others > remembered-1 && round > 0, others > remembered && round == 0:
				wantError(t, err, client.ErrUncertain)
			default:
				must(t, err)
				if round == 0 {
					want = append(want, 2)
				}
			}
			if got := around(-1).locations(t, someHash); !slices.Equal(got, want) {
				t.Errorf("%d changes by others that go round replica %d: got %v, want %v", others, round, got, want)
			}
		}
	}
}

// TestNeverForgotten: a client that is away while a few others change a bucket, however often,
// finds out the outcome of its attempt.
func TestNeverForgotten(t *testing.T) {
	for _, round := range []int{1, 0} {
		f, a, around := three(t, 1, 500)
		must(t, put(around(-1), someHash, 1))
		must(t, half(t, f, a, around, 2, func() {
			c := around(round)
			for n := range uint64(10 * remembered) {
				must(t, touchAs(c, someHash+1, n<<16|(1<<63+7+n%(remembered-3))))
			}
		}))
		if got := around(-1).locations(t, someHash); !slices.Equal(got, []uint64{1, 2}) {
			t.Errorf("others go round replica %d: %v is there", round, got)
		}
	}
}

// TestRefusalIsChosen: the state for which a change is refused is there for good, though the client
// that put it there died at one replica, and that replica dies as well.
func TestRefusalIsChosen(t *testing.T) {
	f, a, around := three(t, 1, 500)
	must(t, put(around(-1), someHash, 1))
	var seen []Entry
	half(t, f, a, around, 2, func() {
		err := around(1).Change(someHash, 1<<40, func(e []Entry) ([]Entry, error) {
			seen = slices.Clone(e)
			return nil, errNo
		})
		wantError(t, err, errNo)
		must(t, f.KillNode(nodeOf(around(-1), 0)))
		if got := around(-1).locations(t, someHash); len(got) != len(seen) {
			t.Errorf("a change was refused for %v, and then there is %v", seen, got)
		}
	})
	if len(seen) != 2 {
		t.Errorf("the client that met the change saw %v", seen)
	}
}

func nodeOf(c *Client, r int) int {
	c.begin(0)
	return c.at[r].Node()
}

// TestFull: a change that gets no buffer has had no effect, says so, and leaves the bucket as it
// was. Where a bucket was left promised and no client goes on with that round, lookups answer
// without a buffer.
func TestFull(t *testing.T) {
	f, a, around := three(t, 1, 20)
	x := around(-1)
	must(t, put(x, someHash, 1))
	for n := range a.free {
		a.free[n] = nil
	}
	wantError(t, put(x, someHash, 2), client.ErrFull)
	trips := trace.Trips(x.ep, func() {
		if got := x.locations(t, someHash); !slices.Equal(got, []uint64{1}) {
			t.Errorf("%v is there", got)
		}
	})
	if trips.Trips != 1 {
		t.Errorf("a lookup behind it took %d trips", trips.Trips)
	}
	around(-1).promises(t)
	for range 2 {
		if got := x.locations(t, someHash); !slices.Equal(got, []uint64{1}) {
			t.Errorf("%v is there", got)
		}
	}
	must(t, f.KillNode(nodeOf(x, 2)))
	if got := x.locations(t, someHash); !slices.Equal(got, []uint64{1}) {
		t.Errorf("%v is there", got)
	}
}

// TestMended: a lookup that finds nothing in place takes a buffer, and mends what lies in place, so
// that the next one need not.
func TestMended(t *testing.T) {
	_, _, around := three(t, 1, 100)
	x := around(-1)
	must(t, put(x, someHash, 1))
	b := x.ep.Batch()
	b.Write(x.at[0].Add(wordBytes), make([]byte, 64))
	must(t, rdma.Do(x.ep, b, time.Second))
	b.Release()
	for n, want := range []uint64{2, 1, 1} {
		trips := trace.Trips(x.ep, func() {
			if got := x.locations(t, someHash); !slices.Equal(got, []uint64{1}) {
				t.Errorf("%v is there", got)
			}
		})
		if trips.Trips != want {
			t.Errorf("lookup %d took %d trips, want %d", n, trips.Trips, want)
		}
	}
	if n := x.Stats(); n.Fetches != 1 {
		t.Errorf("%+v", n)
	}
}

// TestUsedAgain: a lookup that read a word, and then its buffer after another client had reused it,
// does not take the buffer for the word's.
func TestUsedAgain(t *testing.T) {
	for _, other := range []uint64{someHash, 3 * someHash} { // the same bucket, and another one
		f, a, around := three(t, 2, 5)
		y := around(-1)
		must(t, put(y, someHash, 1))
		must(t, put(y, 3*someHash, 2))
		x, before := hooked(t, f, a, Options{Slow: 10 * time.Millisecond})
		x.quorum.MarkSlow(nodeOf(x, 0))
		before[stepFetch] = func() {
			must(t, y.Change(someHash, 1<<40, func(e []Entry) ([]Entry, error) {
				e[0].Location = 3
				return e, nil
			}))
			for n := range uint64(8) {
				must(t, put(y, other+1, n))
			}
		}
		if got := x.locations(t, someHash); !slices.Equal(got, []uint64{3}) && !slices.Equal(got, []uint64{1}) {
			t.Errorf("%v is there", got)
		}
	}
}

// TestLagging: a replica that was left behind costs a client that meets it one trip more. A client
// that has no other replica to ask brings it up to date, once.
func TestLagging(t *testing.T) {
	f, _, around := three(t, 1, 100)
	must(t, put(around(1), someHash, 1))
	must(t, put(around(1), someHash, 2))
	lookup := func(c *Client, want uint64) {
		t.Helper()
		trips := trace.Trips(c.ep, func() {
			if got := c.locations(t, someHash); !slices.Equal(got, []uint64{1, 2}) {
				t.Errorf("%v is there", got)
			}
		})
		if trips.Trips != want {
			t.Errorf("lookup took %d trips, want %d", trips.Trips, want)
		}
	}
	x := around(-1)
	lookup(x, 2)
	lookup(x, 2)
	if n := x.Stats(); n.Settled != 0 || n.Fetches != 0 {
		t.Errorf("the lagging replica was brought along: %+v", n)
	}
	must(t, f.KillNode(nodeOf(x, 0)))
	y := around(0)
	lookup(y, 4) // look, promise, fetch, accept
	lookup(y, 2) // look, fetch
	if n := y.Stats(); n.Settled != 1 {
		t.Errorf("the lagging replica was brought along %d times", n.Settled)
	}
}
