package dtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// reading is an object that Each reads.
type reading struct {
	op *rdma.Op
	// done: the object was handed to take.
	done bool
	// last is the version under which the object was torn.
	last Version
	// torn counts the READs that were torn under that version: see mostTorn.
	torn int
}

// Each reads objects that have nothing to do with each other: each as a
// transaction of its own would, at some moment of the call, and all in the trip
// of one. take is called once for each object, in any order, with its index in
// refs, its version, and its data, which is valid until take returns; nil data:
// there is no such object. take must not use the worker.
//
// The error is one that Run returns for a transaction that reads. In that case
// take was not called for all objects.
func (w *Worker) Each(refs []Ref, take func(i int, v Version, data []byte)) error {
	w.begin()
	w.each = w.each[:0]
	for _, r := range refs {
		if !w.valid(r) {
			return fmt.Errorf("%v: %w", r, ErrNoObject)
		}
		w.each = append(w.each, reading{})
	}
	for {
		more, blocked, err := w.readEach(refs, take)
		if err == nil && blocked != 0 {
			err = w.await(blocked)
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

// readEach READs all objects that are not done. It returns whether more trips are
// needed, and an object of which the lock is held, if there is one.
func (w *Worker) readEach(refs []Ref, take func(i int, v Version, data []byte)) (more bool, blocked Ref, err error) {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i := range w.each {
		if e := &w.each[i]; !e.done {
			at, bytes := w.Object(refs[i])
			e.op = b.Read(at, bytes)
		}
	}
	if err := w.trips.Do(stepRead, b); err != nil {
		return true, 0, err
	}
	for i := range w.each {
		e := &w.each[i]
		if e.done {
			continue
		}
		now, data, ok := Decode(e.op.Buf, refs[i])
		switch {
		case ok:
			e.done = true
			take(i, now, data)
			continue
		case now.Held():
			blocked = refs[i]
		default:
			if err := w.torn(e, refs[i], now); err != nil {
				return true, 0, err
			}
		}
		more = true
	}
	return more, blocked, nil
}

// torn counts a READ that was torn. It returns an error if there were too many
// under one version.
func (w *Worker) torn(e *reading, r Ref, now Version) error {
	w.stats.Torn++
	if now != e.last {
		e.last, e.torn = now, 0
	}
	if e.torn++; e.torn == mostTorn {
		return fmt.Errorf("%v at %v has no data of version %#x: %w", r, e.op.Addr, uint64(now), client.ErrDamaged)
	}
	return nil
}
