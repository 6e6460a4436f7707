package rtx

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/trace"
)

// none guesses nothing.
func none(Ref) (Meta, bool) { return Meta{}, false }

// each reads objects by Each: "" for those that are not there.
func each(w *Worker, guess func(Ref) (Meta, bool), refs ...Ref) ([]string, []Meta, error) {
	got, metas := make([]string, len(refs)), make([]Meta, len(refs))
	err := w.Each(refs, guess, func(i int, m Meta, data []byte, there bool) {
		metas[i] = m
		if there {
			got[i] += string(data)
		}
	})
	return got, metas, err
}

// TestEach: objects of all kinds are read in the trips of one, also where guesses are wrong, and
// locks are waited for.
func TestEach(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 3, Roots: 4, Objects: 64})
	w, other := worker(t, f, l, Options{Timeout: time.Second}),
		worker(t, f, l, Options{Drift: 20 * time.Millisecond, Timeout: time.Second})
	must(t, set(w, "old", l.Root(0), l.Root(1)))
	gone, err := create(w, "gone")
	must(t, err)
	must(t, w.Run(func(tx *Tx) error { return tx.Free(gone) }))
	refs := []Ref{l.Root(0), gone, l.Root(1), l.Root(2), l.Root(0)}
	want := fmt.Sprint([]string{"old", "", "old", "", "old"})
	var metas []Meta
	try := func(what string, guess func(Ref) (Meta, bool), trips uint64) {
		t.Helper()
		n := trace.Trips(w.ep, func() {
			got, m, err := each(w, guess, refs...)
			if metas = m; fmt.Sprint(got) != want || err != nil {
				t.Errorf("%s: %q, %v, want %s", what, got, err, want)
			}
		})
		if n.Trips != trips {
			t.Errorf("%s took %d trips, want %d", what, n.Trips, trips)
		}
	}
	try("without a guess", none, 2)
	right := map[Ref]Meta{}
	for i, r := range refs {
		right[r] = metas[i]
	}
	guess := func(r Ref) (Meta, bool) { m, ok := right[r]; return m, ok }
	try("guessed", guess, 1)
	must(t, set(other, "new", l.Root(1)))
	must(t, other.land())
	want = fmt.Sprint([]string{"old", "", "new", "", "old"})
	try("guessed wrongly", guess, 2)
	must(t, set(other, "new", l.Root(2)))
	want = fmt.Sprint([]string{"old", "", "new", "new", "old"})
	try("guessed not to be there", guess, 2)
	if got := testing.AllocsPerRun(100, func() {
		must(t, w.Each(refs, guess, func(int, Meta, []byte, bool) {}))
	}); got > 0 {
		t.Errorf("%v allocations", got)
	}
	// A transaction that was not decided is aborted behind its lease, and what it
	// was about to write is not read.
	tx := &other.tx
	tx.begin()
	must(t, tx.Write(l.Root(0), []byte("half")))
	must(t, tx.Write(l.Root(1), []byte("half")))
	must(t, tx.number())
	must(t, tx.takeBuffers())
	must(t, tx.lockAll(other.lock(other.id, tx.sequence, false, 0)))
	if got, _, err := each(w, guess, refs...); fmt.Sprint(got) != want || err != nil || w.stats.Aborted != 1 {
		t.Errorf("beside a lock: %q, %v, %+v", got, err, w.stats)
	}
	tx.abort()
	// A transaction that changes a single object is not waited for: the pointer
	// says what there is.
	must(t, other.settle())
	tx.begin()
	must(t, tx.Lock(l.Root(0)))
	for what, trips := range map[string]uint64{"beside a lock without a log": 2, "and again": 2} {
		try(what, none, trips)
	}
	must(t, tx.Write(l.Root(0), []byte("last")))
	must(t, tx.takeBuffers())
	must(t, tx.commitAlone())
	want = fmt.Sprint([]string{"last", "", "new", "new", "last"})
	try("behind the swap, before the release", none, 2)
	tx.w.letGo(stepUnlock, tx.objects)
	tx.settled(true)
	wantError(t, w.Each([]Ref{0}, none, nil), ErrNoObject)
}

// TestSpan: transactions share the time of a span, and have their own without one.
func TestSpan(t *testing.T) {
	f, l := pool(t, Shape{Roots: 1})
	w := worker(t, f, l, Options{Timeout: 40 * time.Millisecond})
	turns := func(n int) (err error) {
		for range n {
			w.ep.Sleep(8 * time.Millisecond)
			if _, _, err = each(w, none, l.Root(0)); err != nil {
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
