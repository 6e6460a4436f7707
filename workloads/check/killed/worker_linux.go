package killed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/workloads/check"
)

// worker is one of a process's. It writes keys that are its own, and those that all workers share.
type worker struct {
	*Test
	ledger *ledger
	gauges *gauges // of the process; nil: there are none
	number int
	own    []atomic.Uint64 // of the ledger
	rng    *rand.Rand
	store  client.Store
	trips  func() uint64 // of the worker so far
	buf    []byte
}

func keyOf(worker, key int) []byte { return fmt.Appendf(nil, "%03d-%03d", worker, key) }

func sharedKey(key int) []byte { return fmt.Appendf(nil, "shared-%d", key) }

// work is what a worker does until its process is killed.
func (w *worker) work() error {
	for k := range w.Keys {
		found, ok := w.ledger.key(w.number, k).inherit()
		if !ok {
			return fmt.Errorf("key %d of worker %d: more than %d processes in a row died while they wrote it", k,
				w.number, mostDoubts)
		}
		if found {
			w.own[foundAt].Add(1)
			if err := w.write(k); err != nil {
				return err
			}
		}
	}
	scanner, _ := w.store.(client.Scanner)
	for {
		var err error
		switch n := w.rng.IntN(16); {
		case n < 3 && w.Shared > 0:
			err = w.share(w.rng.IntN(w.Shared))
		case n < 7:
			_, err = w.look(w.rng.IntN(w.Keys))
		case n == 7 && scanner != nil:
			err = w.scan(scanner)
		default:
			err = w.write(w.rng.IntN(w.Keys))
		}
		if err != nil {
			return fmt.Errorf("worker %d: %w", w.number, err)
		}
		if w.Pause > 0 {
			time.Sleep(time.Duration(w.rng.Int64N(int64(w.Pause))))
		}
	}
}

// timed does an operation, and has it judged if it took longer than it may in a process that no
// processor keeps waiting.
func (w *worker) timed(what what, f func() error) error {
	began, trips := realtime.Now(), w.trips()
	w.own[whatAt].Store(uint64(what))
	w.own[beganAt].Store(uint64(began))
	err := f()
	ended := realtime.Now()
	if w.Lease > 0 && ended-began > w.Lease && w.gauges != nil {
		w.gauges.slow <- slowOp{w.number, what, w.trips() - trips, began, ended}
	}
	w.own[beganAt].Store(0)
	w.own[opsAt].Add(1)
	return err
}

// value makes a value that no other write has.
func (w *worker) value() (check.Value, []byte) {
	size := check.MinValue + w.rng.IntN(w.MaxValue-check.MinValue+1)
	if w.rng.IntN(4) > 0 {
		size = check.MinValue + w.rng.IntN(min(w.MaxValue-check.MinValue, 64)+1)
	}
	w.buf = check.MakeValue(w.buf[:0], w.number, int(w.own[nextAt].Add(1)), size)
	return check.Identify(w.buf), w.buf
}

// read returns which value a key has; 0: it is not there.
func (w *worker) read(what what, key []byte) (is check.Value, err error) {
	err = w.timed(what, func() error {
		v, err := w.store.Get(key)
		if err == nil {
			is, err = w.written(key, v)
		}
		if errors.Is(err, client.ErrNotFound) {
			err = nil
		}
		return err
	})
	return is, err
}

// written returns which value bytes are, or an error where no worker wrote them.
func (w *worker) written(key, value []byte) (check.Value, error) {
	is := check.Identify(value)
	if is>>63 != 0 {
		return 0, fmt.Errorf("key %s has a value that was never written: %.32x", key, value)
	}
	return is, nil
}

// look reads a key of the worker's own, and compares it with what it may be.
func (w *worker) look(key int) (check.Value, error) {
	is, err := w.read(get, keyOf(w.number, key))
	if err == nil {
		err = w.judge(key, is)
	}
	return is, err
}

func (w *worker) judge(key int, is check.Value) error {
	if e := w.ledger.key(w.number, key); !e.may(is) {
		return fmt.Errorf("key %d of worker %d is %v, and may be one of %v", key, w.number, is, e.all())
	}
	return nil
}

// write writes a key of the worker's own. Where it was in doubt what the key is, an earlier write
// may yet be finished by another client: what the worker does then may be refused, and after that
// nothing else is.
func (w *worker) write(key int) error {
	e := w.ledger.key(w.number, key)
	now, known := e.last(), e.known()
	if !known {
		var err error
		if now, err = w.look(key); err != nil {
			return err
		}
	}
	next, value := w.value()
	what, f := update, func() error { return w.store.Update(keyOf(w.number, key), value) }
	switch {
	case now == 0:
		what, f = insert, func() error { return w.store.Insert(keyOf(w.number, key), value) }
	case w.rng.IntN(4) == 0:
		next = 0
		what, f = remove, func() error { return w.store.Delete(keyOf(w.number, key)) }
	}
	e.begin(next)
	err := w.timed(what, f)
	switch {
	case err == nil:
		e.acked()
		w.own[ackedAt].Add(1)
	case errors.Is(err, client.ErrFull), !known &&
		(errors.Is(err, client.ErrExists) || errors.Is(err, client.ErrNotFound)):
		e.refused()
	default:
		return fmt.Errorf("write key %d, which is %v: %w", key, now, err)
	}
	return nil
}

// share does something with a key that others write, too.
func (w *worker) share(key int) error {
	_, value := w.value()
	name := sharedKey(key)
	var err error
	switch w.rng.IntN(8) {
	case 0:
		err = w.timed(shared|insert, func() error { return w.store.Insert(name, value) })
	case 1:
		err = w.timed(shared|remove, func() error { return w.store.Delete(name) })
	case 2, 3, 4:
		err = w.timed(shared|update, func() error { return w.store.Update(name, value) })
	default:
		_, err = w.read(shared|get, name)
	}
	if errors.Is(err, client.ErrExists) || errors.Is(err, client.ErrNotFound) || errors.Is(err, client.ErrFull) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("shared key %d: %w", key, err)
	}
	return nil
}

// scan reads the worker's own keys in order. None is left out that is known to be there.
func (w *worker) scan(s client.Scanner) error {
	seen, last := map[string]check.Value{}, ""
	err := w.timed(scan, func() (err error) {
		n := 0
		scanned := s.Scan(keyOf(w.number, 0), w.Keys, func(key, value []byte) bool {
			var is check.Value
			if is, err = w.written(key, value); string(key) <= last {
				err = fmt.Errorf("key %s comes behind %s", key, last)
			}
			n, last, seen[string(key)] = n+1, string(key), is
			return err == nil
		})
		if n < w.Keys {
			last = "~" // there are no more keys
		}
		return errors.Join(scanned, err)
	})
	if err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	for k := range w.Keys {
		if name := string(keyOf(w.number, k)); name <= last {
			if err := w.judge(k, seen[name]); err != nil {
				return fmt.Errorf("scan up to %s: %w", last, err)
			}
		}
	}
	return nil
}
