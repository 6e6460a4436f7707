package rowan_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	logs "github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check"
)

// soaked is a cluster under load in real time.
type soaked struct {
	*real
	until time.Time
	ops   atomic.Int64
	full  atomic.Int64 // writes that were refused
	worst atomic.Int64 // the longest operation
}

// worker is one of its clients. It knows what its own keys have.
type worker struct {
	*soaked
	number int
	rng    *rand.Rand
	store  client.Store
	there  map[int]int // by number of a key, the size of its value
	order  []int       // of these
	next   int
}

func (w *worker) name(i int) []byte { return fmt.Appendf(nil, "worker-%d-key-%d", w.number, i) }

func (w *worker) value(i, size int) []byte {
	return check.MakeValue(nil, w.number, i+1, max(size, 8))[:size]
}

// timed does an operation, and notes how long it took.
func (s *soaked) timed(f func() error) error {
	begin := time.Now()
	err := f()
	took := int64(time.Since(begin))
	for worst := s.worst.Load(); took > worst && !s.worst.CompareAndSwap(worst, took); worst = s.worst.Load() {
	}
	s.ops.Add(1)
	if errors.Is(err, client.ErrFull) {
		s.full.Add(1)
	}
	return err
}

// insert adds the worker's next key.
func (w *worker) insert(size int) error {
	i := w.next
	err := w.timed(func() error { return w.store.Insert(w.name(i), w.value(i, size)) })
	if err == nil {
		w.there[i] = size
		w.order = append(w.order, i)
		w.next++
	}
	return err
}

// remove deletes the first key that there is.
func (w *worker) remove() error {
	i := w.order[0]
	err := w.timed(func() error { return w.store.Delete(w.name(i)) })
	if err == nil {
		delete(w.there, i)
		w.order = w.order[1:]
	}
	return err
}

// get reads one of the keys that there are, or was.
func (w *worker) get() error {
	i := w.rng.IntN(w.next + 1)
	size, there := w.there[i]
	var got []byte
	err := w.timed(func() (err error) { got, err = w.store.Get(w.name(i)); return err })
	switch {
	case errors.Is(err, client.ErrNotFound) && !there:
		return nil
	case err == nil && there && bytes.Equal(got, w.value(i, size)):
		return nil
	}
	return fmt.Errorf("get of key %d, which is there: %t: %w", i, there, err)
}

// size is that of some value: most are small, some as long as can be.
func (w *worker) size() int {
	most := w.o.PairBytes - len(w.name(w.next))
	if w.rng.IntN(10) == 0 {
		return most - w.rng.IntN(3)
	}
	return w.rng.IntN(min(most, 300))
}

// clear deletes all keys of the worker. Those of a full pool can be, sooner or later.
func (w *worker) clear() error {
	deleted := time.Now()
	for len(w.order) > 0 {
		switch err := w.remove(); {
		case err == nil:
			deleted = time.Now()
		case !errors.Is(err, client.ErrFull) || time.Since(deleted) > patience:
			for n, srv := range w.running {
				w.t.Logf("server %d: %+v", n, srv.Stats())
			}
			return fmt.Errorf("delete all, of which %d are left, %v behind the last: %w",
				len(w.order), time.Since(deleted), err)
		}
	}
	return nil
}

// churn inserts and deletes keys, always others.
func (w *worker) churn() error {
	for time.Now().Before(w.until) {
		err := w.insert(w.size())
		if err == nil {
			err = w.get()
		}
		if len(w.order) > 50 || errors.Is(err, client.ErrFull) && len(w.order) > 0 {
			err = w.remove()
		}
		if err != nil && !errors.Is(err, client.ErrFull) {
			return fmt.Errorf("churn: %w", err)
		}
	}
	return w.clear()
}

// hot writes and reads a few keys that others do, too.
func (w *worker) hot() error {
	for n := 1; time.Now().Before(w.until); n++ {
		key := fmt.Appendf(nil, "hot-%d", w.rng.IntN(4))
		value := check.MakeValue(nil, w.number, n, 8+w.size())
		err := w.timed(func() error {
			switch w.rng.IntN(8) {
			case 0:
				return w.store.Insert(key, value)
			case 1:
				return w.store.Delete(key)
			case 2, 3, 4:
				return w.store.Update(key, value)
			}
			got, err := w.store.Get(key)
			if err == nil && check.Identify(got)>>63 != 0 {
				return fmt.Errorf("%q has what was never written", key)
			}
			return err
		})
		if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) &&
			!errors.Is(err, client.ErrFull) {
			return fmt.Errorf("hot keys: %w", err)
		}
	}
	return nil
}

// fill fills the pool with values of at least some bytes and up to 300 more, and returns with how
// many pairs.
func (w *worker) fill(least int) (pairs int, err error) {
	for refused := 0; refused < 10; {
		switch err := w.insert(least + w.rng.IntN(300)); {
		case err == nil:
			pairs++
		case errors.Is(err, client.ErrFull):
			refused++
		default:
			return pairs, fmt.Errorf("fill: %w", err)
		}
	}
	return pairs, nil
}

// fillAndClear fills the pool, and empties it, again and again.
func (w *worker) fillAndClear() error {
	for time.Now().Before(w.until) {
		if _, err := w.fill(0); err != nil {
			return err
		}
		if err := w.clear(); err != nil {
			return err
		}
	}
	return nil
}

// comeAndGo opens a client, uses it, and closes it, again and again.
func (w *worker) comeAndGo() error {
	for time.Now().Before(w.until) {
		ep, err := w.place.clients.Open("passer-by")
		if err != nil {
			return err
		}
		if w.store, err = w.open(ep, patience); err != nil {
			return err
		}
		for range 10 {
			if err := w.insert(w.size()); err != nil && !errors.Is(err, client.ErrFull) {
				return err
			}
			if err := w.get(); err != nil {
				return err
			}
		}
		if err := w.clear(); err != nil {
			return err
		}
		if err := w.store.Close(); err != nil {
			return err
		}
		if err := ep.Close(); err != nil {
			return err
		}
	}
	return nil
}

// TestSoak: under keys that come and go, hot ones, pairs of all sizes, clients that come and go,
// and a pool that is full most of the time, nothing stops, nothing is lost, and nothing is left in
// the end.
func TestSoak(t *testing.T) {
	length := time.Second
	if os.Getenv("FARKV_LONG") == "1" {
		length = 3 * time.Minute
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		t.Parallel()
		soak(t, k, length)
	})
}

// crowded are servers with few segments for many logs.
func crowded(k kv.Kind) kv.Options {
	return kv.Options{
		Kind: k, Nodes: servers, Shards: 12, Workers: 2, Cleaners: 2, PairBytes: 4000, Keys: 5000,
		Log: logs.Options{
			Ring: 2, Segments: 48, SegmentBytes: 16 << 10, Ahead: 18, Reserve: 6, Credit: 10 << 10, Secret: 0x5eed,
		},
		FullAfter: 50 * time.Millisecond,
	}
}

func soak(t *testing.T, k kv.Kind, length time.Duration) {
	o := crowded(k)
	s := &soaked{real: newReal(t, o, inMem), until: time.Now().Add(length)}
	newWorker := func(number int) (*worker, func()) {
		store, _, end := s.client()
		return &worker{
			soaked: s, number: number, rng: rand.New(rand.NewPCG(uint64(number),
				1)), store: store, there: map[int]int{},
		}, end
	}
	w, end := newWorker(0)
	first, err := w.fill(0)
	if err := errors.Join(err, w.clear()); err != nil {
		t.Fatal(err)
	}
	before := heap()

	var group sync.WaitGroup
	for i, run := range []func(*worker) error{
		(*worker).churn, (*worker).churn, (*worker).hot, (*worker).hot, (*worker).hot, (*worker).fillAndClear,
		(*worker).comeAndGo,
	} {
		w, end := newWorker(i + 1)
		group.Go(func() {
			defer end()
			if err := run(w); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	t.Logf("%d operations, %d of them refused, the longest of %v", s.ops.Load(), s.full.Load(),
		time.Duration(s.worst.Load()))
	for i := range 4 {
		if err := w.store.Delete(fmt.Appendf(nil, "hot-%d", i)); err != nil && !errors.Is(err, client.ErrNotFound) {
			t.Error(err)
		}
	}
	again, err := w.fill(0)
	tombs := 0 // of the server with the most; two take as much as a pair
	for _, srv := range s.running {
		tombs = max(tombs, srv.Stats().Tombs)
	}
	if err := errors.Join(err, w.clear()); err != nil {
		t.Fatal(err)
	}
	more := (heap() - before) >> 10
	t.Logf("the heap has %d KiB more", more)
	if more > 8<<10 { // indexes, tables and buffers have their bounds, most of which the first fill came to
		t.Errorf("the heap has %d KiB more, of pools of %d", more, o.Log.Segments*o.Log.SegmentBytes*servers>>10)
	}
	if again+tombs/2 < first*4/5 {
		t.Errorf("the pool is full with %d pairs and %d tombstones, and was with %d pairs", again, tombs, first)
	}
	end()
	room := o.Log.Segments * o.Log.SegmentBytes / rdma.Stride
	for n, srv := range s.running {
		stats := srv.Stats()
		t.Logf("server %d: %+v", n, stats)
		if most := room/32 + room/4; stats.Items > most { // see TestChurn; some DELs are not digested yet
			t.Errorf("server %d has %d items, and no keys: want at most %d", n, stats.Items, most)
		}
	}
}

// heap returns how much of it is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
