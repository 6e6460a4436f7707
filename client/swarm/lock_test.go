package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
)

// TestLocks: of one stamp's modes at most one is locked, whichever is tried first, and again as
// often as it is asked for.
func TestLocks(t *testing.T) {
	for _, first := range []uint64{readMode, writeMode} {
		f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 2, Writers: 2}, 3, 1, 1)
		x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
		k := &x.keys[0]
		// A stamp of another writer, and a later stamp, have locks of their own.
		for _, s := range []stamp{x.stamp(5, 0), x.stamp(5, 1), x.stamp(6, 0)} {
			for n, want := range []bool{true, false, true, false} {
				mode := first ^ uint64(n%2)
				if got, err := []*registers{x, y}[n/2].tryLock(k, s, mode); err != nil || got != want {
					t.Errorf("mode %d of stamp %x behind mode %d: %v, %v", mode, s, first, got, err)
				}
			}
		}
	}
}

// TestLaterLock: a stamp is not locked behind a later stamp of its writer.
func TestLaterLock(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 1, Writers: 1}, 3, 1, 1)
	x := worker(t, f, a, Options{})
	for n, i := range []uint64{7, 6} {
		if got, err := x.tryLock(&x.keys[0], x.stamp(i, 0), readMode); err != nil || got != (n == 0) {
			t.Errorf("locked %d behind a later stamp: %v, %v", i, got, err)
		}
	}
}

// TestBound: at the bound of attempts a write's outcome is unknown, and a reader's lock is not its
// own.
func TestBound(t *testing.T) {
	f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 2, Writers: 2, MaxValue: 8}, 3, 1, 100)
	clock := &still{time.Second}
	x, y := worker(t, f, a, Options{Clock: clock}), worker(t, f, a, Options{Writer: 1, Clock: clock})
	must(t, x.Write(&x.keys[0], []byte("one")))
	must(t, y.Write(&y.keys[0], []byte("two")))
	clock.at += time.Millisecond // x guesses above that
	x.quorum.Attempts = 1
	wantError(t, x.Write(&x.keys[0], []byte("three")), client.ErrUncertain) // its word is y's now
	p := put{tuple: tuple{stamp: y.stamp(y.guess(&y.keys[0]), 1), value: []byte("four")}, from: y.all(), need: 2,
		expect: &y.keys[0].own}
	must(t, y.put("test", &y.keys[0], &p))
	if locked, err := y.tryLock(&y.keys[0], y.stamp(1, 1), readMode); !locked || err != nil {
		t.Fatal(locked, err)
	}
	x.quorum.Attempts = 3 // the first attempt at a lock that was locked before fails
	if v, err := x.Read(&x.keys[0]); err != nil || string(v) != "four" {
		t.Errorf("got %q, %v", v, err)
	}
	q := put{tuple: tuple{stamp: y.stamp(y.guess(&y.keys[0])+1, 1), value: []byte("five")}, from: y.all(), need: 2,
		expect: &y.keys[0].own}
	must(t, y.put("test", &y.keys[0], &q))
	x.quorum.Attempts = 1
	locked, err := x.tryLock(&x.keys[0], q.stamp, readMode)
	wantError(t, err, quorum.ErrAttempts)
	if _, done, err := x.settled(&x.keys[0], &q.tuple, &q.tuple, x.quorum.Slow()); locked || done || !again(err) {
		t.Errorf("locked: %v, done: %v, %v", locked, done, err)
	}
}
