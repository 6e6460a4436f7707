package workloads

import (
	"bytes"
	"fmt"
	"time"
)

// operate does one operation of the mix, and returns its kind.
func (w *Worker) operate() (op Op, err error) {
	switch op = w.core.choose(w.rnd); op {
	case OpRead:
		err = w.read()
	case OpUpdate:
		err = w.update()
	case OpInsert:
		err = w.insert()
	case OpScan:
		err = w.scan()
	default:
		err = w.readModifyWrite()
	}
	return op, err
}

func (w *Worker) read() error {
	w.pickKey()
	w.pickFields()
	return w.callRead()
}

func (w *Worker) callRead() error {
	w.begin()
	err := w.db.Read(w.key, &w.got)
	w.end = w.env.Now()
	if err == nil && w.core.DataIntegrity {
		err = w.verify()
	}
	return w.note(OpRead, err)
}

func (w *Worker) update() error {
	w.pickKey()
	w.buildUpdate()
	return w.callUpdate()
}

func (w *Worker) callUpdate() error {
	w.begin()
	return w.finish(OpUpdate, w.db.Update(w.key, &w.put))
}

// readModifyWrite is YCSB's: it reads a record and then writes it; what it writes does not depend
// on what it read.
func (w *Worker) readModifyWrite() error {
	w.pickKey()
	w.pickFields()
	w.buildUpdate()
	before := w.count.Trips
	err := w.callRead()
	start := w.start
	if err == nil {
		err = w.callUpdate()
	}
	w.start, w.trips = start, before
	return w.note(OpReadModifyWrite, err)
}

func (w *Worker) scan() error {
	w.pickKey()
	w.pickFields()
	n := w.core.scans.next(w.rnd)
	w.begin()
	return w.finish(OpScan, w.db.Scan(w.key, n, &w.got, nil))
}

// insert adds a record. One that fails is tried again by the worker's next insert, so that no
// reader is ever sent to a record that is not there.
func (w *Worker) insert() error {
	n := w.undone
	if n < 0 {
		var ok bool
		if n, ok = w.core.number(); !ok {
			w.begin()
			return w.finish(OpInsert, ErrWindow)
		}
	}
	err := w.callInsert(n)
	if w.undone = n; err == nil {
		w.core.inserted(n)
		w.undone = -1
	}
	return err
}

// load inserts the worker's i-th record of those to be loaded, as often as insertions are to be
// retried.
func (w *Worker) load(i int64) error {
	s := w.core.Spec
	n := s.InsertStart + int64(w.share.Worker) + i*int64(w.share.Workers)
	err := w.callInsert(n)
	for try := 0; err != nil && try < s.InsertionRetries; try++ {
		w.env.Sleep(time.Duration(float64(s.InsertionInterval) * (0.8 + float64(0.4*w.rnd.Float64()))))
		if w.share.Poll != nil && !w.share.Poll(&w.tally) {
			return err
		}
		err = w.callInsert(n)
	}
	return err
}

func (w *Worker) callInsert(n int64) error {
	w.key = w.core.appendKey(w.key[:0], n)
	w.build(AllFields)
	w.begin()
	return w.finish(OpInsert, w.db.Insert(w.key, &w.put))
}

func (w *Worker) pickKey() {
	n := w.keys.next(w.rnd)
	if w.share.Pick != nil {
		n = w.share.Pick(n)
	}
	w.key = w.core.appendKey(w.key[:0], n)
}

func (w *Worker) pickFields() {
	w.got.Field = AllFields
	if !w.core.ReadAllFields {
		w.got.Field = w.rnd.IntN(w.core.FieldCount)
	}
}

func (w *Worker) buildUpdate() {
	if w.core.WriteAllFields || w.core.FieldCount == 1 {
		w.build(AllFields)
	} else {
		w.build(w.rnd.IntN(w.core.FieldCount))
	}
}

// build makes new values for one field of the record, or for all of them.
func (w *Worker) build(field int) {
	w.put.Field = field
	if field != AllFields {
		clear(w.put.Values)
		w.put.Values[field] = w.value(field)
		return
	}
	for i := range w.put.Values {
		w.put.Values[i] = w.value(i)
	}
}

func (w *Worker) value(field int) []byte {
	if w.core.DataIntegrity {
		b := appendExpected(w.values[field][:0], w.key, field, w.core.ValueBytes(w.key))
		w.values[field] = b[:cap(b)] // it may have grown beyond the field
		return b
	}
	v := w.values[field][:w.core.lengths.next(w.rnd)]
	fillRandom(v, w.rnd.Uint64())
	return v
}

// verify compares what was read with what must have been written.
func (w *Worker) verify() error {
	for i, v := range w.got.Values {
		if w.got.Field != AllFields && w.got.Field != i {
			continue
		}
		w.expect = appendExpected(w.expect[:0], w.key, i, w.core.ValueBytes(w.key))
		if !bytes.Equal(v, w.expect) {
			return fmt.Errorf("%s, field%d: %w: %s instead of %s", w.key, i, ErrIntegrity, excerpt(v),
				excerpt(w.expect))
		}
	}
	return nil
}

func excerpt(b []byte) string {
	if len(b) > 48 {
		return fmt.Sprintf("%q... (%d bytes)", b[:48], len(b))
	}
	return fmt.Sprintf("%q", b)
}
