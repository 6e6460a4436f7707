package original

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// lossy is an endpoint on which batches fail as of a dead node: they are lost, or they land and
// their answers are lost.
type lossy struct {
	rdma.Endpoint
	// fate says what becomes of a batch.
	fate func(b *rdma.Batch) fate
	// err is what those that fail end in.
	err error
	// asleep is called while the worker sleeps; nil: nothing is.
	asleep func()
	// failed has the batches that have failed, until they are used again.
	failed map[*rdma.Batch]bool
	// hanging is the batch that is in flight; nil: none is.
	hanging *rdma.Batch
}

type fate int

const (
	lands fate = iota
	isLost
	answerIsLost
	hangs
)

func allLand(*rdma.Batch) fate { return lands }

func (e *lossy) Post(b *rdma.Batch) error {
	f := e.fate(b)
	switch e.failed[b] = f != lands; f {
	case isLost:
		return nil
	case hangs:
		e.hanging = b
		e.Endpoint.(interface{ Posted(*rdma.Batch) }).Posted(b)
		return nil
	}
	return e.Endpoint.Post(b)
}

func (e *lossy) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if e.failed[b] {
		return e.err
	}
	return e.Endpoint.Wait(b, n, within)
}

func (e *lossy) Sleep(d time.Duration) {
	if e.Endpoint.Sleep(d); e.asleep != nil {
		e.asleep()
	}
}

// lossyOn is storeOn with an endpoint on which no batch fails yet, or when the store is closed.
func lossyOn(t *testing.T, f rdma.Fabric) (*Store, *lossy) {
	t.Helper()
	s := storeOn(t, f, Options{})
	e := lossyUnder(s)
	t.Cleanup(func() { e.fate = allLand })
	return s, e
}

func lossyUnder(s *Store) *lossy {
	e := &lossy{Endpoint: s.ep, fate: allLand, err: rdma.ErrNodeDown, failed: map[*rdma.Batch]bool{}}
	s.ep = e
	return e
}

// hasCAS reports whether a verb of a batch is a CAS.
func hasCAS(b *rdma.Batch) bool {
	for i := range b.Len() {
		if b.Op(i).Verb == rdma.CompareSwap {
			return true
		}
	}
	return false
}

// hasLock reports whether a batch releases a lock that was taken for an operation.
func hasLock(b *rdma.Batch, o operation) bool {
	last := b.Op(b.Len() - 1)
	return last.Verb == rdma.CompareSwap && lockWord(last.Expect).op() == o
}

// TestSettledTwice: a write-back is lost, and so is the answer of the release by
// which it is settled. The lock is free then, and the write did not take effect.
func TestSettledTwice(t *testing.T) {
	old, now := bytes.Repeat([]byte("old "), 8), bytes.Repeat([]byte("now "), 8)
	for what, write := range map[string]func(s *Store, key []byte) error{
		"insert": func(s *Store, key []byte) error { return s.Insert(append(key, '+'), now) },
		"update": func(s *Store, key []byte) error { return s.Update(key, now) },
		"delete": func(s *Store, key []byte) error { return s.Delete(key) },
	} {
		for full := range 2 { // a leaf with room, and one that is full
			t.Run(fmt.Sprint(what, full), func(t *testing.T) {
				f := memPool(t, 1, tornParams)
				s, e := lossyOn(t, f)
				key := []byte("key")
				must(t, s.Insert(key, old))
				if full == 1 {
					must(t, s.Insert([]byte("other"), old))
				}
				for range 3 { // no job is left that would look at blocks
					_, err := s.Get(key)
					must(t, errors.Join(err, s.work(true)))
				}
				wrote, released := false, false
				e.fate = func(b *rdma.Batch) fate {
					switch {
					case b.Step() == stepWriteBack && !wrote:
						wrote = true
						return isLost
					case b.Step() == stepSettle && hasCAS(b) && !released:
						released = true
						return answerIsLost
					}
					return lands
				}
				must(t, write(s, key))
				want := map[string][2]string{"insert": {string(old), string(now)}, "update": {string(now)},
					"delete": {}}[what]
				keys := full
				for i, k := range []string{"key", "key+"} {
					got, err := s.Get([]byte(k))
					if string(got) != want[i] || (err == nil) != (want[i] != "") {
						t.Errorf("%s is %q, %v, want %q", k, got, err, want[i])
					}
					if err == nil {
						keys++
					}
				}
				if !wrote || !released {
					t.Errorf("the write-back was lost: %v, the answer of its release: %v", wrote, released)
				}
				checkAfterClose(t, f, s, keys)
			})
		}
	}
}

// TestFreedForIt: a client is to take a block that it has replaced. Another one
// frees it first, and the client takes it as one of the free ones. It has the
// block once.
func TestFreedForIt(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 100))
	s, other := storeOn(t, f, Options{}), storeOn(t, f, Options{})
	key, old, now := []byte("key"), bytes.Repeat([]byte("old "), 8), bytes.Repeat([]byte("now "), 8)
	must(t, s.Insert(key, old))
	must(t, s.Update(key, now))
	if len(s.todo) != 1 || s.todo[0].take == 0 {
		t.Fatalf("the jobs that wait are %+v", s.todo)
	}
	must(t, other.Delete(key))
	// The client needs more blocks than it has, and looks there first.
	p := &s.blockPiles[0]
	spare := p.free
	p.free, p.cursor = nil, s.todo[0].take.ref().index()
	must(t, s.grab(&s.blocks, 0))
	must(t, s.work(true))
	p.free = append(p.free, spare...)
	has := map[pointer]bool{}
	for _, o := range p.free {
		if has[o.p] {
			t.Errorf("the client has block %v twice", o.p.ref())
		}
		has[o.p] = true
	}
	for _, v := range [][]byte{old, now} {
		must(t, s.Insert(v[:4], v))
	}
	for _, v := range [][]byte{old, now} {
		if got, err := s.Get(v[:4]); !bytes.Equal(got, v) {
			t.Errorf("%q is %q, %v", v[:4], got, err)
		}
	}
	must(t, other.Close())
	checkAfterClose(t, f, s, 2)
}

// TestReleaseFails: an INSERT into a full leaf first inserts an older separator,
// for which it releases the leaf. The release fails, and all behind it.
func TestReleaseFails(t *testing.T) {
	f := memPool(t, 1, tornParams)
	s, e := lossyOn(t, f)
	key := func(i int) []byte { return fmt.Appendf(nil, "key%02d", i) }
	n := 0
	for ; s.stats.Splits == 0; n++ {
		must(t, s.Insert(key(2*n), []byte("value")))
	}
	l, err := s.lockLeaf(key(2*n), opMend, 0)
	must(t, err)
	sep := separatorOf(1, bytes.Clone(l.lower), makePointer(l.r, 0))
	must(t, s.unlock())
	for ; ; n++ { // until the leaf is full
		l, _ := s.readLeaf(nodeOn(t, s, l.r), l.r)
		if l.free() < 0 {
			break
		}
		must(t, s.Insert(key(2*n), []byte("value")))
	}
	s.pending = append(s.pending, sep)
	down := false
	e.fate = func(b *rdma.Batch) fate {
		if down = down || b.Step() == stepRelease; down {
			return isLost
		}
		return lands
	}
	err = func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("it panics: %v", p)
			}
		}()
		return s.Insert(key(2*n), []byte("value"))
	}()
	wantError(t, err, rdma.ErrNodeDown)
	if !down {
		t.Error("no lock was to be released")
	}
	e.fate = allLand
	must(t, s.Insert(key(2*n), []byte("value")))
	checkAfterClose(t, f, s, n+1)
}

// TestAdoptFails: an INSERT into a full leaf first inserts an older separator. That takes effect,
// but its answer is lost, and it is settled at the second try. It does not count as the INSERT.
func TestAdoptFails(t *testing.T) {
	f := memPool(t, 1, tornParams)
	s, e := lossyOn(t, f)
	e.err = rdma.ErrTimeout
	e.fate = func(b *rdma.Batch) fate {
		if s.stats.Splits == 2 && b.Step() == stepLock { // of the second split's separator
			return isLost
		}
		return lands
	}
	key := func(n int) []byte { return fmt.Appendf(nil, "key%02d", n) }
	n := 0
	for ; len(s.pending) == 0; n++ {
		must(t, s.Insert(key(n), []byte("value")))
	}
	wrote, late := false, false
	e.fate = func(b *rdma.Batch) fate {
		switch {
		case b.Step() == stepWriteBack && hasLock(b, opAdopt) && !wrote:
			wrote = true
			return answerIsLost
		case b.Step() == stepSettle && !late:
			late = true
			return isLost
		}
		return lands
	}
	for ; !wrote && n < 50; n++ {
		must(t, s.Insert(key(n), []byte("value")))
	}
	if !wrote || !late {
		t.Errorf("the answer of the write-back was lost: %v, and that of the first try to settle it: %v", wrote, late)
	}
	checkAfterClose(t, f, s, n)
}

// leaving are local locks for which something happens before a worker next leaves its line.
type leaving struct {
	*LocalLocks
	before func() // nil: nothing
}

func (l *leaving) Leave(w *Waiter, word uint64) bool {
	if f := l.before; f != nil {
		l.before = nil
		f()
	}
	return l.LocalLocks.Leave(w, word)
}

// TestHandedOverInVain: a worker that is to get a lock within its process fails
// before it has made the lock its own. The lock is the next worker's of the
// process, or is released by one that leaves, or by the one that failed.
func TestHandedOverInVain(t *testing.T) {
	for _, c := range []struct {
		name string
		// err is what the worker meets; nil: it is fenced off.
		err error
		// then is done behind that, by the worker that handed the lock over, and by a third one.
		then func(from, third *Store, key []byte) error
		// late: it gets the lock when it gives up.
		late bool
	}{
		{"next", nil, func(_, third *Store, key []byte) error { return third.Update(key, []byte("third")) }, false},
		{"again", nil, func(from, _ *Store, key []byte) error { return from.Update(key, []byte("again")) }, false},
		{"leaves", nil, func(from, _ *Store, _ []byte) error { return from.Close() }, false},
		{"third leaves", nil, func(_, third *Store, _ []byte) error { return third.Close() }, false},
		{"timeout", rdma.ErrTimeout, func(_, _ *Store, _ []byte) error { return nil }, false},
		{"goes on", rdma.ErrNodeDown, func(_, _ *Store, _ []byte) error { return nil }, false},
		{"gives up", rdma.ErrTimeout, func(_, _ *Store, _ []byte) error { return nil }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := memPool(t, 1, small(1, 1000, 8))
			turns := &leaving{LocalLocks: NewLocalLocks(DefaultHands)}
			o := Options{Turns: turns}
			from, third, other := storeOn(t, f, o), storeOn(t, f, o), storeOn(t, f, Options{})
			ep, err := f.Open("fails")
			must(t, err)
			s, err := Open(ep, o)
			must(t, err)
			key := []byte("key")
			must(t, from.Insert(key, []byte("first")))
			from.span()
			_, err = from.lock(makeRef(0, 0), opMend, 0)
			must(t, err)
			e := lossyUnder(s)
			e.err = c.err
			e.asleep = func() {
				e.asleep = nil
				must(t, from.unlock())
				if c.err == nil {
					must(t, f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()}))
				}
			}
			if c.late {
				e.asleep, turns.before = nil, func() { must(t, from.unlock()) }
			}
			failed := c.late
			e.fate = func(b *rdma.Batch) fate {
				if c.err == nil || failed || b.Step() != stepLock {
					return lands
				}
				failed = true
				return isLost
			}
			err = s.Update(key, []byte("second"))
			got := e.asleep == nil && turns.before == nil
			if (err == nil) != (c.name == "goes on") || !got || from.stats.HandOvers > 0 {
				t.Errorf("it was to get a lock: %v; its UPDATE: %v", got, err)
			}
			if c.err == nil {
				own, err := f.Open("master")
				must(t, err)
				m, err := NewRecoverer(own)
				must(t, err)
				must(t, m.Recover(f.View(), ep.Client()))
				must(t, own.Close())
			}
			must(t, c.then(from, third, key))
			must(t, other.Update(key, []byte("other")))
			for _, s := range []*Store{from, third, other} {
				must(t, s.Close())
			}
			if c.err != nil {
				must(t, s.Close())
			}
			must(t, ep.Close())
			if checked(t, f, 1); len(turns.lines) > 0 {
				t.Errorf("%d locks are still in line", len(turns.lines))
			}
		})
	}
}

// TestHangingRelease: a worker that is handed a lock in vain releases it, and has no answer in
// time. It does not leave, nor release the lock again, before it knows that the release has landed.
func TestHangingRelease(t *testing.T) {
	f := memPool(t, 1, small(1, 1000, 8))
	turns := NewLocalLocks(DefaultHands)
	from, other := storeOn(t, f, Options{Turns: turns}), storeOn(t, f, Options{})
	s := storeOn(t, f, Options{Turns: turns})
	key := []byte("key")
	must(t, from.Insert(key, []byte("first")))
	from.span()
	_, err := from.lock(makeRef(0, 0), opMend, 0)
	must(t, err)
	e := lossyUnder(s)
	e.err = rdma.ErrTimeout
	e.asleep = func() {
		e.asleep = nil
		must(t, from.unlock())
	}
	failed, releases := false, 0
	e.fate = func(b *rdma.Batch) fate {
		switch {
		case b.Step() == stepLock && !failed:
			failed = true
			return isLost
		case b.Step() == stepRelease:
			if releases++; releases == 1 {
				return hangs
			}
		}
		return lands
	}
	wantError(t, s.Update(key, []byte("second")), rdma.ErrTimeout)
	wantError(t, s.Close(), client.ErrUncertain)
	if releases != 1 || e.hanging == nil {
		t.Fatalf("%d releases, and one that hangs: %v", releases, e.hanging != nil)
	}
	e.hanging.Op(0).Fail(rdma.ErrNodeDown)
	e.hanging.CompleteAll()
	must(t, s.Close())
	must(t, other.Update(key, []byte("other")))
}

// TestSeparatorFails: an INSERT has split a leaf, and cannot insert the separator.
// It is not run again: the key that it would find is its own.
func TestSeparatorFails(t *testing.T) {
	f := memPool(t, 1, tornParams)
	s, e := lossyOn(t, f)
	key := func(i int) []byte { return fmt.Appendf(nil, "key%02d", i) }
	n, wrote, late := 0, false, 0
	e.fate = func(b *rdma.Batch) fate {
		switch {
		case s.stats.Splits < 2 || late == 2:
			return lands
		case b.Step() == stepWriteBack:
			wrote = true
		case wrote && b.Step() == stepLock:
			e.err = rdma.ErrStale
			return isLost
		case wrote && b.Step() == stepSettle:
			late++
			e.err = rdma.ErrTimeout
			return isLost
		}
		return lands
	}
	var err error
	for ; err == nil && late == 0; n++ {
		err = s.Insert(key(n), []byte("value"))
	}
	if late != 2 || err != nil && !errors.Is(err, client.ErrUncertain) {
		t.Errorf("%d settlings failed, and the INSERT says: %v", late, err)
	}
	must(t, s.Update(key(n-1), []byte("other")))
	checkAfterClose(t, f, s, n)
}
