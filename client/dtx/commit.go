package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// commit ends the attempt of a closure that has returned nil. A transaction that
// changes nothing has nothing to do: all that it read existed at one moment.
// Others commit in four steps:
//
//	1  lock what is changed, by CAS: the version of the execution phase -> held,
//	   by this transaction
//	2  validate what was read and is not changed, if there is any
//	3  WRITE the log, with all bodies as they are to be: it is committed
//	4  WRITE each body, and unlock it by a CAS behind
//
// Each step begins when the one before is complete, on all nodes. A crash before
// 3 leaves locks, which a recovery makes free to release. A crash within 3 leaves
// a record that is whole or torn, and so decides. A crash behind 3 leaves a
// record that a recovery replays, to the objects that still have the lock.
//
// In 4 the CAS is posted behind the WRITE to the same node, so it is not executed
// before it. Objects on several nodes become visible at several moments, each
// when its lock is free. Nothing has to be waited for between them: a transaction
// that meets an object with new data meets the others locked, and waits.
func (tx *Tx) commit() error {
	if tx.writes == 0 {
		tx.abort()
		return nil
	}
	w := tx.w
	// The batch has the log. It is not released before the commit ends, since the
	// bodies are copied from there.
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	err := tx.prepare()
	if err == nil {
		var entries []byte
		entries, err = tx.writeLog(b)
		if err == nil {
			err = tx.apply(entries)
		}
	}
	if errors.Is(err, client.ErrUncertain) {
		// What is not known yet is in w.pending.
		return err
	}
	if err != nil {
		tx.abort()
		return err
	}
	tx.settled(true)
	w.stats.Commits++
	return nil
}

// prepare is steps 1 and 2.
func (tx *Tx) prepare() error {
	if err := tx.number(); err != nil {
		return err
	}
	if n := tx.logBytes(); n > tx.w.Log {
		return tx.fail(fmt.Errorf("a log of %d bytes, %d at most: %w", n, tx.w.Log, ErrTooMany))
	}
	if err := tx.lockAll(); err != nil {
		return err
	}
	// What is changed is locked, so there is nothing else to validate.
	if len(tx.checks) == 0 && !tx.others((*object).stays, nil) {
		return nil
	}
	return tx.validate((*object).stays, nil)
}

// logBytes returns the size of the transaction's record.
func (tx *Tx) logBytes() int {
	n := recordHead
	for i := range tx.objects {
		if o := &tx.objects[i]; o.change != unchanged {
			n += entryBytes(len(o.next))
		}
	}
	return n
}

// lockAll is step 1, for objects that were not locked early. It ends the attempt
// unless all are locked. Those that are locked stay so until abort releases them.
func (tx *Tx) lockAll() error {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i := range tx.objects {
		if o := &tx.objects[i]; o.change != unchanged && o.lock == 0 {
			b.CompareSwap(o.at, uint64(o.seen), uint64(lockOf(w.id, tx.sequence)))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	err := w.trips.Do(stepLock, b)
	k := 0
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change == unchanged || o.lock != 0 {
			continue
		}
		cas := b.Op(k)
		k++
		switch {
		case err != nil:
			tx.unsure(o, cas, b)
		case cas.Swapped():
			tx.hold(o)
		default:
			o.slot.stale = true
			_ = tx.conflict(o.ref, Version(cas.Result).Held())
		}
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return tx.err
}

// writeLog is step 3. It returns the entries of the record, which lie in the
// batch. If the WRITE fails after it was posted, the record may be there, or may
// yet be: the outcome is pending.
func (tx *Tx) writeLog(b *rdma.Batch) (entries []byte, err error) {
	w := tx.w
	lock := lockOf(w.id, tx.sequence)
	r := record{p: b.Alloc(tx.logBytes())}
	for i := range tx.objects {
		if o := &tx.objects[i]; o.change != unchanged {
			r.add(o.ref, &body{version: lock.written(), there: o.change == written, life: o.ref.life(), data: o.next})
		}
	}
	r.seal(lock)
	// Without a log nothing decides, and nothing repairs what a crash from here
	// on leaves.
	if w.opt.Unlogged {
		return r.p[recordHead:], nil
	}
	// The transaction is committed when the last word of the record has landed.
	b.Write(w.log(w.id).Add(recordAt), r.p)
	if err := w.trips.Do(stepLog, b); err != nil {
		if !w.trips.Sent {
			return nil, err
		}
		return nil, tx.uncertain(fmt.Errorf("write the log: %w", err))
	}
	return r.p[recordHead:], nil
}

// apply is step 4. Early locks of objects that do not change are released with
// the others. The transaction gets another span of time: it is decided, and other
// clients wait for what is left to do. A lock that is not the transaction's is
// damage: only a recovery, which fences the client off first, may release it.
func (tx *Tx) apply(entries []byte) error {
	w := tx.w
	w.trips.Begin()
	lock := lockOf(w.id, tx.sequence)
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for len(entries) > 0 {
		var r Ref
		var p []byte
		r, p, entries = nextEntry(entries)
		w.addBody(b, r, p, lock)
	}
	for i := range tx.objects {
		if o := &tx.objects[i]; o.lock != 0 && o.change == unchanged {
			b.CompareSwap(o.at, uint64(lock), uint64(o.seen))
		}
	}
	if err := w.trips.DoWhereLeft(stepCommit, b, w.view); err != nil {
		return tx.uncertain(fmt.Errorf("write: %w", err))
	}
	for i := range b.Len() {
		if op := b.Op(i); op.Verb == rdma.CompareSwap && op.Err == nil && !op.Swapped() {
			return fmt.Errorf("the lock at %v is %#x, not %#x: %w", op.Addr, op.Result, uint64(lock), client.ErrDamaged)
		}
	}
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change != unchanged {
			o.seen = lock.written()
		}
		o.lock = 0
	}
	return nil
}

// addBody adds the WRITE of an encoded body, and behind it the CAS that releases
// the lock. encoded is copied.
func (w *Worker) addBody(b *rdma.Batch, r Ref, encoded []byte, lock Version) {
	at, _ := w.Object(r)
	p := b.Alloc(len(encoded))
	copy(p, encoded)
	b.Write(at.Add(checksumAt), p)
	b.CompareSwap(at, uint64(lock), uint64(lock.written()))
}

// abort releases the locks of an attempt that is not committed, in the
// background. Its objects get the versions back that they had. A crash behind it
// leaves locks that a recovery makes free to release.
func (tx *Tx) abort() {
	w := tx.w
	var b *rdma.Batch
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.lock == 0 {
			continue
		}
		if b == nil {
			b = w.ep.Batch()
		}
		// The version that was there comes back with the same data, since the
		// body was not written.
		op := b.CompareSwap(o.at, uint64(o.lock), uint64(o.seen))
		// The CAS that takes the lock may be in flight. The release follows it,
		// and is done once more when nothing is in flight.
		if o.unsure {
			op.Fence = true
			w.pendingReleases = append(w.pendingReleases, swap{o.at, o.lock, o.seen})
		}
		o.lock, o.unsure = 0, false
	}
	if b != nil {
		if err := w.ep.Post(b.As(stepLetGo)); err != nil {
			w.deferReleases(b, func(*rdma.Op) bool { return true })
			b.Release()
		} else {
			w.trips.InFlight = append(w.trips.InFlight, b)
		}
	}
	tx.settled(false)
}

// settled puts what a transaction has taken in its place, when the outcome is
// known: what was created is in use, the rest is free, and so is the place of
// what was freed.
func (tx *Tx) settled(committed bool) {
	m := &tx.w.memory
	for i := range tx.objects {
		o := &tx.objects[i]
		switch {
		case o.slot.chunk != nil:
			m.used(o.slot, committed && o.change == written)
		case committed && o.change == freed && !tx.w.isRoot(o.ref):
			m.freed(o.ref, o.seen)
		}
		o.slot = slot{}
	}
}
