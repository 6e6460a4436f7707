package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// reading is an object that Each reads.
type reading struct {
	seen  Meta
	known bool // seen is what is READ next; else its metadata is
	done  bool
	torn  int
	meta  *rdma.Op
	data  *rdma.Op // nil: it has none
}

// readable reports whether an object is, by itself, what its pointer says now: while a transaction
// that keeps no log has the lock, it changes nothing but this pointer, and is committed by that.
// One with a log has changed other objects, too.
func (k Lock) readable() bool { return !k.Held() || k.Alone() }

// Each reads objects that have nothing to do with each other: each as a transaction of its own
// would that reads it alone, at some moment of the call, and all in the trips of one. guess returns
// what an object's metadata is, as far as the caller knows, as for Tx.Guess. take is called once
// for each, in any order, with its index in refs and its metadata; there: with its data, which is
// valid until take returns; else there is no such object. It must not use the worker.
//
// Unlike Read it does not wait for a lock of a transaction that changes that object only, so that
// readers of an object which is always being changed come to their end. Where such a transaction
// has read other objects, too, it may seem to take effect behind one that it has to precede, to a
// client that reads both objects.
//
// The error wraps those that Run returns for a transaction that reads. Then take was not called for
// all.
func (w *Worker) Each(refs []Ref, guess func(r Ref) (Meta, bool),
	take func(i int, m Meta, data []byte, there bool)) error {
	w.begin()
	w.each = w.each[:0]
	for _, r := range refs {
		if !w.valid(r) {
			return fmt.Errorf("%v of %d roots and %d others a node: %w", r, w.Roots, w.Objects, ErrNoObject)
		}
		m, ok := guess(r)
		w.each = append(w.each, reading{seen: m, known: ok && m.Lock.readable()})
	}
	for {
		more, blocked, err := w.readEach(refs, take)
		if err == nil && blocked != 0 {
			_, err = w.await(blocked, false)
		}
		if err != nil && !w.rejoin(err) {
			return fmt.Errorf("read %d objects: %w", len(refs), err)
		}
		switch {
		case err == nil && !more:
			return nil
		case w.over():
			return errTime
		}
	}
}

// readEach does a trip for all that are not done. blocked is one of those whose lock is held.
func (w *Worker) readEach(refs []Ref, take func(i int, m Meta, data []byte, there bool)) (more bool, blocked Ref,
	err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	step := stepReadMeta
	for i := range w.each {
		e := &w.each[i]
		if e.done {
			continue
		}
		if e.data = nil; e.known && !w.Absent(e.seen.Pointer) {
			e.data = b.Read(w.buffer(e.seen.Pointer), w.bufferBytes(e.seen.Pointer.class()))
			step = stepReadData
		}
		e.meta = b.Read(w.Meta(refs[i]), MetaBytes)
	}
	if err := w.do(step, b); err != nil {
		return true, 0, err
	}
	for i := range w.each {
		e := &w.each[i]
		if e.done {
			continue
		}
		data, there, err := w.judgeEach(e, refs[i])
		if err != nil {
			return true, 0, err
		}
		if e.done {
			take(i, e.seen, data, there)
			continue
		}
		more = true
		if !e.seen.Lock.readable() {
			blocked = refs[i]
		}
	}
	return more, blocked, nil
}

// judgeEach looks at what was READ of an object. As in load, its metadata has to be the same in two
// READs, the second one with its data: then it is done.
func (w *Worker) judgeEach(e *reading, r Ref) (data []byte, there bool, err error) {
	now := MetaOf(e.meta.Buf)
	same := e.known && now == e.seen
	e.seen, e.known = now, now.Lock.readable()
	switch {
	case !same:
		return nil, false, nil
	case e.data == nil:
		e.done = true
		return nil, false, nil
	}
	of, data, whole := w.Decode(e.data.Buf, now.Pointer)
	if whole {
		e.done = true
		return data, of == r, nil
	}
	if e.torn++; e.torn == mostTorn {
		return nil, false, fmt.Errorf("%v at %v has no data at %v: %w", r, w.Meta(r), w.buffer(now.Pointer),
			client.ErrDamaged)
	}
	return nil, false, nil
}
