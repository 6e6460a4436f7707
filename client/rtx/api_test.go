package rtx

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// TestShapes: shapes that no pool can have are refused.
func TestShapes(t *testing.T) {
	good := Shape{Nodes: 2, Memory: 1 << 20, Clients: 8, Roots: 1, Objects: 64, Sizes: []int{8, 1024}}
	l, err := NewLayout(good)
	must(t, err)
	if l.Tables() == 0 || l.Writes != 16 || l.Chunk < 1024 {
		t.Errorf("%+v", l)
	}
	for name, change := range map[string]func(s *Shape){
		"no nodes":           func(s *Shape) { s.Nodes = 0 },
		"no clients":         func(s *Shape) { s.Clients = 0 },
		"too many clients":   func(s *Shape) { s.Clients = 1 << 16 },
		"no sizes":           func(s *Shape) { s.Sizes = nil },
		"a size of nothing":  func(s *Shape) { s.Sizes = []int{0} },
		"sizes out of order": func(s *Shape) { s.Sizes = []int{9, 8} },
		"nine sizes":         func(s *Shape) { s.Sizes = []int{1, 2, 3, 4, 5, 6, 7, 8, 9} },
		"no memory":          func(s *Shape) { s.Memory = 1 << 12 },
		"no room for data":   func(s *Shape) { s.Sizes = []int{2 << 20} },
		"one write":          func(s *Shape) { s.Writes = 1 },
		"too much memory":    func(s *Shape) { s.Memory = 1 << 49 },
		"too many units":     func(s *Shape) { s.Memory, s.Nodes = 1<<47, 100 },
	} {
		s := good
		change(&s)
		if _, err := NewLayout(s); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlaces: no two things lie at the same place, and each is found again by its word.
func TestPlaces(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 3, Memory: 1 << 18, Clients: 8, Roots: 5, Objects: 100,
		Sizes: []int{8, 100, 1024}})
	must(t, err)
	seen := map[rdma.Addr]string{}
	place := func(at rdma.Addr, n int, what string) {
		if at.Offset()+uint64(n) > 1<<18 {
			t.Errorf("%s lies at %v", what, at)
		}
		for i := 0; i < n; i += 8 {
			if other, ok := seen[at.Add(uint64(i))]; ok {
				t.Fatalf("%s and %s lie at %v", what, other, at.Add(uint64(i)))
			}
			seen[at.Add(uint64(i))] = what
		}
	}
	for c := range rdma.ClientID(9) {
		place(l.log(c), int(l.logBytes), fmt.Sprint("log ", c))
	}
	for n := range 3 {
		for _, a := range []*chunks.Arena{&l.metas, &l.data} {
			for i := range int(a.Count) {
				place(a.Word(n, i), 8, "entry")
			}
		}
		for k := range int(l.data.Count) {
			class := k % 3
			for i := range l.buffers(class) {
				p := l.pointer(class, 7, l.unitOf(n, k, class, i))
				place(l.buffer(p), l.bufferBytes(class), fmt.Sprint("buffer ", n, k, i))
				if gn, gk, gi := l.chunkOf(p); gn != n || gk != k || gi != i || l.tag(p) != 7 || p.class() != class {
					t.Fatalf("buffer %d of chunk %d of node %d is %d of %d of %d", i, k, n, gi, gk, gn)
				}
			}
		}
		for k := range int(l.metas.Count) {
			for i := range 64 {
				r := Ref(l.numberOf(n, k, i))
				if !l.valid(r) || l.Meta(r) != l.metas.At(n, k).Add(uint64(i*MetaBytes)) {
					t.Fatalf("%v lies at %v", r, l.Meta(r))
				}
				place(l.Meta(r), MetaBytes, r.String())
			}
		}
	}
	for i := range 5 {
		place(l.Meta(l.Root(i)), MetaBytes, fmt.Sprint("root ", i))
	}
	if l.valid(0) || l.valid(Ref(5+3*128+1)) || !l.valid(Ref(5+3*128)) {
		t.Error("valid")
	}
	k := l.lock(5, l.maxSequence, true, 9)
	if !k.Held() || !k.Alone() || l.owner(k) != 5 || l.sequence(k) != l.maxSequence || k.released().Held() ||
		l.owner(k.released()) != 5 {
		t.Errorf("lock %#x", uint64(k))
	}
	for d, want := range map[time.Duration]time.Duration{0: 0, 1: leaseUnit, leaseUnit: leaseUnit,
		2 * leaseUnit: 3 * leaseUnit,
		time.Second:   16383 * leaseUnit, time.Hour: 32767 * leaseUnit} {
		if got := lease(Lock(leaseCode(d))<<leaseShift, time.Second) - time.Second; got != want {
			t.Errorf("a transaction of %v has a lease of %v", d, got)
		}
	}
}

// TestErrors: what a transaction cannot do ends in its error, and changes
// nothing.
func TestErrors(t *testing.T) {
	f, l := pool(t, Shape{Roots: 3, Objects: 64, Writes: 2})
	w := worker(t, f, l, Options{})
	a := l.Root(0)
	must(t, set(w, "there", a))
	made, err := create(w, "made")
	must(t, err)
	run := func(want error, f func(tx *Tx) error) {
		t.Helper()
		wantError(t, w.Run(f), want)
		wantData(t, w, "[there made]", a, made)
	}
	run(client.ErrTooLarge, func(tx *Tx) error { return tx.Write(a, make([]byte, 1025)) })
	run(client.ErrTooLarge, func(tx *Tx) error { _, err := tx.New(make([]byte, 1025)); return err })
	run(ErrTooMany, func(tx *Tx) error {
		return errors.Join(tx.Write(a, nil), tx.Write(made, nil), tx.Write(l.Root(1), nil))
	})
	for _, r := range []Ref{0, 1 << 40, l.Root(2), made + 1, made ^ 1<<60} {
		run(ErrNoObject, func(tx *Tx) error { _, err := tx.Read(r); return errors.Join(err, tx.Write(a, nil)) })
		run(ErrNoObject, func(tx *Tx) error { return errors.Join(tx.Free(r), tx.Write(a, nil)) })
	}
	run(ErrNoObject, func(tx *Tx) error { return tx.Write(made+1, nil) })
	run(ErrNoObject, func(tx *Tx) error { return tx.Lock(0) })
	run(ErrNoObject, func(tx *Tx) error { return errors.Join(tx.Free(made), tx.Write(made, nil)) })
	run(rdma.ErrAccess, func(tx *Tx) error { _, err := tx.NewOn(2, nil); return err })
	mine := errors.New("mine")
	run(mine, func(tx *Tx) error { return errors.Join(tx.Lock(a), tx.Write(a, nil), mine) })
	wantError(t, w.Await(0), ErrNoObject)
	f, l = pool(t, Shape{Roots: 1})
	_, err = create(worker(t, f, l, Options{}), "in a pool of roots alone")
	wantError(t, err, client.ErrFull)
	if _, err := Open(w.ep, &Layout{Shape: Shape{Clients: int(w.id) - 1}}, Options{}); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("an identity beyond the pool's: %v", err)
	}
}

// TestOwnChanges: a transaction sees what it has done itself.
func TestOwnChanges(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2, Objects: 64})
	w := worker(t, f, l, Options{})
	a, b := l.Root(0), l.Root(1)
	must(t, set(w, "a", a))
	var gone Ref
	must(t, w.Run(func(tx *Tx) error {
		old, err := tx.Read(a)
		must(t, err)
		must(t, tx.Write(a, []byte("new")))
		now, err := tx.Read(a)
		if string(old) != "a" || string(now) != "new" || err != nil {
			t.Errorf("%q, and then %q, %v", old, now, err)
		}
		r, err := tx.New([]byte("made"))
		must(t, err)
		must(t, tx.Lock(r))
		must(t, tx.Write(r, []byte("changed")))
		if p, err := tx.Read(r); string(p) != "changed" || err != nil {
			t.Errorf("%q, %v", p, err)
		}
		gone = r
		must(t, tx.Free(r))
		_, err = tx.Read(r)
		wantError(t, err, ErrNoObject)
		must(t, tx.Write(b, nil))
		must(t, tx.Free(b)) // which was not there
		if tx.writes != 1 {
			t.Errorf("%d objects are changed", tx.writes)
		}
		return nil
	}))
	wantData(t, w, "[new]", a)
	for _, r := range []Ref{gone, b} {
		_, err := get(w, r)
		wantError(t, err, ErrNoObject)
	}
}

// TestClosures: a closure that panics leaves no locks, and one that does not look
// at errors ends.
func TestClosures(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	w, other := worker(t, f, l, Options{Drift: long}), worker(t, f, l, Options{Drift: long})
	a := l.Root(0)
	must(t, set(w, "there", a))
	func() {
		defer func() {
			if p := recover(); p != "mine" {
				t.Errorf("it panicked with %v", p)
			}
		}()
		_ = w.Run(func(tx *Tx) error { must(t, tx.Lock(a)); panic("mine") })
	}()
	must(t, w.land())
	must(t, set(other, "new", a))
	ran := 0
	must(t, w.Run(func(tx *Tx) error {
		if ran++; ran == 1 {
			_, err := tx.Read(a)
			must(t, err)
			must(t, set(other, "newer", a))
			for p := ""; p != "never"; { // as long as it is not there
				_ = tx.Lock(a)
			}
		}
		return nil
	}))
	if ran != 2 {
		t.Errorf("it ran %d times", ran)
	}
	ran = 0
	must(t, w.Run(func(tx *Tx) error { // errors that are made into something else
		if ran++; ran == 1 {
			_, err := tx.Read(a)
			must(t, err)
			must(t, set(other, "newest", a))
			if _, err := tx.Read(l.Root(0)); err != nil {
				t.Error("what was read is read again")
			}
			return errors.Join(errNothing, tx.Lock(a))
		}
		return nil
	}))
	if ran != 2 {
		t.Errorf("it ran %d times", ran)
	}
}

// TestDelegated: callbacks decide about changes before the commit (OPT2).
func TestDelegated(t *testing.T) {
	f, l := pool(t, Shape{Roots: 3})
	w, other := worker(t, f, l, Options{}), worker(t, f, l, Options{})
	a, b, c := l.Root(0), l.Root(1), l.Root(2)
	for _, kind := range []string{"same", "other", "freed", "relaxed", "checked"} {
		must(t, set(w, "old", a, b, c))
		ran, asked := 0, 0
		err := w.Run(func(tx *Tx) error {
			ran++
			_, err := tx.ReadIf(a, func(now []byte) bool {
				asked++
				return strings.HasPrefix(string(now), "same") || now == nil
			})
			must(t, err)
			if kind == "relaxed" {
				tx.Relax(a)
			}
			if ran == 1 && kind == "freed" {
				must(t, other.Run(func(tx *Tx) error { return tx.Free(a) }))
			} else if ran == 1 {
				must(t, set(other, kind, a))
			}
			if kind == "checked" {
				tx.Relax(a) // so that there is nothing else to validate
				tx.Check(func(*rdma.Batch) {}, func() bool { return ran == 3 })
			}
			return errors.Join(tx.Write(b, []byte("new")), tx.Write(c, []byte("new")))
		})
		must(t, err)
		want := map[string]int{"same": 1, "other": 2, "freed": 1, "relaxed": 1, "checked": 3}[kind]
		if ran != want || (asked == 0) != (kind == "relaxed" || kind == "checked") {
			t.Errorf("%s: it ran %d times, and was asked %d times", kind, ran, asked)
		}
		wantData(t, w, "[new new]", b, c)
	}
}

// TestAskedOfOneMoment: another transaction changes two objects between the looks
// at them. One of them may have changed, but both were not as they are at one
// moment: neither a commit nor a READ without a later one accepts that.
func TestAskedOfOneMoment(t *testing.T) {
	f, l := pool(t, Shape{Roots: 4})
	w, h := hookedBehind(t, f, l, Options{})
	other, r := worker(t, f, l, Options{}), newRaw(t, f, l)
	a, b, c, d := l.Root(0), l.Root(1), l.Root(2), l.Root(3)
	for _, step := range []rdma.Step{stepValidate, stepReadData, stepLockEarly} {
		must(t, set(w, "old", a, b, c, d))
		var saw, last string
		must(t, w.Run(func(tx *Tx) error {
			_, err := tx.ReadIf(a, func([]byte) bool { return true })
			must(t, err)
			was, err := tx.Read(b)
			if err != nil {
				return err
			}
			saw = string(was)
			if last == "" {
				last = saw
				h.behind[step] = func(batch *rdma.Batch) {
					must(t, set(other, "new", a, b))
					for i := range batch.Len() {
						if op := batch.Op(i); op.Addr == l.Meta(a) {
							m := r.meta(a)
							copy(op.Buf, append(word(uint64(m.Lock)), word(uint64(m.Pointer))...))
						}
					}
				}
			}
			switch step {
			case stepReadData:
				_, err = tx.Read(d)
				return err
			case stepLockEarly:
				if err := tx.Lock(d); err != nil {
					return err
				}
			}
			return tx.Write(c, was)
		}))
		if last != "old" || saw != "new" {
			t.Errorf("%s: got %q at first, and %q at last: half a transaction", step, last, saw)
		}
	}
}

// TestCustomBatch: an index that has verbs of its own sees by an object's metadata whether it was
// changed, or is about to be, waits, and repairs: what RACE does behind its slots.
func TestCustomBatch(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, r := worker(t, f, l, Options{Drift: short}), newRaw(t, f, l)
	must(t, set(w, "there", a, b))
	must(t, w.Await(a))
	seen := r.meta(a)
	at, n, ok := l.Buffer(seen.Pointer)
	p, err := rdma.ReadBytes(r.ep, "test", at, n, time.Second)
	if o, data, whole := l.Decode(p, seen.Pointer); err != nil || !ok || o != a || !whole || string(data) != "there" ||
		seen != r.meta(a) {
		t.Errorf("%q of %v, %v, %v", data, o, ok, err)
	}
	ep, err := f.Open("dead")
	must(t, err)
	dead := open(t, fault.New(ep, fault.Fault{Step: stepDecide, Crash: fault.Stop}), l, Options{})
	wantError(t, set(dead, "dead's", a, b), rdma.ErrClosed)
	if now := r.meta(a); !now.Lock.Held() || now.Lock.Alone() || now == seen {
		t.Errorf("%+v, and then %+v", seen, now)
	}
	must(t, w.Await(a))
	if now := r.meta(a); now.Lock.Held() || now == seen || now.Pointer != seen.Pointer {
		t.Errorf("%+v, and then %+v", seen, now)
	}
	if _, _, ok := l.Buffer(0); ok {
		t.Error("nothing has a buffer")
	}
}

// TestFull: in a full pool objects can be read, replaced and freed; then there is
// room again.
func TestFull(t *testing.T) {
	for _, objects := range []int{64, 4096} { // metadata runs out, or buffers
		f, l := pool(t, Shape{Memory: 256 << 10, Nodes: 2, Clients: 4, Roots: 1, Objects: objects, Sizes: []int{64}})
		w := worker(t, f, l, Options{Drift: short})
		must(t, set(w, "root", l.Root(0)))
		var made []Ref
		for {
			r, err := create(w, "made")
			if err != nil {
				wantError(t, err, client.ErrFull)
				break
			}
			made = append(made, r)
		}
		if objects == 64 && len(made) != 128 || objects > 64 && len(made) < 1000 {
			t.Errorf("%d objects fit", len(made))
		}
		if objects > 64 {
			wantError(t, set(w, "new", made[0]), client.ErrFull)
			wantError(t, set(w, "new", made[0], made[1]), client.ErrFull)
		}
		wantData(t, w, "[made made]", made[0], made[len(made)-1])
		must(t, w.Run(func(tx *Tx) error { return errors.Join(tx.Free(made[0]), tx.Free(made[1])) }))
		must(t, w.Run(func(tx *Tx) error { return tx.Free(made[2]) }))
		must(t, set(w, "new", made[3]))
		_, err := create(w, "again")
		must(t, err)
		must(t, w.Close())
		other := worker(t, f, l, Options{Drift: short})
		_, err = create(other, "other's")
		must(t, err)
		u, err := other.Check(func(rdma.ClientID) bool { return true })
		if err != nil || u.Objects != len(made)+1-3+2 || u.Held != 0 {
			t.Errorf("%d objects, then: %+v, %v", len(made), u, err)
		}
	}
}

// TestDamage: what no client can have written is reported.
func TestDamage(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w, r := worker(t, f, l, Options{}), newRaw(t, f, l)
	must(t, set(w, "there", a))
	must(t, set(w, "there", b))
	all := func(rdma.ClientID) bool { return true }
	u, err := w.Check(all)
	if err != nil || u.Objects != 2 || u.Owned != 2 || u.Lost != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := w.Check(func(rdma.ClientID) bool { return false }); err != nil || u.Lost != 2 {
		t.Errorf("%+v, %v", u, err)
	}
	damage := func(do, undo func()) {
		t.Helper()
		do()
		if _, err := w.Check(all); !errors.Is(err, client.ErrDamaged) {
			t.Errorf("got %v", err)
		}
		undo()
		if _, err := w.Check(all); err != nil {
			t.Errorf("got %v", err)
		}
	}
	pa, pb := r.meta(a).Pointer, r.meta(b).Pointer
	for _, p := range []Pointer{pb, pa + 1, pa | 7<<classShift, l.pointer(0, 1, l.units*5)} {
		damage(func() { r.swap(l.Meta(a).Add(8), uint64(pa), uint64(p)) },
			func() { r.swap(l.Meta(a).Add(8), uint64(p), uint64(pa)) })
	}
	damage(func() { r.write(l.buffer(pa).Add(HeaderBytes), []byte("THERE")) },
		func() { r.write(l.buffer(pa).Add(HeaderBytes), []byte("there")) })
	r.write(l.buffer(pa).Add(HeaderBytes), []byte("THERE"))
	_, err = get(w, a)
	wantError(t, err, client.ErrDamaged)
}

// TestGuess: a guess that is wrong, or of two moments, costs trips, and changes nothing else.
func TestGuess(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w := worker(t, f, l, Options{Drift: long})
	must(t, set(w, "0", a, b))
	old, _ := w.Seen(a)
	for n, lock := range []bool{false, true} {
		for k, wrong := range []func(now Meta) Meta{
			func(Meta) Meta { return old },
			func(now Meta) Meta { return Meta{now.Lock, old.Pointer} },
			func(now Meta) Meta { return Meta{old.Lock, now.Pointer} },
			func(now Meta) Meta { return Meta{now.Lock, 0} },
			func(now Meta) Meta { return Meta{now.Lock | lockHeld, now.Pointer} },
			func(now Meta) Meta { return now },
		} {
			data := fmt.Sprint(n, k)
			must(t, set(w, data, a))
			must(t, w.settle())
			now, ok := w.Seen(a)
			if !ok || now != newRawOf(t, w).meta(a) {
				t.Errorf("%+v was seen, and is not there", now)
			}
			err := w.Run(func(tx *Tx) error {
				tx.Guess(a, wrong(now))
				if lock {
					if err := tx.Lock(a); err != nil {
						return err
					}
				}
				p, err := tx.Read(a)
				if string(p) != data && err == nil {
					t.Errorf("%q is read, and %q was written", p, data)
				}
				return errors.Join(err, tx.Write(a, []byte(data+"!")), tx.Write(b, []byte(data+"!")))
			})
			must(t, err)
			wantData(t, w, fmt.Sprintf("[%[1]s! %[1]s!]", data), a, b)
		}
	}
}

func newRawOf(t *testing.T, w *Worker) *raw { return &raw{t, w.ep, w.Layout} }

// TestShared: an index changes data by verbs of its own, and the library returns
// what it has written.
func TestShared(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2, Sizes: []int{64, 256}, Shared: 2})
	a, b := l.Root(0), l.Root(1)
	w := worker(t, f, l, Options{})
	r := newRawOf(t, w)
	must(t, set(w, strings.Repeat("x", 256), a))
	must(t, set(w, "small", b))
	must(t, w.settle())
	for _, o := range []Ref{a, b} {
		at, _, _ := l.Buffer(r.meta(o).Pointer)
		r.swap(at.Add(HeaderBytes), le.Uint64([]byte("xxxxxxxx")), le.Uint64([]byte("SLOT....")))
		if o == a {
			got, err := get(w, a)
			if err != nil || !strings.HasPrefix(got[0], "SLOT....xxx") {
				t.Errorf("%q, %v", got, err)
			}
			r.write(l.buffer(r.meta(b).Pointer).Add(HeaderBytes), []byte("xxxxxxxx"))
		} else {
			_, err := get(w, b)
			wantError(t, err, client.ErrDamaged)
		}
	}
	at, bytes, ok := l.Buffer(r.meta(a).Pointer)
	p, err := rdma.ReadBytes(r.ep, "test", at, bytes, time.Second)
	must(t, err)
	if of, data, whole := l.Decode(p, r.meta(a).Pointer); !ok || !whole || of != a || len(data) != 256 {
		t.Errorf("%v, %d bytes, %v, %v", of, len(data), whole, ok)
	}
}

// TestDescribe: each place has a name.
func TestDescribe(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Roots: 3, Objects: 64})
	w := worker(t, f, l, Options{})
	last := l.Root(2)
	for at, want := range map[rdma.Addr]string{
		l.log(5):                 "log state of client 5",
		l.log(5).Add(ceilingAt):  "ceiling of client 5",
		l.log(6).Add(entriesAt):  "log record of client 6",
		l.Meta(last):             "lock of root 2",
		l.Meta(last).Add(8):      "pointer of root 2",
		l.Meta(9):                "lock of object 9.0",
		l.metas.Word(1, 0):       "owner of metadata chunk 0",
		l.data.Word(1, 3):        "owner of data chunk 3",
		l.data.At(0, 2).Add(200): "data chunk 2, byte 200",
		rdma.At(0, 0):            "",
		rdma.At(0, memMemory):    "",
	} {
		if got := l.Describe(at); got != want {
			t.Errorf("at %v lies %q, want %q", at, got, want)
		}
	}
	must(t, set(w, "there", last))
	counts := w.Counts(nil)
	if len(counts) != 11 || counts[0].Count != 1 || counts[1].Count != 1 {
		t.Errorf("%+v", counts)
	}
}
