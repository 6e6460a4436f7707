package rtx

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// commit ends the attempt of a closure that has returned nil (Figure 8). A
// transaction that changes nothing has nothing to do: all that it read existed at
// the moment before its last READ.
func (tx *Tx) commit() error {
	if tx.writes == 0 {
		tx.abort()
		return nil
	}
	err := tx.number()
	if err == nil {
		err = tx.takeBuffers()
	}
	switch {
	case err != nil:
		err = tx.fail(err)
	case tx.writes == 1 && !tx.w.opt.Log:
		err = tx.commitAlone()
	default:
		err = tx.commitLogged()
	}
	if errors.Is(err, client.ErrUncertain) {
		// What is not known yet is in w.pending. The locks stay, since the
		// transaction may be committed.
		return err
	}
	if err != nil {
		tx.abort()
		return err
	}
	tx.w.letGo(stepUnlock, tx.objects)
	tx.settled(true)
	tx.w.stats.Commits++
	return nil
}

// takeBuffers takes a buffer for the data of each object that is written, on the
// object's node if there is one. On an error settled gives back those that were
// taken.
func (tx *Tx) takeBuffers() error {
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change != written {
			continue
		}
		class, _ := tx.w.classOf(len(o.next))
		it, err := tx.w.memory.take(class, o.at.Node(), o.created || tx.w.Absent(o.seen.Pointer))
		if err != nil {
			return fmt.Errorf("write %v: %w", o.ref, err)
		}
		o.item = it
	}
	if !tx.aside {
		return nil
	}
	for i := range tx.objects {
		if o := &tx.objects[i]; o.item.chunk != nil {
			tx.w.memory.putBack(o.item)
			o.item = item{}
		}
	}
	return tx.conflict(nil, false)
}

// stepAside lets the locks of an attempt go that has to look for memory among what other clients
// have left. That may take hundreds of trips, and a leaf's lock is in the way of many. The attempt
// ends when it has found some. The next one finds that among what the worker has, on any node, so
// each has more than the one before.
func (tx *Tx) stepAside() {
	if tx.held > 0 {
		tx.w.letGo(stepLetGo, tx.objects)
		tx.held, tx.aside, tx.w.memory.near = 0, true, true
	}
}

// pointer returns the one that the commit gives an object.
func (o *object) pointer() Pointer {
	if o.change == freed {
		return o.seen.Pointer | pointerDead
	}
	return o.item.use
}

// writeData adds the WRITE of an object's data to its new buffer. No object names
// the buffer yet, so a crash, or a WRITE that tears, does no harm.
func (tx *Tx) writeData(b *rdma.Batch, o *object) {
	if o.change == written {
		p := b.Alloc(HeaderBytes + len(o.next))
		tx.w.encodeBuffer(p, o.item.use, o.ref, o.next)
		b.Write(tx.w.buffer(o.item.use), p)
	}
}

// swapPointer adds the CAS that installs an object's data (Figure 9, line 5).
func (o *object) swapPointer(b *rdma.Batch) *rdma.Op {
	return b.CompareSwap(o.at.Add(8), uint64(o.seen.Pointer), uint64(o.pointer()))
}

// commitLogged commits a transaction of several objects:
//
//	1  WRITE data and record, lock what is changed
//	2  validate what was read and is not changed
//	3  INIT -> DOING: from here on it is committed, and any client can finish it
//	4  swap pointers
//	5  release locks, DOING -> DONE
//
// Each step begins when all of the one before is complete, on all nodes. DOING
// relies on 1: a client that finishes the transaction needs the record, the data
// and all locks. A crash before 3 leaves locks of a transaction in INIT, which a
// waiting client aborts. A crash behind 3 leaves DOING, from which a waiting
// client goes on with 4 and 5.
//
// Step 5 relies on 4: a reader that finds an object unlocked may not see its old
// data.
func (tx *Tx) commitLogged() error {
	w := tx.w
	lock := w.lock(w.id, tx.sequence, false, tx.code(tx.writes))
	// The record is about to be overwritten, so no verb of an earlier transaction
	// may be in flight.
	if err := w.land(); err != nil {
		return err
	}
	if err := tx.lockAll(lock); err != nil {
		return err
	}
	if err := tx.validate(); err != nil {
		return err
	}
	if err := tx.decide(lock); err != nil {
		return err
	}
	if err := tx.finish(lock); err != nil {
		return w.uncertain(pending{sequence: tx.sequence}, err)
	}
	return nil
}

// lockAll is step 1. A lock that was taken early becomes one with a log.
func (tx *Tx) lockAll(lock Lock) error {
	w := tx.w
	if err := tx.yield(); err != nil {
		return err
	}
	w.record.lock, w.record.entries = lock, w.record.entries[:0]
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change == unchanged {
			continue
		}
		tx.writeData(b, o)
		w.record.entries = append(w.record.entries, entry{o.ref.number(), o.seen.Pointer, o.pointer()})
	}
	p := b.Alloc(recordBytes(len(w.record.entries)))
	w.record.encode(p)
	b.Write(w.log(w.id).Add(recordAt), p)
	first := b.Len()
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change == unchanged {
			continue
		}
		expect := o.seen.Lock
		if o.lock != 0 {
			expect = o.lock
		}
		b.CompareSwap(o.at, uint64(expect), uint64(w.inPlaceOf(expect, lock)))
	}
	err := w.trips.Do(stepLock, b)
	return tx.noteLocks(b, first, lock, err)
}

// noteLocks notes which objects a batch has locked. The batch has a CAS for each
// object that is changed, from op first on; err is what became of it. It ends the
// attempt unless all are locked. Those that are locked stay so until abort
// releases them.
func (tx *Tx) noteLocks(b *rdma.Batch, first int, lock Lock, err error) error {
	w, wanted := tx.w, false
	if err != nil {
		err = fmt.Errorf("lock: %w", err)
	}
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change == unchanged {
			continue
		}
		cas := b.Op(first)
		first++
		switch {
		case err != nil:
			tx.unsure(o, Lock(cas.Value), cas, b)
		case cas.Swapped():
			o.lock = Lock(cas.Value)
		case o.lock.became(Lock(cas.Result)):
			o.lock, wanted = Lock(cas.Result), true
		default:
			// The lock was taken early, and another client has released it since.
			if o.lock != 0 {
				o.lock = 0
				w.stats.Lost++
			}
			o.slot.stale = true
			_ = tx.conflict(o, !w.mayLock(o.at, Lock(cas.Result)))
		}
	}
	if err != nil {
		return err
	}
	if wanted && tx.err == nil {
		return tx.lockWanted(lock)
	}
	return tx.err
}

// validate is step 2. All locks are held, so what is to be changed is as it was
// seen, and no READ is needed for it. When it asks about an object that has
// changed it begins anew: see lookAgain.
func (tx *Tx) validate() error {
	for range mostAsked {
		asked, err := tx.validateOnce()
		if err != nil || !asked {
			return err
		}
	}
	return tx.fail(errConflict)
}

// validateOnce READs the metadata of what was read and is not changed, and does
// the closure's checks. It posts nothing if there is neither.
func (tx *Tx) validateOnce() (asked bool, err error) {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	tx.readAgain(b, (*object).stays)
	own := b.Len()
	for _, c := range tx.checks {
		c.post(b)
	}
	if b.Len() == 0 && len(tx.checks) == 0 {
		return false, nil
	}
	if err := w.trips.Do(stepValidate, b); err != nil {
		return false, fmt.Errorf("validate: %w", err)
	}
	if own > 0 {
		if asked, err = tx.judge(b, 0, (*object).stays); err != nil {
			return false, err
		}
	}
	for _, c := range tx.checks {
		if !c.ok() {
			return false, tx.fail(errConflict)
		}
	}
	return asked, nil
}

// mostDecide bounds the tries to change the own log's word. Another client may
// abort an earlier transaction meanwhile, which changes the word, but only once
// for each such transaction that has locks.
const mostDecide = 8

// decide is step 3. If the CAS was posted and its outcome is unknown, the
// transaction is pending.
func (tx *Tx) decide(lock Lock) error {
	err := tx.move(stepDecide, func(state) state { return makeState(phaseDoing, tx.sequence) })
	if err != nil && tx.err == nil && tx.w.trips.Sent {
		return tx.w.uncertain(pending{sequence: tx.sequence}, err)
	}
	return err
}

// Renew says that the transaction goes on: a client that waits for its locks
// waits for another lease from now on. A transaction that takes longer than a
// lease before it commits calls Renew more often than once a lease. It does not
// use Takes for that: when its client dies, other clients wait for no longer than
// a lease.
//
// Renew takes a trip. An error is the closure's: another client has suspected the
// transaction, which is run again.
func (tx *Tx) Renew() error {
	// A transaction without sequence holds no locks.
	if err := tx.dead(); err != nil || tx.sequence == 0 {
		return err
	}
	if err := tx.move(stepRenew, state.takenOver); err != nil {
		return tx.fail(err)
	}
	return nil
}

// move changes the word of the own log, which still is that of an earlier
// transaction. If another client has suspected this transaction, the word has its
// sequence, and move ends the attempt. If another client has aborted an earlier
// one, move tries again from there.
func (tx *Tx) move(step rdma.Step, next func(state) state) error {
	w := tx.w
	for range mostDecide {
		to := next(w.state)
		b := w.ep.Batch()
		cas := b.CompareSwap(w.log(w.id).Add(stateAt), uint64(w.state), uint64(to))
		err := w.trips.Do(step, b)
		before, swapped := state(cas.Result), cas.Swapped()
		w.trips.Drop(b)
		switch {
		case err != nil:
			return err
		case swapped:
			w.state = to
			return nil
		}
		if w.state = before; before.sequence() >= tx.sequence {
			w.stats.Lost++
			return tx.fail(errConflict)
		}
	}
	return tx.fail(errConflict)
}

// finish is steps 4 and 5. Locks that were taken early are released with the
// others, if their objects do not change. The transaction gets another span of
// time: it is decided, and other clients wait for what is left to do. An error
// leaves DOING, which is pending.
func (tx *Tx) finish(lock Lock) error {
	w := tx.w
	w.trips.Begin()
	if err := w.swapPointers(w.record.entries); err != nil {
		return err
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i := range tx.objects {
		if o := &tx.objects[i]; o.lock != 0 {
			b.CompareSwap(o.at, uint64(o.lock), uint64(o.lock.released()))
		}
	}
	done := makeState(phaseDone, tx.sequence)
	cas := b.CompareSwap(w.log(w.id).Add(stateAt), uint64(w.state), uint64(done))
	if err := w.trips.DoWhereLeft(stepUnlock, b, w.view); err != nil {
		return fmt.Errorf("release locks: %w", err)
	}
	w.releaseWanted(b)
	for i := range tx.objects {
		o := &tx.objects[i]
		o.released()
	}
	w.state = done
	if !cas.Swapped() {
		return w.done(w.id, tx.sequence, state(cas.Result))
	}
	return nil
}

// commitAlone commits a transaction of one object, without a log (OPT1). The swap
// of the pointer decides it. A client that suspects the holder changes the
// pointer first, so that this CAS fails: see steal. The lock is released in the
// background.
//
// A crash before the swap leaves a lock, and a buffer that nothing names. A crash
// behind it leaves a lock on an object that has its new data.
func (tx *Tx) commitAlone() error {
	w := tx.w
	o := tx.changed()
	early := o.lock != 0
	lock := w.lock(w.id, tx.sequence, true, tx.code(1))
	b := w.ep.Batch()
	tx.writeData(b, o)
	switch {
	case !early:
		if err := tx.yield(); err != nil {
			w.trips.Drop(b)
			return err
		}
		first := b.Len()
		b.CompareSwap(o.at, uint64(o.seen.Lock), uint64(w.inPlaceOf(o.seen.Lock, lock)))
		err := w.trips.Do(stepLock, b)
		err = tx.noteLocks(b, first, lock, err)
		w.trips.Drop(b)
		if err != nil {
			return err
		}
		b = w.ep.Batch()
	case b.Len() > 0 && (w.buffer(o.item.use).Node() != o.at.Node() || tx.validates()):
		err := w.trips.Do(stepWriteData, b)
		w.trips.Drop(b)
		if err != nil {
			return fmt.Errorf("write %v: %w", o.ref, err)
		}
		b = w.ep.Batch()
		// The CAS follows the WRITE to the same node in one batch, so it executes
		// behind it.
	}
	defer w.trips.Drop(b)
	if err := tx.validate(); err != nil {
		return err
	}
	cas := o.swapPointer(b)
	if err := w.trips.Do(stepSwapPointer, b); err != nil {
		if !w.trips.Sent {
			return err
		}
		p := pending{alone: true, at: o.at, lock: o.lock, old: o.seen.Pointer, new: o.pointer()}
		return w.uncertain(p, err)
	}
	if !cas.Swapped() {
		w.stats.Lost++
		return tx.conflict(o, false)
	}
	w.stats.Alone++
	return nil
}

// validates reports whether there is anything to validate.
func (tx *Tx) validates() bool {
	for i := range tx.objects {
		if tx.objects[i].stays() {
			return true
		}
	}
	return len(tx.checks) > 0
}

// code returns the lease code of a transaction that locks some objects at once.
func (tx *Tx) code(objects int) int {
	if tx.w.opt.Flat {
		return 0
	}
	return leaseCode(tx.takes + time.Duration(objects)*leaseUnit)
}

// changed returns the only object that is changed.
func (s *objectSet) changed() *object {
	for i := range s.objects {
		if o := &s.objects[i]; o.change != unchanged {
			return o
		}
	}
	panic("rtx: a transaction of one object has none")
}

// abort releases the locks of an attempt that is not committed, and gives back
// what it has taken.
func (tx *Tx) abort() {
	tx.w.letGo(stepLetGo, tx.objects)
	tx.settled(false)
}

// letGo releases locks in the background. The CASes may land at any time, since
// no later lock has a word that they expect. A crash behind it, or an error,
// leaves locks of a transaction that is over, or of one in INIT. Other clients
// release what they meet: those of INIT behind their lease, or when the worker
// has closed.
func (w *Worker) letGo(step rdma.Step, objects []object) {
	var b *rdma.Batch
	for i := range objects {
		o := &objects[i]
		if o.lock == 0 {
			continue
		}
		if b == nil {
			b = w.ep.Batch()
		}
		b.CompareSwap(o.at, uint64(o.lock), uint64(o.lock.released()))
		o.released()
	}
	if b == nil {
		return
	}
	if err := w.ep.Post(b.As(step)); err != nil {
		b.Release()
		return
	}
	w.releases = append(w.releases, b)
	// The others are looked at by reap or land.
	if b.Finished() {
		w.releaseWanted(b)
	}
}

// released notes that an object's lock is released, or about to be.
func (o *object) released() {
	if o.lock != 0 {
		o.seen.Lock, o.slot.seen.Lock, o.lock = o.lock.released(), o.lock.released(), 0
	}
}

// settled puts what a transaction has taken in its place, when the outcome is
// known: what was installed is in use, the rest is free, and what was replaced
// goes into quarantine. o.seen becomes what the commit has left, for Seen.
func (tx *Tx) settled(committed bool) {
	m := &tx.w.memory
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.item.chunk != nil {
			m.used(o.item, committed)
		}
		if o.slot.chunk != nil {
			m.usedSlot(o.slot, committed)
		}
		if committed && o.change != unchanged {
			if !tx.w.Absent(o.seen.Pointer) {
				m.replaced(o.seen.Pointer)
			}
			if o.change == freed {
				m.freed(o.seen.Pointer)
			}
			o.seen.Pointer = o.pointer()
		}
		o.item, o.slot = item{}, slot{}
	}
}
