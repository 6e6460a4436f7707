package original

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// sharedTurns are local locks of workers that run at the same time.
type sharedTurns struct {
	sync.Mutex
	*LocalLocks
}

func (t *sharedTurns) Join(w *Waiter, lock uint64) {
	t.Lock()
	defer t.Unlock()
	t.LocalLocks.Join(w, lock)
}

func (t *sharedTurns) Ahead(w *Waiter) (int, uint64) {
	t.Lock()
	defer t.Unlock()
	return t.LocalLocks.Ahead(w)
}

func (t *sharedTurns) HandsOver(w *Waiter) bool {
	t.Lock()
	defer t.Unlock()
	return t.LocalLocks.HandsOver(w)
}

func (t *sharedTurns) Leave(w *Waiter, word uint64) bool {
	t.Lock()
	defer t.Unlock()
	return t.LocalLocks.Leave(w, word)
}

func (t *sharedTurns) Forget(lock, word uint64) {
	t.Lock()
	defer t.Unlock()
	t.LocalLocks.Forget(lock, word)
}

func (t *sharedTurns) Unclaimed() (lock, word uint64) {
	t.Lock()
	defer t.Unlock()
	return t.LocalLocks.Unclaimed()
}

// yielding is an endpoint that lets other goroutines run behind each batch.
// Otherwise workers with verbs that take no time would not meet.
type yielding struct{ rdma.Endpoint }

func (e yielding) Post(b *rdma.Batch) error {
	err := e.Endpoint.Post(b)
	runtime.Gosched()
	return err
}

// TestHandOver: workers of two processes meet on few keys, those of each behind local locks; each
// lock that is handed over saves its release and its CASes, and all answers are linearizable.
func TestHandOver(t *testing.T) {
	const workers, ops, keys = 8, 600, 3
	f := memPool(t, 2, small(2, 1000, 100))
	processes := []Turns{
		&sharedTurns{LocalLocks: NewLocalLocks(DefaultHands)}, &sharedTurns{LocalLocks: NewLocalLocks(DefaultHands)},
	}
	recorders := make([]*check.Recorder, workers)
	stores := make([]*Store, workers)
	var all sync.WaitGroup
	for w := range workers {
		ep, err := f.Open("worker")
		must(t, err)
		s, err := Open(yielding{ep}, Options{Turns: processes[w%2]})
		must(t, err)
		stores[w], recorders[w] = s, check.NewRecorder(w, s, s.ep.Now)
		rng := rand.New(rand.NewPCG(1, uint64(w)))
		all.Go(func() {
			for n := range ops {
				key := fmt.Appendf(nil, "key%d", rng.IntN(keys))
				kind := []check.Kind{check.Insert, check.Update, check.Update, check.Update, check.Delete,
					check.Get}[rng.IntN(6)]
				_ = kind.Do(recorders[w], key, check.MakeValue(nil, w, n+1, 8+rng.IntN(2)*20))
			}
		})
	}
	all.Wait()
	var h check.History
	var handed, failed uint64
	for w, r := range recorders {
		h = append(h, r.History()...)
		handed += stores[w].stats.HandOvers
	}
	for _, op := range h {
		if op.Answer == check.Uncertain || op.Answer == check.Failed {
			failed++
		}
	}
	if err := check.Linearizable(h, check.Options{}); err != nil || failed > 0 || handed < workers*ops/100 {
		t.Errorf("%d of %d locks handed over, %d operations failed: %v", handed, len(h), failed, err)
	}
	for _, s := range stores {
		must(t, errors.Join(s.Close(), s.ep.Close()))
	}
	t.Logf("%d operations, %d locks handed over", len(h), handed)
}

// TestLocalLocks: workers get a lock in the order in which they came, a lock is handed over so
// often in a row and no more, and one that gives up is left out.
func TestLocalLocks(t *testing.T) {
	l := NewLocalLocks(2)
	w := make([]Waiter, 5)
	for i := range w {
		l.Join(&w[i], 7)
	}
	var other Waiter
	l.Join(&other, 8)
	ahead := func(i, want int, word uint64) {
		t.Helper()
		if n, got := l.Ahead(&w[i]); n != want || got != word {
			t.Errorf("worker %d has %d ahead and word %d, want %d and %d", i, n, got, want, word)
		}
	}
	leave := func(i int, word uint64, want bool) {
		t.Helper()
		if got := l.Leave(&w[i], word); got != want {
			t.Errorf("worker %d leaves with word %d: %v", i, word, got)
		}
	}
	hands := func(i int, want bool) {
		t.Helper()
		if got := l.HandsOver(&w[i]); got != want {
			t.Errorf("worker %d is to hand over: %v", i, got)
		}
	}
	ahead(0, 0, 0)
	ahead(4, 4, 0)
	leave(2, 0, false) // gives up
	ahead(4, 3, 0)
	hands(0, true)
	leave(0, 5, true)
	ahead(1, 0, 5)
	l.Forget(7, 5)
	ahead(1, 0, 0)
	hands(1, true)
	leave(1, 6, true)
	ahead(3, 0, 6)
	hands(3, false) // twice in a row
	leave(3, 0, false)
	ahead(4, 0, 6) // which 3 has not taken
	unclaimed := func(word uint64) {
		t.Helper()
		if lock, got := l.Unclaimed(); got != word || lock != word/6*7 {
			t.Errorf("lock %d is unclaimed, with word %d, want %d", lock, got, word)
		}
	}
	unclaimed(0)
	leave(4, 0, false)
	unclaimed(6)
	l.Join(&w[4], 7)
	ahead(4, 0, 6)
	unclaimed(0)
	l.Forget(7, 6)
	hands(4, false) // none waits
	leave(4, 9, false)
	unclaimed(0)
	if n, _ := l.Ahead(&other); n != 0 || len(l.lines) != 1 {
		t.Errorf("another lock has %d ahead, and there are %d lines", n, len(l.lines))
	}
}

// far is an endpoint of which a trip takes some time.
type far struct{ rdma.Endpoint }

func (e far) Wait(b *rdma.Batch, n int, within time.Duration) error {
	e.Sleep(2 * time.Millisecond)
	return e.Endpoint.Wait(b, n, within)
}

// TestLongTurn: a worker of which trips take long, as over TCP, looks seldom for its turn. What it
// looks for costs the processor that the worker ahead needs.
func TestLongTurn(t *testing.T) {
	const timeout = 100 * time.Millisecond
	f := memPool(t, 1, small(1, 1000, 8))
	o := Options{Turns: NewLocalLocks(DefaultHands), Timeout: timeout}
	ahead := storeOn(t, f, o)
	ep, err := f.Open("far")
	must(t, err)
	s, err := Open(far{ep}, o)
	must(t, err)
	must(t, ahead.Insert([]byte("key"), []byte("first")))
	_, err = s.Get([]byte("key"))
	must(t, err)
	ahead.span()
	_, err = ahead.lock(makeRef(0, 0), opMend, 0)
	must(t, err)
	wantError(t, s.Update([]byte("key"), []byte("second")), rdma.ErrTimeout)
	if n, most := s.stats.Turns, uint64(timeout/lastPause)+20; n > most {
		t.Errorf("a worker looked %d times for its turn, want at most %d", n, most)
	}
	must(t, ahead.unlock())
	must(t, s.Close())
	must(t, ep.Close())
}

// TestBlocked: a client that dies with a lock blocks its leaf. The error of an
// operation that waits for it names the client and the command that helps.
// Operations on other leaves go on, and GETs of this one, too. When the client is
// recovered all go on.
func TestBlocked(t *testing.T) {
	p := small(1, 1000, 100)
	p.Locks = 4096
	f := memPool(t, 1, p)
	s := storeOn(t, f, Options{Timeout: 100 * time.Millisecond})
	for i := range 100 {
		must(t, s.Insert(fmt.Appendf(nil, "key%02d", i), []byte("before")))
	}
	ep, err := f.Open("victim")
	must(t, err)
	dead, err := Open(ep, Options{})
	must(t, err)
	_, err = dead.lockLeaf([]byte("key50"), opUpdate, slotInline+5)
	must(t, err)
	must(t, f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()}))

	began := s.ep.Now()
	err = s.Update([]byte("key50"), []byte("after"))
	wantError(t, err, rdma.ErrTimeout)
	wantText(t, err, fmt.Sprintf("client %d has the lock", ep.Client()), "farkv recover")
	if took := s.ep.Now() - began; took < 40*time.Millisecond {
		t.Errorf("it waited for %v", took)
	}
	if v, err := s.Get([]byte("key50")); err != nil || string(v) != "before" {
		t.Errorf("a GET behind a dead client's lock: %q, %v", v, err)
	}
	// Leaves may share a lock, by their places, which are random.
	blocked, err := s.find([]byte("key50"), 0)
	must(t, err)
	others := 0
	for i := range 100 {
		key := fmt.Appendf(nil, "key%02d", i)
		r, err := s.find(key, 0)
		must(t, err)
		if s.lockAt(r) != s.lockAt(blocked) {
			must(t, s.Update(key, []byte("after")))
			others++
		}
	}
	if others < 50 {
		t.Errorf("only %d keys lie under other locks", others)
	}

	own, err := f.Open("master")
	must(t, err)
	m, err := NewRecoverer(own)
	must(t, err)
	must(t, m.Recover(f.View(), ep.Client()))
	must(t, own.Close())
	must(t, s.Update([]byte("key50"), []byte("after")))
	checkAfterClose(t, f, s, 100)
}
