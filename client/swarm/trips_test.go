package swarm

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// still is a clock that shows what it is told.
type still struct{ at time.Duration }

func (s *still) Now() time.Duration { return s.at }

// TestTrips asserts Table 2's common case, and what leaves it.
func TestTrips(t *testing.T) {
	for _, replicas := range []int{1, 3, 5, 7} {
		f, a := pool(t, Shape{Replicas: replicas, Words: 4, Locks: 4, Writers: 6, MaxValue: 100}, 7, 2, 1000)
		clock := &still{time.Second}
		x := worker(t, f, a, Options{Clock: clock})
		y := worker(t, f, a, Options{Writer: 1, Clock: clock})
		z := worker(t, f, a, Options{Writer: 2, Clock: clock})
		abd := worker(t, f, a, Options{Writer: 5, Clock: clock})
		trips := func(what string, s *registers, want uint64, wantErr error, op func() error) {
			t.Helper()
			clock.at += time.Millisecond
			var err error
			n := trace.Trips(s.ep, func() { err = op() })
			if !errors.Is(err, wantErr) {
				t.Errorf("%s: got %v, want %v", what, err, wantErr)
			}
			if n.Trips != want {
				t.Errorf("%d replicas: %s took %d trips, want %d (%+v)", replicas, what, n.Trips, want, n)
			}
		}
		k := []byte("key-0")
		read := func(s *registers) func() error { return func() error { _, err := s.Read(s.register(k)); return err } }
		write := func(s *registers) func() error {
			return func() error { return s.Write(s.register(k), make([]byte, 100)) }
		}
		trips("read of nothing", x, 1, ErrEmpty, read(x))
		trips("write of what is not cached", x, 2, nil, write(x))
		trips("write", x, 1, nil, write(x))
		trips("write", x, 1, nil, write(x))
		trips("read of what is not cached", y, 1, nil, read(y))
		trips("read", x, 1, nil, read(x))
		trips("ABD's write", abd, 2, nil, write(abd))
		trips("read behind it", x, 1, nil, read(x))
		trips("write behind a reader", x, 1, nil, write(x))
		trips("write of another writer, whose word ABD's has used", y, 2, nil, write(y))
		trips("write of another writer", y, 1, nil, write(y))
		trips("read of what is not cached", z, 1, nil, read(z))
		trips("write behind it", z, 1, nil, write(z))
		clock.at -= 20 * time.Millisecond // x knows of its own last write only
		trips("write of a stale guess", x, 3, nil, write(x))
		if n := x.Stats(); n.Stale != 1 || n.Rewritten != 1 || n.Retries != 0 {
			t.Errorf("a stale guess: %+v", n)
		}
		trips("write behind it, by a clock that was set", x, 1, nil, write(x))
		trips("delete", x, 1, nil, func() error { return x.Delete(k) })
		trips("read of what is gone", y, 1, ErrGone, read(y))
		trips("write to what was known as gone", y, 0, ErrGone, write(y))
		trips("write that meets the tombstone", abd, 2, ErrGone, write(abd))
	}
}

// TestFewVerbs: the common case asks a mere majority, of which one has the value in place.
func TestFewVerbs(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 5, Words: 4, Locks: 4, Writers: 4, MaxValue: 1000}, 5, 1, 1000)
	x := worker(t, f, a, Options{})
	k := []byte("key-0")
	must(t, x.Insert(k, make([]byte, 1000)))
	n := trace.Trips(x.ep, func() { must(t, x.Update(k, make([]byte, 1000))) })
	// In the trip 3 READs of words, 3 buffers and 3 CASes; after it 3 CASes, and one value in
	// place.
	if n.Reads != 3 || n.Writes != 4 || n.Atomics != 6 || n.BytesRead != 3*32 {
		t.Errorf("a write is %+v", n)
	}
	n = trace.Trips(x.ep, func() { _, err := x.Get(k); must(t, err) })
	if n.Reads != 3 || n.Verbs() != 3 || n.BytesRead != 3*32+inPlaceHeader+1000 {
		t.Errorf("a read is %+v", n)
	}
}

// TestNoAllocations: the fast path allocates nothing.
func TestNoAllocations(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 4, Locks: 4, Writers: 6, MaxValue: 1000}, 3, 1, 1<<16)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 5})
	value := make([]byte, 1000)
	for range 20 {
		must(t, x.Write(&x.keys[0], value))
		must(t, y.Write(&y.keys[0], value))
	}
	for what, op := range map[string]func(){
		"write":       func() { must(t, x.Write(&x.keys[0], value)) },
		"ABD's write": func() { must(t, y.Write(&y.keys[0], value)) },
		"read":        func() { _, err := x.Read(&x.keys[0]); must(t, err) },
	} {
		if n := testing.AllocsPerRun(100, op); n != 0 {
			t.Errorf("%s makes %v allocations", what, n)
		}
	}
}

// TestRefusals: what is refused has had no effect.
func TestRefusals(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 2, Locks: 1, Writers: 2, MaxValue: 10}, 3, 2, 100)
	clock := &still{time.Second}
	x, abd := worker(t, f, a, Options{Clock: clock}), worker(t, f, a, Options{Writer: 1, Clock: clock})
	must(t, x.Write(&x.keys[0], []byte("one")))
	wantError(t, x.Write(&x.keys[0], make([]byte, 11)), client.ErrTooLarge)
	clock.at = 10 * year
	wantError(t, x.Write(&x.keys[0], []byte("two")), ErrExhausted)
	last := NewRegister(a.object(1), a.maxI()-2)
	clock.at = time.Second
	must(t, x.Write(&last, []byte("last")))
	if last.Floor() != a.maxI()-1 {
		t.Errorf("the last timestamp is %d of %d", last.Floor(), a.maxI())
	}
	wantError(t, x.Write(&last, []byte("two")), ErrExhausted)
	wantError(t, abd.Write(&abd.keys[1], []byte("two")), ErrExhausted)
	for n, want := range []string{"one", "last"} {
		if v, err := abd.Read(&abd.keys[n]); err != nil || string(v) != want {
			t.Errorf("key %d: got %q, %v", n, v, err)
		}
	}
	must(t, abd.Delete([]byte("key-1")))
	_, err := x.Read(&last)
	wantError(t, err, ErrGone)
	_, err = Open(x.ep, a.Layout, a, Options{Writer: 2})
	wantError(t, err, ErrShape)
}

// TestFull: a write that gets no buffer has had no effect, and says so.
func TestFull(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 2, Locks: 1, Writers: 2, MaxValue: 10}, 3, 1, 3)
	for w := range 2 { // one that guesses, and ABD's
		x := worker(t, f, a, Options{Writer: w})
		k := &x.keys[0]
		var err error
		for n := 0; err == nil; n++ {
			err = x.Write(k, []byte{byte(n)})
		}
		wantError(t, err, client.ErrFull)
		if errors.Is(err, client.ErrUncertain) {
			t.Errorf("writer %d: %v", w, err)
		}
		if v, err := x.Read(k); err != nil || string(v) != "\x02" {
			t.Errorf("writer %d: got %q, %v", w, v, err)
		}
	}
}

// TestMinority: a register goes on with any minority of its nodes dead, each operation after the
// first in as many trips as before; with a majority dead it says so.
func TestMinority(t *testing.T) {
	for dead := range 3 {
		f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 1, Writers: 1, MaxValue: 10}, 3, 1, 100)
		x := worker(t, f, a, Options{Slow: time.Second}) // so that a node is avoided to the test's end
		k := &x.keys[0]
		must(t, x.Write(k, []byte("one")))
		must(t, f.KillNode(dead))
		for n, value := range []string{"two", "three"} {
			trips := trace.Trips(x.ep, func() { must(t, x.Write(k, []byte(value))) })
			if n > 0 && trips.Trips > 2 || n > 0 && x.Stats().Widened > 1 {
				t.Errorf("node %d is dead: %d trips, %+v", dead, trips.Trips, x.Stats())
			}
			if v, err := x.Read(k); err != nil || string(v) != value {
				t.Errorf("node %d is dead: got %q, %v", dead, v, err)
			}
		}
		must(t, f.KillNode((dead+1)%3))
		wantError(t, x.Write(k, []byte("four")), client.ErrUncertain)
		_, err := x.Read(k)
		wantError(t, err, rdma.ErrNodeDown)
	}
}
