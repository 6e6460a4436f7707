package dtx

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// each reads objects by Each: "" for those that are not there.
func each(w *Worker, refs ...Ref) ([]string, error) {
	got := make([]string, len(refs))
	err := w.Each(refs, func(i int, _ Version, data []byte) { got[i] += string(data) })
	return got, err
}

// TestEach: objects of all kinds are read in one trip, and locks are waited for, also those of a
// client that is gone.
func TestEach(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 3, Roots: 4})
	w, other := worker(t, f, l, Options{Timeout: time.Second}), worker(t, f, l, Options{})
	must(t, set(w, "old", l.Root(0), l.Root(1)))
	gone, err := create(w, "gone")
	must(t, err)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(gone) }))
	must(t, w.land())
	refs := []Ref{l.Root(0), gone, l.Root(1), l.Root(2), l.Root(0)}
	want := fmt.Sprint([]string{"old", "", "old", "", "old"})
	n := trace.Trips(w.ep, func() {
		if got, err := each(w, refs...); fmt.Sprint(got) != want || err != nil {
			t.Errorf("%q, %v, want %s", got, err, want)
		}
	})
	if n.Trips != 1 || n.Reads != 5 {
		t.Errorf("it took %d trips, %d READs", n.Trips, n.Reads)
	}
	if got := testing.AllocsPerRun(100, func() {
		must(t, w.Each(refs, func(int, Version, []byte) {}))
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
	wantError(t, w.Each([]Ref{0}, nil), ErrNoObject)
	// A locked object is waited for, as what its transaction is about to write
	// may be committed.
	tx := &other.tx
	tx.begin()
	must(t, tx.Lock(l.Root(1)))
	got, err := each(w, refs...)
	if holder := fmt.Sprintf("client %d;", other.id); !errors.Is(err, rdma.ErrTimeout) ||
		!strings.Contains(err.Error(), holder) || !strings.Contains(err.Error(), "farkv recover") {
		t.Errorf("beside a lock: %q, %v", got, err)
	}
	must(t, f.Revoke(other.id))
	must(t, w.Recover(other.id))
	if got, err := each(w, refs...); fmt.Sprint(got) != want || err != nil || w.stats.Freed != 1 {
		t.Errorf("behind a recovery: %q, %v, %+v", got, err, w.stats)
	}
	// An object that is torn is read again, up to the bound, and is damage then.
	r := newRaw(t, f, l)
	at, _ := l.Object(l.Root(0))
	b := r.ep.Batch()
	b.Write(at.Add(headBytes), append(b.Alloc(3)[:0], "OLD"...))
	must(t, rdma.Do(r.ep, b, time.Second))
	if _, err := each(w, l.Root(0)); !errors.Is(err, client.ErrDamaged) || w.stats.Torn != mostTorn {
		t.Errorf("torn: %v, %+v", err, w.stats)
	}
}

// TestSpan: transactions share the time of a span, and have their own without one.
func TestSpan(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	w := worker(t, f, l, Options{Timeout: 40 * time.Millisecond})
	turns := func(n int) (err error) {
		for range n {
			w.ep.Sleep(8 * time.Millisecond)
			if _, err = each(w, l.Root(0)); err != nil {
				return err
			}
		}
		return nil
	}
	must(t, turns(20))
	w.Span()
	if err := turns(20); !w.Over() {
		t.Errorf("a span has no end, and the last answer was %v", err)
	}
	w.Span()
	must(t, turns(1))
}

// TestLooks: what looks at a pool without a transaction sees.
func TestLooks(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 2, Roots: 1})
	w, other := worker(t, f, l, Options{}), worker(t, f, l, Options{})
	must(t, set(w, "root", l.Root(0)))
	r, err := create(w, "made")
	must(t, err)
	look := func(r Ref, want string) {
		t.Helper()
		if data, err := w.Look(r); string(data) != want || (want == "") != errors.Is(err, ErrNoObject) {
			t.Errorf("%v is %q, %v, want %q", r, data, err, want)
		}
	}
	look(l.Root(0), "root")
	look(r, "made")
	look(r+1<<lifeShift, "")
	look(0, "")
	ep, err := rdma.Peek(f, "survey")
	must(t, err)
	s, err := l.Survey(ep, time.Second)
	must(t, errors.Join(err, ep.Close()))
	if fmt.Sprint(s.Chunks) != "[1 0]" || s.Owned != 1 || s.MostChunks != 2*l.chunks.Count ||
		l.Places() != l.chunks.Count*uint64(l.Chunk) {
		t.Errorf("%+v", s)
	}
	// A transaction that is not over is waited for, as long as its client is there.
	tx := &other.tx
	tx.begin()
	must(t, tx.Lock(r))
	look(r, "made")
	all := func(rdma.ClientID) bool { return true }
	if u, err := w.Check(all); err != nil || u.Waiting != 1 || u.Objects != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	_, err = w.Check(func(c rdma.ClientID) bool { return c != other.id })
	wantError(t, err, client.ErrDamaged)
	must(t, f.Revoke(other.id))
	must(t, w.Recover(other.id))
	if u, err := w.Check(all); err != nil || u.Waiting != 0 || u.Held != 1 || u.Objects != 2 {
		t.Errorf("%+v, %v", u, err)
	}
	if at, n, ok := l.ObjectAt(r); !ok || n != 128 || at.Node() != nodeOf(l, r) {
		t.Errorf("%v lies at %v, %d bytes, %v", r, at, n, ok)
	}
	if _, _, ok := l.ObjectAt(r + 1); ok {
		t.Error("no object has a place")
	}
}

// TestLogBytes: a log of as many bytes as LogBytes says has room for such a transaction, and for
// none that is larger.
func TestLogBytes(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2, Log: LogBytes(9, 64)})
	w := worker(t, f, l, Options{})
	write := func(n, m int) error {
		return w.Run(func(tx *Tx) error {
			return errors.Join(tx.Write(l.Root(0), make([]byte, n)), tx.Write(l.Root(1), make([]byte, m)))
		})
	}
	must(t, write(9, 64))
	wantError(t, write(9, 73), ErrTooMany)
}
