package swarm

import "testing"

// TestLocks: of one stamp's modes at most one is locked, whoever comes first, and again as often as it is asked for.
func TestLocks(t *testing.T) {
	for _, first := range []uint64{readMode, writeMode} {
		f, a := pool(t, Shape{Replicas: 3, Words: 1, Locks: 2, Writers: 2}, 3, 1, 1)
		x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
		k := &x.keys[0]
		for _, s := range []stamp{x.stamp(5, 0), x.stamp(5, 1), x.stamp(6, 0)} { // another writer's and a later one are others
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
