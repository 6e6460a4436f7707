package rtx

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// long is a lease that no test waits for; short is one that it does.
const (
	long  = time.Minute
	short = 3 * time.Millisecond
)

// TestLateLock: a lock that lands when its transaction is over is released by the first client that
// meets it, at once.
func TestLateLock(t *testing.T) {
	for _, alone := range []bool{false, true} {
		for _, end := range []string{"committed", "aborted", "older"} {
			f, l := pool(t, Shape{Roots: 3})
			w, other, r := worker(t, f, l, Options{Drift: long}), worker(t, f, l, Options{Drift: long, Log: true}),
				newRaw(t, f, l)
			a, b := l.Root(0), l.Root(1)
			must(t, set(other, "there", a, b))
			late := l.lock(other.id, r.state(other.id).sequence(), alone, 0)
			switch end {
			case "aborted":
				late++
				r.swap(l.log(other.id), uint64(r.state(other.id)), uint64(makeState(phaseAbort, l.sequence(late))))
			case "older":
				must(t, set(other, "there", b))
			}
			r.lock(a, late)
			wantData(t, w, "[there]", a)
			must(t, set(w, "new", a))
			steals := uint64(0) // what was aborted without a log may still come
			if alone && end == "aborted" {
				steals = 1
			}
			if w.stats.Freed != 1 || w.stats.Stolen != steals || w.stats.Aborted+w.stats.Finished != 0 {
				t.Errorf("a late lock, alone: %v, of a transaction that is %s: %+v", alone, end, w.stats)
			}
			must(t, set(other, "again", a, b)) // in spite of what was done to its log
			wantData(t, w, "[again again]", a, b)
		}
	}
}

// TestLateUnlock: a client that was suspected wrongly does not release the lock
// of the next holder, and writes nothing over its data.
func TestLateUnlock(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	a := l.Root(0)
	slow, before := hookedWorker(t, f, l, Options{Drift: short})
	w, third, r := worker(t, f, l, Options{Drift: short}), worker(t, f, l, Options{Drift: long}), newRaw(t, f, l)
	must(t, set(w, "old", a))
	for _, when := range []rdma.Step{stepSwapPointer, stepUnlock} {
		var lock Lock
		before[when] = func() {
			must(t, set(w, "w", a)) // repairs
			must(t, w.land())
			lock = l.lock(third.id, 1<<20, true, 0)
			r.lock(a, lock)
			before[stepReadMeta] = func() { // the next attempt: the lock is still there
				if now := r.meta(a).Lock; now != lock {
					t.Errorf("the lock is %#x, not %#x", now, lock)
				}
				r.swap(l.Meta(a), uint64(lock), uint64(lock.released()))
			}
		}
		must(t, set(slow, "slow", a))
		want := "[slow]"
		if when == stepUnlock {
			want = "[w]"
			r.swap(l.Meta(a), uint64(lock), uint64(lock.released()))
		}
		wantData(t, w, want, a)
	}
	if w.stats.Stolen != 2 || slow.stats.Lost != 1 {
		t.Errorf("the one that repairs: %+v, the slow one: %+v", w.stats, slow.stats)
	}
}

// TestLateSteal: a repair of OPT1 that lands when a later holder of the lock has
// decided does not keep the later holder's data from being installed.
func TestLateSteal(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2, Objects: 64})
	a, b := l.Root(0), l.Root(1)
	w, before := hookedWorker(t, f, l, Options{Drift: long})
	r := newRaw(t, f, l)
	steal := func(steals int, objects ...Ref) func() {
		return func() {
			for range steals {
				for _, o := range objects {
					p := r.meta(o).Pointer
					next, _ := p.stolen()
					r.swap(l.Meta(o).Add(8), uint64(p), uint64(next))
				}
			}
		}
	}
	before[stepSwapPointer] = steal(3, a)
	must(t, set(w, "first", a, b))
	before[stepSwapPointer] = steal(1, a, b)
	must(t, set(w, "second", a, b))
	wantData(t, w, "[second second]", a, b)
	before[stepSwapPointer] = steal(1, a, b)
	must(t, w.Run(func(tx *Tx) error { return errors.Join(tx.Free(a), tx.Write(b, []byte("third"))) }))
	_, err := get(w, a)
	wantError(t, err, ErrNoObject)
	before[stepSwapPointer] = steal(1, a) // of what is not there
	must(t, set(w, "fourth", a, b))
	wantData(t, w, "[fourth fourth]", a, b)
}

// TestStealsEnd: a count of steals that is at its end does not begin anew; behind the recovery of
// the dead client all goes on.
func TestStealsEnd(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	a := l.Root(0)
	w, r := worker(t, f, l, Options{Drift: short}), newRaw(t, f, l)
	must(t, set(w, "there", a))
	dead := worker(t, f, l, Options{})
	must(t, dead.numbers.Use(mostSteals+5))
	for n := uint64(1); n <= mostSteals; n++ {
		r.lock(a, l.lock(dead.id, n, true, 0))
		wantData(t, w, "[there]", a)
	}
	r.lock(a, l.lock(dead.id, mostSteals+1, true, 0))
	_, err := get(worker(t, f, l, Options{Drift: short, Timeout: 20 * short}), a)
	wantError(t, err, rdma.ErrTimeout)
	if p := r.meta(a).Pointer; p&stealMask != stealMask || w.stats.Stolen != mostSteals {
		t.Errorf("the pointer is %#x, behind %d steals", uint64(p), w.stats.Stolen)
	}
	must(t, f.Revoke(dead.id))
	must(t, w.Recover(dead.id))
	wantData(t, w, "[there]", a)
	must(t, set(w, "new", a))
	if p := r.meta(a).Pointer; p&stealMask != 0 {
		t.Errorf("the pointer is %#x", uint64(p))
	}
}

// TestTornLog: a record with a word of another record is no record.
func TestTornLog(t *testing.T) {
	r := record{lock: 1<<63 | 77, entries: []entry{{1, 2, 3}, {4, 5, 6}}}
	p, q := make([]byte, recordBytes(2)), make([]byte, recordBytes(4))
	r.encode(p)
	var got record
	if !got.decode(append(slices.Clone(p), make([]byte, 48)...)) || got.lock != r.lock ||
		!slices.Equal(got.entries, r.entries) {
		t.Errorf("got %+v", got)
	}
	r.lock++
	r.entries = append(r.entries, entry{7, 8, 9}, entry{9, 8, 7})
	for i := range r.entries {
		r.entries[i].new++
	}
	r.encode(q)
	for i := 0; i < len(p); i += 8 {
		torn := slices.Clone(q)
		copy(torn[i:i+8], p[i:])
		if whole := got.decode(torn); whole && string(torn) != string(q) {
			t.Errorf("with word %d of another: %+v", i/8, got)
		}
	}
	if got.decode(make([]byte, recordBytes(4))) {
		t.Error("nothing at all is a record")
	}
}

// TestLogOfAnother: a client finishes, and begins another transaction, while a
// repair reads its log. The repair installs nothing of the other transaction.
func TestLogOfAnother(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, before := hookedWorker(t, f, l, Options{Drift: short})
	helper, r := worker(t, f, l, Options{Drift: short}), newRaw(t, f, l)
	must(t, set(w, "old", a, b))
	ep, err := f.Open("dead")
	must(t, err)
	dead := open(t, fault.New(ep, fault.Fault{Step: stepSwapPointer, Crash: fault.Stop}), l, Options{})
	wantError(t, set(dead, "dead's", a, b), rdma.ErrClosed)
	next := l.lock(dead.id, r.state(dead.id).sequence()+1, false, 0)
	before[stepReadLog] = func() {
		must(t, helper.finishLog(dead.id, r.state(dead.id)))
		rec := record{next, []entry{{a.number(), r.meta(a).Pointer, 0}, {b.number(), r.meta(b).Pointer, 0}}}
		p := make([]byte, recordBytes(2))
		rec.encode(p)
		r.write(l.log(dead.id).Add(recordAt), p)
		r.lock(a, next)
		r.lock(b, next)
	}
	wantData(t, w, "[dead's dead's]", a, b)
	if w.stats.Finished != 0 || w.stats.Aborted != 1 {
		t.Errorf("%+v", w.stats)
	}
	if whole, err := w.readLog(dead.id, makeState(phaseDoing, l.sequence(next)-1)); whole || err != nil {
		t.Errorf("the record of another transaction is taken for the one: %v", err)
	}
}

// TestOneRepair: of two clients that suspect a third, one finishes its commit.
func TestOneRepair(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, before := hookedWorker(t, f, l, Options{Drift: short})
	other := worker(t, f, l, Options{Drift: short})
	must(t, set(w, "old", a, b))
	ep, err := f.Open("dead")
	must(t, err)
	dead := open(t, fault.New(ep, fault.Fault{Step: stepSwapPointer, Crash: fault.Stop}), l, Options{})
	wantError(t, set(dead, "new", a, b), rdma.ErrClosed)
	before[stepReadLog] = func() { wantData(t, other, "[new new]", a, b) }
	wantData(t, w, "[new new]", a, b)
	if w.stats.Finished+other.stats.Finished != 1 {
		t.Errorf("one finished %d, the other %d", w.stats.Finished, other.stats.Finished)
	}
}

// TestLives: an object that was freed is not there, though another one has its metadata.
func TestLives(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Objects: 64})
	w := worker(t, f, l, Options{})
	old, err := create(w, "old")
	must(t, err)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(old) }))
	var next Ref
	for range 64 { // all there can be
		r, err := create(w, "next")
		must(t, err)
		if r.number() == old.number() {
			next = r
		}
	}
	if next == 0 || next == old {
		t.Fatalf("%v, and then %v", old, next)
	}
	_, err = get(w, old)
	wantError(t, err, ErrNoObject)
	wantError(t, set(w, "lost", old), ErrNoObject)
	wantError(t, w.Run(func(tx *Tx) error { return tx.Free(old) }), ErrNoObject)
	wantData(t, w, "[next]", next)
}

// TestLockOnNothing: a lock that a dead client left on the metadata of an object that it was about
// to make does not keep the metadata from being used.
func TestLockOnNothing(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Roots: 1, Objects: 64})
	ep, err := f.Open("dead")
	must(t, err)
	dead := open(t, fault.New(ep, fault.Fault{Step: stepDecide, Crash: fault.Stop}), l, Options{})
	err = dead.Run(func(tx *Tx) error {
		_, err := tx.New([]byte("new"))
		return errors.Join(err, tx.Write(l.Root(0), []byte("root")))
	})
	wantError(t, err, rdma.ErrClosed)
	w := worker(t, f, l, Options{})
	must(t, f.Revoke(dead.id))
	must(t, w.Recover(dead.id))
	for range 64 {
		_, err := create(w, "there")
		must(t, err)
	}
	if w.stats.Freed == 0 {
		t.Errorf("%+v", w.stats)
	}
}

// TestRecovered: behind a client's recovery its locks are released at once, and the next holder of
// its identity begins above all that it used.
func TestRecovered(t *testing.T) {
	for _, step := range []rdma.Step{stepLock, stepValidate, stepDecide, stepSwapPointer, stepUnlock} {
		for _, early := range []bool{false, true} {
			f, l := pool(t, Shape{Roots: 3})
			a, b, c := l.Root(0), l.Root(1), l.Root(2)
			w, r := worker(t, f, l, Options{Drift: long}), newRaw(t, f, l)
			must(t, set(w, "old", a, b, c))
			ep, err := f.Open("dead")
			must(t, err)
			dead := open(t, fault.New(ep, fault.Fault{Step: step, Crash: fault.Stop}), l, Options{})
			wantError(t, dead.Run(func(tx *Tx) error { return errors.Join(tx.Lock(a), errNothing) }), errNothing)
			err = dead.Run(func(tx *Tx) error {
				if early {
					if err := tx.Lock(c); err != nil {
						return err
					}
				}
				_, err := tx.Read(c)
				return errors.Join(err, tx.Write(a, []byte("new")), tx.Write(b, []byte("new")))
			})
			wantError(t, err, rdma.ErrClosed)
			must(t, f.Revoke(dead.id))
			must(t, w.Recover(dead.id))
			want := "[old old old]"
			if step == stepSwapPointer || step == stepUnlock {
				want = "[new new old]"
			}
			wantData(t, w, want, a, b, c)
			must(t, set(w, "all", a, b, c))
			if s := r.state(dead.id); s.sequence() < dead.numbers.Used() || s.phase() != phaseDone {
				t.Errorf("the log's word is %#x, and %d was used", uint64(s), dead.numbers.Used())
			}
		}
	}
}

// TestTornData: a buffer with a word of another use is not what its pointer
// names.
func TestTornData(t *testing.T) {
	l := &Layout{}
	p, q := make([]byte, HeaderBytes+24), make([]byte, HeaderBytes+40)
	l.encodeBuffer(p, 77, 5, []byte("first data of 24 bytes ."))
	l.encodeBuffer(q, 77+1<<40, 6, []byte("other data, which are 40 bytes all in all"[:40]))
	if r, data, ok := l.Decode(append(p, make([]byte, 16)...), 77); !ok || r != 5 ||
		string(data) != "first data of 24 bytes ." {
		t.Errorf("got %v, %q, %v", r, data, ok)
	}
	for i := 0; i < len(p); i += 8 {
		torn := append(slices.Clone(p), q[len(p):]...)
		copy(torn[i:i+8], q[i:])
		if r, data, ok := l.Decode(torn, 77); ok {
			t.Errorf("with word %d of another: %v, %q", i/8, r, data)
		}
	}
	if _, _, ok := l.Decode(p, 78); ok {
		t.Error("a later use of the buffer is taken for this one")
	}
}

// TestLostLock: a transaction notices that it was suspected wrongly, or that its
// objects have changed between its steps. No two transactions change what the
// other one has read.
func TestLostLock(t *testing.T) {
	for _, c := range []struct {
		log, lock bool
		step      rdma.Step // before which the other one comes
	}{
		{false, true, stepLock}, {true, true, stepLock}, // the lock was stolen
		{false, true, stepValidate}, {true, true, stepValidate},
		{false, false, stepLock}, {true, false, stepLock},
		{false, false, stepValidate}, {true, false, stepValidate},
		{false, false, stepSwapPointer},
	} {
		f, l := pool(t, Shape{Roots: 2})
		a, b := l.Root(0), l.Root(1)
		w, before := hookedWorker(t, f, l, Options{Drift: short, Log: c.log})
		other := worker(t, f, l, Options{Drift: short})
		must(t, errors.Join(set(w, "A", a), set(w, "B", b)))
		move := func(w *Worker, from, to Ref, mark string, lock bool) error {
			return w.Run(func(tx *Tx) error {
				if lock {
					if err := tx.Lock(from); err != nil {
						return err
					}
				}
				p, err := tx.Read(from)
				if err != nil {
					return err
				}
				return tx.Write(to, []byte(string(p)+mark))
			})
		}
		before[c.step] = func() { must(t, move(other, b, a, "!", false)) }
		must(t, move(w, a, b, "?", c.lock))
		got, err := get(other, a, b)
		if s := fmt.Sprint(got); err != nil || s != "[B! B!?]" && s != "[A?! A?]" {
			t.Errorf("before %q, with a log: %v, locked: %v: got %v, %v", c.step, c.log, c.lock, got, err)
		}
	}
}

// TestEarlyLocksOfTheDead: of a dead client that had several locks, taken early, one lease is
// waited for.
func TestEarlyLocksOfTheDead(t *testing.T) {
	const drift = 50 * time.Millisecond
	f, l := pool(t, Shape{Roots: 6})
	var roots []Ref
	for i := range 6 {
		roots = append(roots, l.Root(i))
	}
	w := worker(t, f, l, Options{Drift: drift})
	must(t, set(w, "old", roots...))
	ep, err := f.Open("dead")
	must(t, err)
	dead := open(t, fault.New(ep, fault.Fault{Step: stepLock, Crash: fault.Stop}), l, Options{})
	err = dead.Run(func(tx *Tx) error {
		for _, r := range roots {
			if err := tx.Lock(r); err != nil {
				return err
			}
		}
		return errors.Join(tx.Write(roots[0], []byte("new")), tx.Write(roots[1], []byte("new")))
	})
	wantError(t, err, rdma.ErrClosed)
	for _, r := range roots {
		must(t, set(w, "w", r))
	}
	if w.stats.Aborted != 1 || w.stats.Stolen != 6 {
		t.Errorf("%+v", w.stats)
	}
}

// TestTwoRecoveries: a client that recovers another one does no harm to the next
// holder of the identity, however slow it is. The first recovery, and all that
// the next holder does, come before any step of the second recovery.
func TestTwoRecoveries(t *testing.T) {
	for _, step := range []rdma.Step{stepReadLog, kit.StepReadCeiling, stepReadTable, stepRecover, stepFreeChunk} {
		f, l := pool(t, Shape{Nodes: 1, Clients: 4, Roots: 2, Objects: 64})
		a, b := l.Root(0), l.Root(1)
		w := worker(t, f, l, Options{Drift: long})
		slow, before := hookedWorker(t, f, l, Options{Drift: long})
		ep, err := f.Open("dead")
		must(t, err)
		dead := open(t, ep, l, Options{})
		must(t, set(dead, "old", a, b))
		listed := f.Clients()
		must(t, f.Revoke(dead.id))
		must(t, ep.Close())
		var next *Worker
		before[step] = func() {
			for _, c := range listed {
				if c.ID == dead.id {
					must(t, w.Adopt(f, c))
				}
			}
			next = worker(t, f, l, Options{Drift: long})
			if next.id != dead.id {
				next.id = 0
				return
			}
			must(t, set(next, "next's", a, b))
		}
		for _, c := range listed {
			if c.ID == dead.id {
				must(t, slow.Adopt(f, c))
			}
		}
		if next == nil || next.id != dead.id {
			t.Fatalf("before %q: no other client has the identity", step)
		}
		r := newRaw(t, f, l)
		if s := r.state(next.id); s != next.state {
			t.Errorf("before %q: the log's word is %#x, and its client left %#x", step, uint64(s), uint64(next.state))
		}
		u, err := w.Check(func(c rdma.ClientID) bool { return c == next.id || c == w.id })
		if err != nil || u.Owned != 1 || u.Lost != 0 {
			t.Errorf("before %q: %+v, %v", step, u, err)
		}
	}
}

// TestOpacity: a closure sees the state before another transaction, or the one
// behind it, and no mixture, at any of its steps.
func TestOpacity(t *testing.T) {
	f, l := pool(t, Shape{Roots: 3})
	a, b, c := l.Root(0), l.Root(1), l.Root(2)
	w, before := hookedWorker(t, f, l, Options{Drift: long})
	other := worker(t, f, l, Options{Drift: long, Quarantine: time.Nanosecond})
	n := 0
	for _, step := range []rdma.Step{stepReadMeta, stepReadData, stepLockEarly, stepLock, stepValidate, stepDecide} {
		for k := range 3 { // which of the steps of that name
			must(t, set(other, fmt.Sprint(n), a, b, c))
			left := k
			var again func()
			again = func() {
				if left--; left >= 0 {
					before[step] = again
					return
				}
				n++
				for range 70 { // so that each buffer is used again
					must(t, set(other, fmt.Sprint(n), a, b))
				}
			}
			before[step] = again
			must(t, w.Run(func(tx *Tx) error {
				x, err := tx.Read(a)
				if err != nil {
					return err
				}
				if err := tx.Lock(c); err != nil {
					return err
				}
				y, err := tx.Read(b)
				if err != nil {
					return err
				}
				if string(x) != string(y) {
					t.Errorf("before %q: %q and %q", step, x, y)
				}
				return tx.Write(c, x)
			}))
			delete(before, step)
			if got, err := get(w, a, c); err != nil || got[0] != got[1] && step != stepDecide {
				t.Errorf("before %q: %v, %v", step, got, err)
			}
		}
	}
}

// TestTornMeta: a lock is taken of an object with metadata that was READ in two
// moments: the pointer before another client's commit, the lock behind its
// release. The CAS of the lock succeeds then, and the data is what that commit
// has left.
func TestTornMeta(t *testing.T) {
	for _, made := range []bool{false, true} {
		f, l := pool(t, Shape{Nodes: 2, Roots: 1})
		a := l.Root(0)
		w, other, r := worker(t, f, l, Options{}), worker(t, f, l, Options{}), newRaw(t, f, l)
		if made {
			must(t, set(other, "old", a))
			must(t, other.settle())
		}
		old := r.meta(a)
		must(t, set(other, "new", a))
		must(t, other.settle())
		torn := Meta{r.meta(a).Lock, old.Pointer}
		ran := 0
		must(t, w.Run(func(tx *Tx) error {
			ran++
			tx.Guess(a, torn)
			if err := tx.Lock(a); err != nil {
				return err
			}
			p, err := tx.Read(a)
			if err != nil || string(p) != "new" {
				t.Errorf("it is %q, %v", p, err)
			}
			return tx.Write(a, []byte("newer"))
		}))
		wantData(t, other, "[newer]", a)
		if ran > 2 {
			t.Errorf("it ran %d times", ran)
		}
	}
}
