package rtx

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestWanted: a wanted lock passes to a late transaction, in whichever way its
// holder has taken and releases it. It passes to others when it has stayed free
// for a moment.
func TestWanted(t *testing.T) {
	for _, c := range []struct {
		name   string
		early  bool // the holder locks a early,
		writes int  // and writes this many objects, a as the last one
		fails  bool // or nothing
	}{
		{"taken early", true, 2, false}, {"taken early, alone", true, 1, false}, {"with a log", false, 2, false},
		{"alone", false, 1, false}, {"let go", true, 0, true}, {"not changed", true, -1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, l := pool(t, Shape{Roots: 2})
			h, hooks := hookedWorker(t, f, l, Options{Drift: long, Timeout: 20 * time.Millisecond, Late: time.Hour})
			late, r := worker(t, f, l, Options{Late: 1}), newRaw(t, f, l)
			a, b := l.Root(0), l.Root(1)
			must(t, set(h, "first", a, b))
			must(t, h.settle())
			want := func() { must(t, late.want(l.Meta(a), r.meta(a).Lock)) }
			if !c.early {
				hooks[map[int]rdma.Step{1: stepSwapPointer, 2: stepDecide}[c.writes]] = want
			}
			ran := 0
			err := h.Run(func(tx *Tx) error {
				ran++
				if c.early {
					if err := tx.Lock(a); err != nil {
						return err
					}
					want()
				}
				if c.fails {
					return errNothing
				}
				if c.writes != 1 {
					if err := tx.Write(b, []byte("second")); err != nil {
						return err
					}
				}
				if c.writes > 0 {
					return tx.Write(a, []byte("second"))
				}
				return nil
			})
			if !c.fails {
				must(t, err)
			}
			if m := r.meta(a); m.Lock.Held() || !m.Lock.Wanted() {
				t.Fatalf("the lock is %#x", m.Lock)
			}
			if ran != 1 {
				t.Errorf("the closure ran %d times", ran)
			}
			wantError(t, set(h, "in front", a), rdma.ErrTimeout)
			must(t, set(late, "third", a))
			must(t, late.settle())
			if m := r.meta(a); m.Lock.Held() || !m.Lock.Wanted() { // others may be late, too
				t.Errorf("the lock is %#x", m.Lock)
			}
			other := worker(t, f, l, Options{Drift: short, Late: time.Hour, Timeout: time.Second})
			must(t, set(other, "fourth", a, b))
			must(t, other.settle())
			if m := r.meta(a); m.Lock.Held() || m.Lock.Wanted() {
				t.Errorf("the lock is %#x", m.Lock)
			}
		})
	}
}

// TestLate: a transaction that waits for long makes the lock that it meets
// wanted, and gets it when it is free, however fast others lock the object again
// and again.
func TestLate(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	a := l.Root(0)
	late, r := worker(t, f, l, Options{Drift: long, Late: time.Millisecond}), newRaw(t, f, l)
	must(t, set(late, "first", a))
	h, hooks := hookedWorker(t, f, l, Options{Drift: long, Late: time.Hour})
	done := make(chan error)
	hooks[stepSwapPointer] = func() {
		go func() { done <- set(late, "second", a) }()
		for end := time.Now().Add(5 * time.Second); !r.meta(a).Lock.Wanted(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the lock is not wanted")
			}
		}
	}
	must(t, set(h, "held", a))
	must(t, <-done)
	got, err := get(h, a)
	must(t, err)
	if got[0] != "second" {
		t.Errorf("got %q", got)
	}
}

// TestMoved: only READs behind the lock show that a pointer has moved under it.
func TestMoved(t *testing.T) {
	_, l := pool(t, Shape{Roots: 1})
	before, under, after := l.pointer(0, 1, 1), l.pointer(0, 1, 2), l.pointer(0, 1, 3)
	stolen, _ := under.stolen()
	for _, c := range []struct {
		what  string
		seen  []Pointer
		moved bool
	}{
		{"the same", []Pointer{under, under, under}, false},
		{"of before, and then of the lock", []Pointer{before, under, under}, false},
		{"stolen", []Pointer{under, under, stolen}, false}, {"swapped", []Pointer{before, under, after}, true},
	} {
		var v watch
		got := false
		for _, p := range c.seen {
			v.see(0, lockHeld, 0, 1, time.Second)
			got = v.moved(p)
		}
		if got != c.moved {
			t.Errorf("got %v: %s", got, c.what)
		}
	}
}

// TestReleasedByOthers: a lock of a transaction with no log that has committed is released by a
// client that waits for it and sees the pointer move, though its holder does nothing any more and
// the lease is long.
func TestReleasedByOthers(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	a := l.Root(0)
	other, r := worker(t, f, l, Options{Drift: long}), newRaw(t, f, l)
	must(t, set(other, "first", a))
	must(t, other.settle())
	before := r.meta(a)
	lock := l.lock(9, 1, true, 0)
	r.lock(a, lock)
	done := make(chan error)
	go func() { done <- set(other, "second", a) }()
	time.Sleep(20 * time.Millisecond) // it has seen lock and pointer
	use := l.pointer(before.Pointer.class(), l.tag(before.Pointer)+1, l.unit(before.Pointer))
	p := make([]byte, HeaderBytes+len("third"))
	l.encodeBuffer(p, use, a, []byte("third"))
	r.write(l.buffer(use), p)
	r.swap(l.Meta(a).Add(8), uint64(before.Pointer), uint64(use))
	must(t, <-done)
}
