package soak

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check"
)

// worker knows what its own keys are.
type worker struct {
	*load
	number int
	rng    *rand.Rand
	store  client.Store
	end    func() error
	there  map[int]int // by number of a key, the number of its value
	own    []int       // their numbers, in no order
	next   int         // the number of the next key
	writes int
	buf    []byte
	times  [kinds]workloads.Histogram
	full   [kinds]uint64
	fullAt int64
}

const hotKeys = 4

func (w *worker) key(i int) []byte { return fmt.Appendf(nil, "w%03d-%07d", w.number, i) }

func hotKey(i int) []byte { return fmt.Appendf(nil, "hot-key-%04d", i) }

// open opens the worker anew. If it fails there is nothing to end.
func (w *worker) open() (err error) {
	if w.store, w.end, err = w.Open(fmt.Sprint("soak-", w.number)); err != nil {
		w.end = func() error { return nil }
	}
	return err
}

// size draws that of a value.
func (w *worker) size(n int) int {
	return check.MinValue + int(rand.New(rand.NewPCG(w.Seed^uint64(w.number)<<32, uint64(n))).IntN(
		w.Largest-check.MinValue+1))
}

// value makes the n-th value of the worker.
func (w *worker) value(n int) []byte {
	w.buf = check.MakeValue(w.buf[:0], w.number, n, w.size(n))
	return w.buf
}

// bucketShare divides what has to be live before one bucket of SWARM's directory may be full, which
// has 16 entries and does not grow. Where keys come and go for long, one is full now and then with
// few pairs. By Poisson's distribution each set of 660 keys, half of what a pool for 500 records
// takes of one worker, fills one of its 136 buckets with a probability of 0.2 %, and a load of ten
// minutes has some 20,000 sets of keys. With a quarter that is 0.00001 %.
const bucketShare = 2

// timed does an operation.
func (w *worker) timed(kind int, f func() error) error {
	w.live.begin(w.number)
	began := time.Now()
	err := f()
	took := time.Since(began)
	if w.times[kind].Record(took); took > w.Longest {
		return errors.Join(err, fmt.Errorf("%s took %v, longer than %v", kindNames[kind], took, w.Longest))
	}
	if mayBeFull(err) {
		w.full[kind]++
		least, live := int64(float64(w.alone)*w.Room), w.live.since(w.number)
		if errors.Is(err, client.ErrBucketFull) {
			least /= bucketShare
		} else {
			w.fullAt = lower(w.fullAt, live)
		}
		if live < least {
			return fmt.Errorf("%s finds the pool full, in which %d bytes are live, fewer than %d: %v", kindNames[kind],
				live, least, err)
		}
	}
	return err
}

// fresh moves on to a key that is not there; false: all are.
func (w *worker) fresh() bool {
	if w.Keys == 0 || w.number == 0 {
		return true
	}
	for range w.Keys {
		if _, there := w.there[w.next%w.Keys]; !there {
			w.next %= w.Keys
			return true
		}
		w.next++
	}
	return false
}

// insert adds the worker's next key, unless all of its keys are there.
func (w *worker) insert() error {
	if !w.fresh() {
		return nil
	}
	w.writes++
	v := w.value(w.writes)
	w.live.add(len(v))
	err := w.timed(insert, func() error { return w.store.Insert(w.key(w.next), v) })
	if err != nil {
		w.live.add(-len(v))
		return err
	}
	w.there[w.next] = w.writes
	w.own = append(w.own, w.next)
	w.next++
	return nil
}

// update replaces the value of a key.
func (w *worker) update() error {
	i := w.own[w.rng.IntN(len(w.own))]
	w.writes++
	v := w.value(w.writes)
	w.live.add(len(v))
	err := w.timed(update, func() error { return w.store.Update(w.key(i), v) })
	if err != nil {
		w.live.add(-len(v))
		return err
	}
	w.live.add(-w.size(w.there[i]))
	w.there[i] = w.writes
	return nil
}

// remove deletes one of the keys that there are. It is any one: of pairs that are deleted in the
// order in which they came, a log's segments are without live entries one after the other, and
// nothing has to be collected.
func (w *worker) remove() error {
	at := w.rng.IntN(len(w.own))
	i := w.own[at]
	err := w.timed(remove, func() error { return w.store.Delete(w.key(i)) })
	switch {
	case err == nil:
		w.live.add(-w.size(w.there[i]))
		delete(w.there, i)
		w.own[at] = w.own[len(w.own)-1]
		w.own = w.own[:len(w.own)-1]
	case mayBeFull(err) && !w.DeletesNeedRoom:
		return fmt.Errorf("a DELETE finds the pool full: %v", err)
	}
	return err
}

// get reads one of the keys that there are, or were, or will be.
func (w *worker) get() error {
	i := w.rng.IntN(w.next + 1)
	n, there := w.there[i]
	var got []byte
	err := w.timed(get, func() (err error) { got, err = w.store.Get(w.key(i)); return err })
	switch {
	case errors.Is(err, client.ErrNotFound) && !there:
		return nil
	case err == nil && there && bytes.Equal(got, w.value(n)):
		return nil
	}
	return fmt.Errorf("get key %d, which is there: %t: %d bytes, %w", i, there, len(got), err)
}

// mostScanned bounds a scan.
const mostScanned = 50

// scan reads the worker's first keys in order, if the store can.
func (w *worker) scan() error {
	s, ok := w.store.(client.Scanner)
	if !ok || len(w.own) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(w.own))
	want, n := sorted[:min(len(sorted), mostScanned)], 0
	var wrong error
	err := w.timed(scan, func() error {
		return s.Scan(w.key(want[0]), len(want), func(key, value []byte) bool {
			if n == len(want) || !bytes.Equal(key, w.key(want[n])) || !bytes.Equal(value, w.value(w.there[want[n]])) {
				wrong = fmt.Errorf("pair %d is of %q", n, key)
				return false
			}
			n++
			return true
		})
	})
	if err == nil && wrong == nil && n < len(want) {
		wrong = fmt.Errorf("%d pairs of %d", n, len(want))
	}
	if err = errors.Join(err, wrong); err != nil {
		return fmt.Errorf("scan from key %d on: %w", want[0], err)
	}
	return nil
}

// stalls is for how long a DELETE that needs room may find none.
const stalls = 5 * time.Second

// clear deletes all keys of the worker.
func (w *worker) clear() error {
	deleted := time.Now()
	for len(w.own) > 0 {
		switch err := w.remove(); {
		case err == nil:
			deleted = time.Now()
		case !mayBeFull(err) || time.Since(deleted) > stalls:
			return fmt.Errorf("delete all, of which %d are left: %w", len(w.own), err)
		}
	}
	return nil
}

// mostKept is how many keys a worker that churns has at a time.
const mostKept = 25

// churn inserts and deletes keys, always others, and replaces the values of some.
func (w *worker) churn() error {
	for !w.over() {
		err := w.insert()
		if err == nil {
			err = w.get()
		}
		if err == nil {
			err = w.update()
		}
		if err == nil && w.rng.IntN(8) == 0 {
			err = w.scan()
		}
		if len(w.own) > mostKept || mayBeFull(err) && len(w.own) > 0 {
			err = w.remove()
		}
		if err != nil && !mayBeFull(err) {
			return err
		}
	}
	return w.clear()
}

// hot writes and reads a few keys that others do, too.
func (w *worker) hot() error {
	for !w.over() {
		key := hotKey(w.rng.IntN(hotKeys))
		w.writes++
		v := w.value(w.writes)
		var err error
		switch w.rng.IntN(8) {
		case 0:
			err = w.timed(insert, func() error { return w.store.Insert(key, v) })
		case 1:
			err = w.timed(remove, func() error { return w.store.Delete(key) })
		case 2, 3, 4:
			err = w.timed(update, func() error { return w.store.Update(key, v) })
		default:
			err = w.timed(get, func() error {
				got, err := w.store.Get(key)
				if err == nil && check.Identify(got)>>63 != 0 {
					err = fmt.Errorf("%q has what was never written", key)
				}
				return err
			})
		}
		if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) && !mayBeFull(err) {
			return err
		}
	}
	return nil
}

// refusals is how many INSERTs in a row fail before the pool counts as full.
const refusals = 10

// fill inserts until the pool is full, or the time is over.
func (w *worker) fill() error {
	for refused := 0; refused < refusals && w.fresh() && !w.over(); {
		switch err := w.insert(); {
		case err == nil:
			refused = 0
		case mayBeFull(err):
			refused++
		default:
			return err
		}
	}
	return nil
}

// fillAndClear fills the pool, reads some, and empties it, again and again.
func (w *worker) fillAndClear() error {
	for !w.over() {
		if err := w.fill(); err != nil {
			return err
		}
		for range 100 {
			if err := w.get(); err != nil {
				return err
			}
		}
		if err := w.clear(); err != nil {
			return err
		}
	}
	return nil
}

// comeAndGo opens a worker, uses it, and closes it, again and again.
func (w *worker) comeAndGo() error {
	for !w.over() {
		for range 10 {
			if err := w.insert(); err != nil && !mayBeFull(err) {
				return err
			}
			if err := w.get(); err != nil {
				return err
			}
		}
		if err := w.clear(); err != nil {
			return err
		}
		if err := w.end(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		if err := w.open(); err != nil {
			return fmt.Errorf("open again: %w", err)
		}
	}
	return nil
}
