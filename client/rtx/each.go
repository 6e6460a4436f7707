package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// reading is an object that Each reads.
type reading struct {
	seen Meta
	// known: seen says which buffer is READ next. Otherwise the metadata has to
	// be READ before.
	known bool
	// done: the object was handed to take.
	done bool
	// torn counts READs of a buffer that was not whole: see mostTorn.
	torn int
	// meta is the READ of the metadata in this trip.
	meta *rdma.Op
	// data is the READ of the buffer; nil: the object has no data, or is not
	// known.
	data *rdma.Op
}

// readable reports whether an object is, by itself, what its pointer says now. A
// transaction without a log that holds the lock changes nothing but this pointer,
// and commits by that. A transaction with a log changes other objects, too.
func (k Lock) readable() bool { return !k.Held() || k.Alone() }

// Each reads objects that have nothing to do with each other: each as a
// transaction of its own would, at some moment of the call, and all in the trips
// of one. guess returns what an object's metadata is, as far as the caller knows,
// as for Tx.Guess. take is called once for each object, in any order, with its
// index in refs and its metadata. there: with its data, which is valid until take
// returns. Otherwise there is no such object. take must not use the worker.
//
// Unlike Read, Each does not wait for a lock of a transaction that changes that
// object only. So readers of an object that is changed all the time come to their
// end. If such a transaction has read other objects, too, it may seem to take
// effect after one that it has to precede, to a client that reads both objects.
//
// The error is one that Run returns for a transaction that reads. In that case
// take was not called for all objects.
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
		case w.trips.Over():
			return errTime
		}
	}
}

// readEach does a trip for all objects that are not done. It returns whether more
// trips are needed, and an object of which the lock is held, if there is one.
func (w *Worker) readEach(refs []Ref, take func(i int, m Meta, data []byte, there bool)) (more bool, blocked Ref,
	err error) {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
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
	if err := w.trips.Do(step, b); err != nil {
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

// judgeEach looks at what was READ of an object. As in load, its metadata has to
// be the same in two READs, the second one with its data: then the object is
// done. data is a part of the batch's buffer.
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
