package dtx

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// brief is how long a transaction may take that is to find no end.
const brief = 20 * time.Millisecond

// doomed returns a worker that crashes before a step of a transaction.
func doomed(t testing.TB, f rdma.Fabric, l *Layout, step rdma.Step) *Worker {
	t.Helper()
	ep, err := f.Open("dead")
	must(t, err)
	return open(t, fault.New(ep, fault.Fault{Step: step, Crash: fault.Stop}), l, Options{})
}

// TestOpacity: a closure that reads two objects, between which another transaction changes both,
// sees both as they were at one moment, or is told to return: with a guess, too, that is right,
// wrong, or of a version that came meanwhile.
func TestOpacity(t *testing.T) {
	for _, guess := range []string{"none", "right", "old"} {
		f, l := pool(t, Shape{Roots: 2})
		a, b := l.Root(0), l.Root(1)
		w, before := hookedWorker(t, f, l, Options{})
		other := worker(t, f, l, Options{})
		must(t, set(w, "old", a, b))
		var of Version
		must(t, w.Run(func(tx *Tx) error { return readAll(tx, b) }))
		of, _ = w.Seen(b)
		if guess == "right" { // until the other changes it
			must(t, set(w, "old", b))
			of, _ = w.Seen(b)
		}
		tries := 0
		must(t, w.Run(func(tx *Tx) error {
			if tries++; guess != "none" {
				tx.Guess(b, of)
			}
			x, err := tx.Read(a)
			if err != nil {
				return err
			}
			if tries == 1 {
				before[stepRead] = func() { must(t, set(other, "new", a, b)) }
			}
			y, err := tx.Read(b)
			if err == nil && string(x) != string(y) {
				t.Errorf("guess %s: read %s and %s", guess, x, y)
			}
			return err
		}))
		if tries != 2 {
			t.Errorf("guess %s: %d tries, want 2", guess, tries)
		}
	}
}

// TestGuessOfTheFuture: what was changed between the READ of one object and the validation of
// another is seen, though the guess is right.
func TestGuessOfTheFuture(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, before := hookedWorker(t, f, l, Options{})
	other := worker(t, f, l, Options{})
	must(t, set(w, "old", a, b))
	of, _ := w.Seen(b)
	tries := 0
	must(t, w.Run(func(tx *Tx) error {
		if tries++; tries == 1 {
			tx.Guess(b, of)
		}
		if err := readAll(tx, a); err != nil {
			return err
		}
		if tries == 1 {
			before[stepRead] = func() { must(t, set(other, "new", a)) }
		}
		return readAll(tx, b)
	}))
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
}

// TestLateRead: a wrong guess does not spare a trip. An object that is READ after
// the locks of others, in the same batch, is not taken to be as old as these.
func TestLateRead(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	ep, err := f.Open("reader")
	must(t, err)
	slow := &lateRead{Endpoint: ep}
	w, other, r := open(t, slow, l, Options{}), worker(t, f, l, Options{}), newRaw(t, f, l)
	must(t, set(w, "old", a, b))
	of, _ := w.Seen(b)
	at, bytes := l.Object(b)
	tries := 0
	must(t, w.Run(func(tx *Tx) error {
		if tries++; tries == 1 {
			tx.Guess(b, of)
		}
		x, err := tx.Read(a)
		if err != nil {
			return err
		}
		if tries == 1 {
			slow.now = func(p []byte) {
				must(t, set(other, "new", a, b))
				now, err := rdma.ReadBytes(r.ep, "test", at, bytes, time.Second)
				must(t, err)
				copy(p, now)
			}
		}
		y, err := tx.Read(b)
		if err == nil && string(x) != string(y) {
			t.Errorf("read %s and %s", x, y)
		}
		return err
	}))
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
}

// lateRead is an endpoint on which the READ of an object lands behind the others of its batch,
// once.
type lateRead struct {
	rdma.Endpoint
	now func(p []byte) // READs it
}

func (e *lateRead) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := e.Endpoint.Wait(b, n, within)
	if e.now != nil && b.Step() == stepRead && b.Len() == 2 {
		now := e.now
		e.now = nil
		now(b.Op(0).Buf)
	}
	return err
}

// TestReadIf: a transaction goes on over a change that its closure allows, and not over one that it
// does not.
func TestReadIf(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, before := hookedWorker(t, f, l, Options{})
	other := worker(t, f, l, Options{})
	for _, allowed := range []bool{true, false} {
		must(t, set(w, "old", a, b))
		before[stepLock] = func() { must(t, set(other, "new", a)) }
		tries, asked := 0, ""
		must(t, w.Run(func(tx *Tx) error {
			tries++
			_, err := tx.ReadIf(a, func(now []byte) bool { asked = string(now); return allowed })
			return errors.Join(err, tx.Write(b, []byte("written")))
		}))
		if asked != "new" || (tries == 1) != allowed {
			t.Errorf("allowed %v: %d tries, asked about %q", allowed, tries, asked)
		}
		wantData(t, w, "[new written]", a, b)
	}
	must(t, w.Run(func(tx *Tx) error { // freed
		_, err := tx.ReadIf(a, func(now []byte) bool { return now == nil })
		before[stepLock] = func() { must(t, other.Run(func(tx *Tx) error { return tx.Free(a) })) }
		return errors.Join(err, tx.Write(b, []byte("last")))
	}))
	wantData(t, w, "[last]", b)
}

// TestTornData: an object with a word of another version has no version.
func TestTornData(t *testing.T) {
	image := func(v Version, data string) []byte {
		p := make([]byte, headBytes+40)
		le.PutUint64(p, uint64(v))
		o := body{version: v, there: true, data: []byte(data)}
		o.encode(p[checksumAt : headBytes+len(data)])
		return p
	}
	p, q := image(77, "first data of 24 bytes ."), image(78, "other data, which are 40 bytes all in a.")
	if v, data, ok := Decode(p, 1); !ok || v != 77 || string(data) != "first data of 24 bytes ." {
		t.Errorf("got %v, %q, %v", v, data, ok)
	}
	for i := 0; i < headBytes+24; i += 8 {
		torn := slices.Clone(p)
		copy(torn[i:i+8], q[i:])
		if _, data, ok := Decode(torn, 1); ok {
			t.Errorf("with word %d of another: %q", i/8, data)
		}
	}
	if v, data, ok := Decode(make([]byte, 64), 1); !ok || v != 0 || data != nil {
		t.Errorf("what was never written is %v, %q, %v", v, data, ok)
	}
}

// TestTornLog: a record with a word of another record is no record.
func TestTornLog(t *testing.T) {
	image := func(lock Version, data ...string) []byte {
		r := record{p: make([]byte, 512)}
		for i, d := range data {
			r.add(Ref(i+1), &body{version: lock.written(), there: true, data: []byte(d)})
		}
		r.seal(lock)
		return r.p[:r.at]
	}
	p, q := image(held|77, "first"), image(held|78, "other", "and another")
	lock, entries, ok := openRecord(slices.Concat(p, make([]byte, 48)))
	r, _, rest := nextEntry(entries)
	if !ok || lock != held|77 || r != 1 || len(rest) != 0 {
		t.Errorf("got %v, %v, %d bytes more, %v", lock, r, len(rest), ok)
	}
	for i := 0; i < len(p); i += 8 {
		torn := slices.Clone(q)
		copy(torn[i:i+8], p[i:])
		if _, _, ok := openRecord(torn); ok && string(torn) != string(q) {
			t.Errorf("with word %d of another it is a record", i/8)
		}
	}
	if _, _, ok := openRecord(make([]byte, 256)); ok {
		t.Error("nothing at all is a record")
	}
}

// TestLateLock: a lock of a transaction that is over, of a dead client, is released on sight, and
// the object has the version of its data then.
func TestLateLock(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	a := l.Root(0)
	w, r := worker(t, f, l, Options{}), newRaw(t, f, l)
	must(t, set(w, "there", a))
	dead := worker(t, f, l, Options{})
	must(t, set(dead, "there", a))
	was := r.lock(a)
	must(t, f.Revoke(dead.id))
	r.take(a, lockOf(dead.id, dead.numbers.Used()+1))
	_, err := get(worker(t, f, l, Options{Timeout: brief}), a)
	wantError(t, err, rdma.ErrTimeout)
	must(t, w.Recover(dead.id))
	wantData(t, w, "[there]", a)
	if r.lock(a) != was || w.stats.Freed != 1 {
		t.Errorf("the lock is %#x, it was %#x: %+v", uint64(r.lock(a)), uint64(was), w.stats)
	}
}

// TestLostOutcome: a transaction gives up the WRITE of its log. It is uncertain,
// and is settled before the next one, in either way. What it has locked is free
// then.
func TestLostOutcome(t *testing.T) {
	for step, want := range map[rdma.Step]string{stepLog: "[new new]", stepCommit: "[new new]", stepLock: "[old old]"} {
		f, l := pool(t, Shape{Roots: 2})
		a, b := l.Root(0), l.Root(1)
		ep, err := f.Open("late")
		must(t, err)
		w := open(t, &deaf{Endpoint: ep}, l, Options{})
		must(t, set(w, "old", a, b))
		w.ep.(*deaf).step = step
		err = set(w, "new", a, b)
		if want := map[bool]error{true: rdma.ErrTimeout,
			false: client.ErrUncertain}[step == stepLock]; !errors.Is(err, want) {
			t.Errorf("%s: %v", step, err)
		}
		other := worker(t, f, l, Options{Timeout: brief})
		if step == stepLog {
			_, err = get(other, a)
			wantError(t, err, rdma.ErrTimeout)
		}
		wantData(t, w, want, a, b)
		wantData(t, other, want, a, b)
		must(t, w.Close())
	}
}

// deaf is an endpoint on which the first wait for a step times out, though the
// step completes.
type deaf struct {
	rdma.Endpoint
	step rdma.Step
}

func (d *deaf) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := d.Endpoint.Wait(b, n, within)
	if d.step != "" && b.Step() == d.step {
		d.step = ""
		return rdma.ErrTimeout
	}
	return err
}

// TestLives: an object that was freed is not there, though another one has its place.
func TestLives(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1})
	w := worker(t, f, l, Options{})
	old, err := create(w, "old")
	must(t, err)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(old) }))
	next, err := create(w, "next")
	must(t, err)
	if next.place() != old.place() || next == old {
		t.Fatalf("%v, and then %v", old, next)
	}
	_, err = get(w, old)
	wantError(t, err, ErrNoObject)
	wantError(t, set(w, "lost", old), ErrNoObject)
	wantError(t, w.Run(func(tx *Tx) error { return tx.Free(old) }), ErrNoObject)
	wantData(t, w, "[next]", next)
}

// TestLockOnNothing: a lock that a dead client left on the place of an object that it was about to
// make does not keep the place from being used.
func TestLockOnNothing(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Roots: 1, Sizes: []int{64}, Chunk: 2048, Memory: 1 << 18})
	dead := doomed(t, f, l, stepLog)
	_, err := create(dead, "new")
	wantError(t, err, rdma.ErrClosed)
	w := worker(t, f, l, Options{})
	must(t, f.Revoke(dead.id))
	must(t, w.Recover(dead.id))
	for range int(l.chunks.Count) * l.perChunk(0) {
		_, err := create(w, "there")
		must(t, err)
	}
	_, err = create(w, "one too many")
	wantError(t, err, client.ErrFull)
	if w.stats.Freed != 1 {
		t.Errorf("%+v", w.stats)
	}
}

// TestRetired: an identity that has used all of its sequences changes nothing any more.
func TestRetired(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1, SequenceBits: 4})
	w := worker(t, f, l, Options{})
	n := 0
	for ; n < 20; n++ {
		if err := set(w, "there", l.Root(0)); err != nil {
			wantError(t, err, ErrRetired)
			break
		}
	}
	if n == 0 || n >= 15 {
		t.Errorf("%d transactions", n)
	}
	wantData(t, w, "[there]", l.Root(0))
}

// TestDeadNode: what a dead node had is lost, and says so; what others have goes on.
func TestDeadNode(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Roots: 2})
	a, b := l.Root(0), l.Root(1)
	lost, w := worker(t, f, l, Options{Timeout: brief}), worker(t, f, l, Options{Timeout: brief})
	must(t, set(w, "there", a, b))
	if l.log(lost.id).Node() != 1 || l.log(w.id).Node() != 0 || nodeOf(l, a) != 0 || nodeOf(l, b) != 1 {
		t.Fatal("objects and logs lie elsewhere")
	}
	must(t, f.(rdma.NodeKiller).KillNode(1))
	for range 2 {
		_, err := get(w, b)
		wantError(t, err, rdma.ErrNodeDown)
		must(t, set(w, "new", a))
		wantData(t, w, "[new]", a)
	}
	wantData(t, lost, "[new]", a)
	wantError(t, set(lost, "never", a), client.ErrUncertain) // its log may have been written before the node died
	wantError(t, set(w, "later", a), rdma.ErrNodeDown)
}

// TestTwoPlaces: a transaction that makes more objects than a chunk has room for, so that chunks
// are scanned in its midst, gets different ones.
func TestTwoPlaces(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1, Sizes: []int{64}, Chunk: 2 * roomBytes(64)})
	w := worker(t, f, l, Options{})
	made := map[Ref]bool{}
	must(t, w.Run(func(tx *Tx) error {
		for range 7 {
			r, err := tx.New([]byte("new"))
			if err != nil {
				return err
			}
			if made[r.place()] {
				t.Errorf("the place of %v is another one's", r)
			}
			made[r.place()] = true
		}
		return nil
	}))
}

// TestStale: a transaction goes on when the pool's view changes at any of its
// steps, and takes effect once. If its closure gives up, its locks are free
// afterwards.
func TestStale(t *testing.T) {
	for _, step := range Steps {
		for _, early := range []bool{false, true} {
			f, l := pool(t, Shape{Roots: 2})
			a, b := l.Root(0), l.Root(1)
			w, before := hookedWorker(t, f, l, Options{})
			other := worker(t, f, l, Options{})
			must(t, set(w, "0", a, b))
			advance := func() {
				v := f.View()
				if ok, err := f.Advance(rdma.State{Epoch: v.Epoch}, rdma.State{Epoch: v.Epoch + 1}); !ok || err != nil {
					t.Fatal(ok, err)
				}
				must(t, f.Fence(v.Epoch+1))
			}
			before[step] = advance
			ran := 0
			err := w.Run(func(tx *Tx) error {
				ran++
				if !early {
					return writeText(tx, "1", b, a)
				}
				return errors.Join(tx.Lock(a), writeText(tx, "1", a, b))
			})
			if err != nil || ran > 2 {
				t.Errorf("a view that changes before step %q: %v, and it ran %d times", step, err, ran)
			}
			delete(before, step)
			wantData(t, w, "[1 1]", a, b)
			before[step] = advance
			wantError(t, w.Run(func(tx *Tx) error { return errors.Join(tx.Lock(a), errNothing) }), errNothing)
			delete(before, step)
			wantData(t, w, "[1]", b)
			wantData(t, other, "[1]", a)
		}
	}
}

func writeText(tx *Tx, text string, objects ...Ref) error {
	for _, r := range objects {
		if err := tx.Write(r, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}
