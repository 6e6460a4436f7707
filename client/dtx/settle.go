package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// maxPendingReleases bounds the locks that a worker may hold without knowing, on nodes that
// do not answer. With more of them it begins no other transaction.
const maxPendingReleases = 1 << 10

// pending is a transaction of which the worker does not know whether its log was
// written, or that it has not finished. Until it is resolved the worker begins no
// other transaction, so the record stays as it is.
type pending struct {
	lock Version
	// held are locks, and what they become if the transaction does not change the
	// object.
	held []swap
}

// uncertain ends a transaction of which the log may have been written, or was. If
// only the pool's view has changed, or a node was out of reach for a moment,
// uncertain finds out the outcome at once, since nothing is in flight any more. It
// returns nil if the transaction is committed, errConflict if it is not. Otherwise
// the transaction stays pending, and the error wraps client.ErrUncertain.
func (tx *Tx) uncertain(err error) error {
	w := tx.w
	p := pending{lock: lockOf(w.id, tx.sequence)}
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.lock != 0 {
			p.held = append(p.held, swap{o.at, o.lock, o.seen})
		}
		// A scan finds the place, if it is free.
		if o.slot.chunk != nil {
			w.memory.used(o.slot, true)
		}
		o.lock, o.unsure, o.slot = 0, false, slot{}
	}
	w.pending.Keep(p)
	w.trips.Begin()
	for failed := err; w.rejoin(failed); {
		var committed bool
		switch committed, failed = w.resolveAll(); {
		case failed == nil && committed:
			return nil
		case failed == nil:
			return tx.fail(errConflict)
		}
	}
	return fmt.Errorf("%w: %w", client.ErrUncertain, err)
}

// resolveAll ends transactions that are pending, of which nothing is in flight.
// committed: the last of them was.
func (w *Worker) resolveAll() (committed bool, failed error) {
	w.pending.Resolve(func(p *pending) bool {
		var err error
		if committed, err = w.resolve(p); err != nil {
			failed = err
		}
		return err == nil
	})
	return committed, failed
}

// resolve finds out the outcome of a transaction by its log, and ends it. The
// release of all locks that it held is pending afterwards: a replay has released
// those of a committed one, so their CASes do nothing.
func (w *Worker) resolve(p *pending) (committed bool, err error) {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := w.readRecord(b, w.id)
	if err := w.trips.Do(stepReadLog, b); err != nil {
		return false, fmt.Errorf("read the log: %w", err)
	}
	// The record is the transaction's if its WRITE has landed as a whole. Nothing
	// is in flight, so that does not change any more.
	lock, entries, whole := openRecord(op.Buf)
	if committed = whole && lock == p.lock; committed {
		if err := w.replay(entries, lock); err != nil {
			return false, err
		}
	}
	// A CAS that releases a lock which a replay has released finds another word,
	// and does nothing.
	w.pendingReleases = append(w.pendingReleases, p.held...)
	return committed, nil
}

// Settle ends what earlier transactions have left, as Run does at its beginning. It has the time of
// a transaction of its own. While it fails the worker may hold locks, which other clients wait for.
func (w *Worker) Settle() error {
	w.trips.Begin()
	if err := w.settle(); err != nil {
		return err
	}
	return w.releasePending()
}

// settle waits for verbs that are in flight, resolves transactions that are
// pending, and releases locks that failed to be released. Some may be left
// afterwards, on nodes that do not answer.
func (w *Worker) settle() error {
	if err := w.land(); err != nil {
		return err
	}
	for len(w.pending) > 0 {
		if _, err := w.resolveAll(); err != nil && !w.rejoin(err) {
			return err
		}
	}
	err := w.releasePending()
	if w.rejoin(err) {
		err = w.releasePending()
	}
	if len(w.pendingReleases) > maxPendingReleases {
		return err
	}
	return nil
}

// land waits for all verbs that are in flight. Releases that failed are pending
// from then on: each is a CAS of one transaction's lock, so it may be done again
// where it had landed.
func (w *Worker) land() error {
	return w.trips.Land(func(b *rdma.Batch) {
		if b.Step() == stepLetGo {
			w.deferReleases(b, func(op *rdma.Op) bool { return op.Err != nil })
		}
	})
}

// deferReleases notes those releases of a batch as pending for which of returns
// true.
func (w *Worker) deferReleases(b *rdma.Batch, of func(op *rdma.Op) bool) {
	for i := range b.Len() {
		if op := b.Op(i); of(op) {
			w.pendingReleases = append(w.pendingReleases, swap{op.Addr, Version(op.Expect), Version(op.Value)})
		}
	}
}

// releasePending releases locks that may be held, as far as their nodes answer.
// It returns nil if no release is pending any more. Nothing that could take one
// of the locks is in flight, so a CAS that finds another word has nothing to
// release. Locks on nodes that are gone are dropped. A crash leaves the locks to
// the client's recovery, which makes them free to release.
func (w *Worker) releasePending() error {
	if len(w.pendingReleases) == 0 {
		return nil
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for _, s := range w.pendingReleases {
		b.CompareSwap(s.at, uint64(s.old), uint64(s.new))
	}
	err := w.trips.Do(stepFreeLock, b)
	if !b.Finished() || !w.trips.Sent {
		return err
	}
	if errors.Is(err, rdma.ErrNodeDown) {
		if joined := w.view.Join(); joined != nil {
			return errors.Join(err, joined)
		}
	}
	// A CAS without an error is done, whether it has found the lock or not.
	kept := w.pendingReleases[:0]
	for i, s := range w.pendingReleases {
		if b.Op(i).Err != nil && !w.view.Gone(s.at.Node()) {
			kept = append(kept, s)
		}
	}
	if w.pendingReleases = kept; len(kept) == 0 {
		return nil
	}
	return err
}
