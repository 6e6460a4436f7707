package original

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// lossy is an endpoint on which batches fail as of a dead node: they are lost, or they land and
// their answers are lost.
type lossy struct {
	rdma.Endpoint
	// fate says what becomes of a batch.
	fate func(b *rdma.Batch) fate
	// failed has the batches that have failed, until they are used again.
	failed map[*rdma.Batch]bool
}

type fate int

const (
	lands fate = iota
	isLost
	answerIsLost
)

func allLand(*rdma.Batch) fate { return lands }

func (e *lossy) Post(b *rdma.Batch) error {
	f := e.fate(b)
	if e.failed[b] = f != lands; f == isLost {
		return nil
	}
	return e.Endpoint.Post(b)
}

func (e *lossy) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if e.failed[b] {
		return rdma.ErrNodeDown
	}
	return e.Endpoint.Wait(b, n, within)
}

// lossyOn is storeOn with an endpoint on which no batch fails yet, or when the store is closed.
func lossyOn(t *testing.T, f rdma.Fabric) (*Store, *lossy) {
	t.Helper()
	s := storeOn(t, f, Options{})
	e := &lossy{s.ep, allLand, map[*rdma.Batch]bool{}}
	s.ep = e
	t.Cleanup(func() { e.fate = allLand })
	return s, e
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
