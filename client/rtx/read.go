package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// mostTorn bounds how often data is READ that does not belong to metadata which
// stays the same. A READ that another verb passes may meet that once each time
// that the buffer is used again. More often it is damage.
const mostTorn = 64

// load returns an object with its data. change: the transaction is to change it.
//
// This is the execution phase (Figure 7). It READs the metadata, then the data,
// and with the data the metadata again, of this object and of all objects met
// before. When all are as they were seen first, all of them were so at the moment
// between the two READs. So the closure only sees states that existed.
//
// The pointer is valid until the next object is added.
func (tx *Tx) load(r Ref, change bool) (*object, error) {
	if err := tx.dead(); err != nil {
		return nil, err
	}
	if i, ok := tx.index[r]; ok {
		return &tx.objects[i], nil
	}
	if !tx.w.valid(r) {
		return nil, fmt.Errorf("%v of %d roots and %d others a node: %w", r, tx.w.Roots, tx.w.Objects, ErrNoObject)
	}
	o := tx.add(r, tx.w.Meta(r))
	for torn, known := 0, tx.guessed(o); ; {
		if !known {
			if err := tx.readMeta(o, change); err != nil {
				return nil, tx.forget(r, err)
			}
		}
		again, whole, err := tx.readData(o)
		switch {
		case err != nil:
			return nil, tx.forget(r, err)
		case !again:
			return o, nil
		// Another transaction was faster, or the guess was wrong. o.seen is what
		// the object is now, and does for the first READ.
		case whole:
			known = !o.seen.Lock.Held()
			continue
		}
		known = false
		if torn++; torn == mostTorn {
			at := tx.w.buffer(o.seen.Pointer)
			return nil, tx.forget(r, fmt.Errorf("%v at %v has no data at %v: %w", r, o.at, at, client.ErrDamaged))
		}
		if tx.w.trips.Over() {
			return nil, tx.forget(r, errTime)
		}
	}
}

// forget ends the attempt in load or Lock. The object, which is the last one,
// leaves the transaction: it was not read.
func (tx *Tx) forget(r Ref, err error) error {
	delete(tx.index, r)
	tx.objects = tx.objects[:len(tx.objects)-1]
	return tx.fail(err)
}

// readMeta reads the metadata of an object, and waits until it is not locked.
// lock: the transaction is to lock the object next. A transaction that holds
// locks waits for none: it ends, releases its locks, and Run waits. So no two
// transactions wait for each other.
func (tx *Tx) readMeta(o *object, lock bool) (err error) {
	w := tx.w
	b := w.ep.Batch()
	op := b.Read(o.at, MetaBytes)
	if err = w.trips.Do(stepReadMeta, b); err == nil {
		o.seen = MetaOf(op.Buf)
	}
	w.trips.Drop(b)
	switch {
	case err != nil:
		return fmt.Errorf("read %v: %w", o.ref, err)
	case !o.seen.Lock.Held():
		return nil
	case tx.held > 0:
		return tx.conflict(o, true)
	}
	o.seen, err = w.await(o.ref, lock)
	return err
}

// readData reads the data that o.seen names, and the metadata of all objects
// again. When it returns again, o has to be read once more: if whole, the object
// has changed, and o.seen is what it is now; if not, the buffer has not the data
// that the metadata names.
//
// The READ of the data precedes those of the metadata in posting order, but a
// READ may be passed by later verbs. The header of the buffer shows which use of
// it was read.
func (tx *Tx) readData(o *object) (again, whole bool, err error) {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	there := !w.Absent(o.seen.Pointer)
	var data *rdma.Op
	if there {
		data = b.Read(w.buffer(o.seen.Pointer), w.bufferBytes(o.seen.Pointer.class()))
	}
	meta := b.Read(o.at, MetaBytes)
	first := b.Len()
	others := func(other *object) bool { return other != o && other.met() }
	tx.readAgain(b, others)
	if err := w.trips.Do(stepReadData, b); err != nil {
		return false, false, fmt.Errorf("read %v: %w", o.ref, err)
	}
	asked, err := tx.judge(b, first, others)
	if err != nil {
		return false, false, err
	}
	// The object was read before some of the others were as they are now: see
	// lookAgain.
	if asked {
		return true, true, nil
	}
	if now := MetaOf(meta.Buf); now != o.seen {
		o.seen = now
		return true, true, nil
	}
	o.there = there
	if !there {
		return false, true, nil
	}
	return o.take(tx.w.Layout, data.Buf)
}

// take takes an object's data out of what was READ of its buffer. The data is
// copied.
func (o *object) take(l *Layout, buffer []byte) (again, whole bool, err error) {
	r, bytes, ok := l.Decode(buffer, o.seen.Pointer)
	if !ok {
		return true, false, nil
	}
	o.data = append(o.data[:0], bytes...)
	// The buffer may be that of a later object with the same metadata: the one
	// that is meant was freed then.
	o.there = r == o.ref
	return false, true, nil
}

// readAgain adds READs of the metadata of those objects for which of returns
// true.
func (s *objectSet) readAgain(b *rdma.Batch, of func(o *object) bool) {
	for i := range s.objects {
		if o := &s.objects[i]; of(o) {
			b.Read(o.at, MetaBytes)
		}
	}
}

// met reports whether an object belongs to the state that the closure has seen.
func (o *object) met() bool { return !o.created && !o.relaxed }

// stays reports whether an object must be as it was when the transaction commits, without being
// changed.
func (o *object) stays() bool {
	return o.change == unchanged && !o.created && (!o.relaxed || o.lock != 0)
}

// expected is the metadata of an object as long as no other client has changed it.
func (o *object) expected() Meta {
	if o.lock != 0 {
		return Meta{o.lock, o.seen.Pointer}
	}
	return o.seen
}

// judge compares what readAgain has read, from op first on, with what was
// expected. A change ends the attempt, unless the closure accepts the object as
// it is now; then judge returns asked, and the caller has to look at all objects
// once more.
func (tx *Tx) judge(b *rdma.Batch, first int, of func(o *object) bool) (asked bool, err error) {
	for i := range tx.objects {
		o := &tx.objects[i]
		if !of(o) {
			continue
		}
		now := MetaOf(b.Op(first).Buf)
		first++
		if o.lock.became(now.Lock) {
			// The lock is wanted now, and still the transaction's.
			now.Lock = o.lock
		}
		if now == o.expected() {
			continue
		}
		if now.Lock.Held() || o.lock != 0 || o.same == nil || o.change != unchanged {
			return false, tx.conflict(o, now.Lock.Held() && o.lock == 0)
		}
		if err := tx.askAgain(o, now); err != nil {
			return false, err
		}
		asked = true
	}
	return asked, nil
}

// mostAsked bounds how often a validation begins anew because of objects that may
// change.
const mostAsked = 8

// lookAgain looks at objects until none has changed since the last look. When the
// closure was asked about an object, that object may have become what it is only
// after the look at another one, which the same transaction changed right before.
// Then there was no moment at which both were as they were seen.
func (tx *Tx) lookAgain(of func(o *object) bool) error {
	for range mostAsked {
		b := tx.w.ep.Batch()
		tx.readAgain(b, of)
		asked, err := false, tx.w.trips.Do(stepValidate, b)
		if err == nil {
			asked, err = tx.judge(b, 0, of)
		}
		tx.w.trips.Drop(b)
		if err != nil || !asked {
			return err
		}
	}
	return tx.fail(errConflict)
}

// askAgain reads an object that has changed, and asks the closure (OPT2). The
// object then counts as seen now, for later validations. Its data stays what the
// closure has read.
func (tx *Tx) askAgain(o *object, now Meta) error {
	w := tx.w
	if w.Absent(now.Pointer) {
		if !o.same(nil) {
			return tx.conflict(o, false)
		}
		o.seen, o.there = now, false
		return nil
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	data, meta := b.Read(w.buffer(now.Pointer), w.bufferBytes(now.Pointer.class())), b.Read(o.at, MetaBytes)
	if err := w.trips.Do(stepReadData, b); err != nil {
		return fmt.Errorf("read %v again: %w", o.ref, err)
	}
	r, bytes, ok := tx.w.Decode(data.Buf, now.Pointer)
	if !ok || MetaOf(meta.Buf) != now || r != o.ref || !o.same(bytes) {
		return tx.conflict(o, false)
	}
	o.seen = now
	return nil
}

// Lock locks an object from now on, so that no other transaction changes it
// before this one ends (OPT2). It waits for locks of others only if the
// transaction has none; else the transaction is run again. The lock is for one
// transaction that takes no longer than its lease: 8 ms, and what Takes has
// declared, up to 3.3 s. After that another client may release it, and the
// transaction is run again.
//
// For an object that was not met before Lock takes 2 trips, and a Read of it none
// then.
func (tx *Tx) Lock(r Ref) error {
	if err := tx.dead(); err != nil {
		return err
	}
	if err := tx.number(); err != nil {
		return err
	}
	w := tx.w
	if i, ok := tx.index[r]; ok {
		return tx.lockSeen(&tx.objects[i])
	}
	if !w.valid(r) {
		return fmt.Errorf("lock %v: %w", r, ErrNoObject)
	}
	o := tx.add(r, tx.w.Meta(r))
	for known := tx.guessed(o); ; {
		if !known {
			if err := tx.readMeta(o, true); err != nil {
				return tx.forget(r, err)
			}
		}
		if !w.mayLock(o.at, o.seen.Lock) {
			return tx.forget(r, tx.conflict(o, true))
		}
		ok, err := tx.lockAndRead(o, true)
		if err != nil && o.lock == 0 {
			return tx.forget(r, err)
		}
		if err != nil {
			return tx.fail(err)
		}
		if ok {
			return nil
		}
		if known = !o.seen.Lock.Held(); tx.held > 0 && !known {
			return tx.forget(r, tx.conflict(o, true))
		}
	}
}

// lockSeen locks an object that was met before, if it is as it was. Waiting does
// not help if it is not: what was read of it is no longer valid.
func (tx *Tx) lockSeen(o *object) error {
	if o.lock != 0 || o.created {
		return nil
	}
	ok, err := tx.lockAndRead(o, false)
	if err != nil {
		return tx.fail(err)
	}
	if !ok {
		return tx.conflict(o, true)
	}
	return nil
}

// lockAndRead locks an object that is as it was seen, and READs its data if it
// has not been read. It returns false when the lock is not as it was seen; then
// o.seen is what the object is now, as after a READ.
//
// While the lock's word is as it was, the pointer does not change. first: the
// object was seen by one READ, or was guessed. That READ may be of two moments,
// of which the lock is the later one. So the pointer is READ again behind the
// CAS: a pointer that was READ behind the lock's word, and that is the same under
// the lock, is the object's. The READ of the data needs no order, since the
// buffer's header shows which use of it was read.
//
// If the batch fails, the lock may be held, or may yet be: see unsure.
func (tx *Tx) lockAndRead(o *object, first bool) (ok bool, err error) {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	lock := w.inPlaceOf(o.seen.Lock, w.lock(w.id, tx.sequence, true, tx.code(0)))
	cas := b.CompareSwap(o.at, uint64(o.seen.Lock), uint64(lock))
	var data, pointer *rdma.Op
	if !w.Absent(o.seen.Pointer) && !o.there && o.change == unchanged {
		data = b.Read(w.buffer(o.seen.Pointer), w.bufferBytes(o.seen.Pointer.class()))
	}
	if first {
		pointer = b.Read(o.at.Add(8), 8)
	}
	own := b.Len()
	others := func(other *object) bool { return other != o && other.met() }
	tx.readAgain(b, others)
	if err := w.trips.Do(stepLockEarly, b); err != nil {
		tx.unsure(o, lock, cas, b)
		return false, fmt.Errorf("lock %v: %w", o.ref, err)
	}
	now := o.seen.Pointer
	if first {
		now = Pointer(pointer.Word(0))
	}
	if !cas.Swapped() {
		o.seen = Meta{Lock(cas.Result), now}
		return false, nil
	}
	o.lock = lock
	tx.held++
	asked, err := tx.judge(b, own, others)
	if err == nil && asked {
		err = tx.lookAgain(others)
	}
	if err != nil {
		return true, err
	}
	// It may also be that the lock is suspected, and the pointer was stolen.
	if now != o.seen.Pointer {
		return true, tx.conflict(o, false)
	}
	if data == nil {
		return true, nil
	}
	again, _, err := o.take(tx.w.Layout, data.Buf)
	// The lock is suspected already, and is another transaction's by now.
	if again {
		return true, tx.conflict(o, false)
	}
	return true, err
}

// unsure notes a lock that may be held, or may yet be, after a batch that failed.
// It is released like one that is held: the CAS that releases it fails if it is
// not, without harm.
func (tx *Tx) unsure(o *object, lock Lock, cas *rdma.Op, b *rdma.Batch) {
	if !b.Finished() || cas.Err != nil || cas.Swapped() {
		o.lock = lock
		tx.held++
	}
}

// number gives the transaction its sequence, once an attempt. It is above those
// of all transactions that any holder of the identity has had. kit.Numbers keeps
// a durable ceiling above it, so that a successor counts on behind it.
func (tx *Tx) number() error {
	if tx.sequence != 0 {
		return nil
	}
	n := tx.w.numbers.Used() + 1
	if n > tx.w.maxSequence {
		return tx.fail(fmt.Errorf("client %d has used all %d: %w", tx.w.id, tx.w.maxSequence, ErrRetired))
	}
	if err := tx.w.numbers.Use(n); err != nil {
		return tx.fail(err)
	}
	tx.sequence = n
	return nil
}
