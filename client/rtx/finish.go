package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// TryCommit (Figure 9) is what follows DOING. Any client can do its parts again,
// at the same time as others, and late. Each CAS succeeds once at most, since no
// word that it expects comes back.

// swapPointers installs the data of all entries of a log. When it returns nil
// each pointer has moved on from what it was before, so no CAS of the same
// entries can succeed later. The steps behind it rely on that.
//
// A pointer may have one more steal than the log says: a repair of OPT1 was meant
// for an earlier holder of the lock, and came late. Such a pointer has not moved
// on, and the CAS is done again. There are at most mostSteals of them. entries
// gets the pointers that were found.
func (r *repairer) swapPointers(entries []entry) error {
	for steals := 0; steals <= mostSteals; steals++ {
		b := r.ep.Batch()
		for _, e := range entries {
			b.CompareSwap(r.Meta(Ref(e.number)).Add(8), uint64(e.old), uint64(e.new))
		}
		err := r.trips.DoWhereLeft(stepSwapPointer, b, r.view)
		stolen := false
		for i := range entries {
			op, old := b.Op(i), entries[i].old
			if now := Pointer(op.Result); err == nil && op.Err == nil && now != old &&
				now&^stealMask == old&^stealMask {
				entries[i].old, stolen = now, true
			}
		}
		r.trips.Drop(b)
		if err != nil {
			return fmt.Errorf("swap pointers: %w", err)
		}
		if !stolen {
			return nil
		}
	}
	return fmt.Errorf("pointers are stolen all the time: %w", client.ErrDamaged)
}

// unlock releases all locks of the transaction in r.record. A lock that another client has released
// already stays as it is.
func (r *repairer) unlock() error {
	b := r.ep.Batch()
	defer r.trips.Drop(b)
	lock := r.record.lock
	for _, e := range r.record.entries {
		b.CompareSwap(r.Meta(Ref(e.number)), uint64(lock), uint64(lock.released()))
	}
	if err := r.trips.DoWhereLeft(stepUnlock, b, r.view); err != nil {
		return fmt.Errorf("release locks: %w", err)
	}
	return nil
}

// mostTakeovers bounds how often repairs that work on the same transaction may
// change the word of a log meanwhile. It is as many as the count of takeovers has
// values.
const mostTakeovers = 64

// done turns the log of a client from DOING to DONE, when nothing of a
// transaction is left to do. now is the word as it was seen last. If another
// client has done that already, done returns nil.
func (r *repairer) done(c rdma.ClientID, sequence uint64, now state) error {
	end := makeState(phaseDone, sequence)
	for range mostTakeovers {
		if now.over(sequence) {
			return nil
		}
		before, ok, err := r.trips.Swap(stepUnlock, r.log(c).Add(stateAt), uint64(now), uint64(end))
		if ok || err != nil {
			return err
		}
		now = state(before)
	}
	return fmt.Errorf("the log of client %d at %v changes all the time: %w", c, r.log(c), rdma.ErrTimeout)
}

// pending is a transaction of which the worker does not know the outcome, or that
// is decided and not finished. Until it is resolved the worker begins no other
// transaction.
type pending struct {
	// alone: it has no log (OPT1). The fields below sequence are for that.
	alone bool
	// sequence is that of a transaction with a log.
	sequence uint64
	// at is the address of the object's metadata.
	at rdma.Addr
	// lock is the word that the transaction has put there.
	lock Lock
	// old and new are the pointers that the CAS expects, and installs.
	old, new Pointer
}

// outcome is what became of a transaction.
type outcome uint8

const (
	unknown outcome = iota
	committed
	aborted
)

// uncertain ends a transaction of which the deciding verb failed. If only the
// pool's view has changed, or a node was out of reach for a moment, uncertain
// finds out the outcome at once: nothing is in flight any more then. It returns
// nil if the transaction is committed, errConflict if it is not. Otherwise the
// transaction stays pending, and the error wraps client.ErrUncertain.
func (w *Worker) uncertain(p pending, err error) error {
	w.pending.Keep(p)
	w.trips.Begin()
	for failed := err; failed != nil && w.rejoin(failed); {
		var known outcome
		w.pending.Resolve(func(p *pending) bool {
			known, failed = w.resolve(p)
			return failed == nil
		})
		switch {
		case failed == nil && known == committed:
			return nil
		case failed == nil && known == aborted:
			return w.tx.fail(errConflict)
		}
	}
	w.memory.unsure(&w.tx)
	return fmt.Errorf("%w: %w", client.ErrUncertain, err)
}

// settle waits for verbs that are in flight, and resolves the transactions that
// are pending. It returns an error if one of them is unresolved still.
func (w *Worker) settle() error {
	if err := w.land(); err != nil {
		return err
	}
	var failed error
	w.pending.Resolve(func(p *pending) bool {
		_, err := w.resolve(p)
		for err != nil && w.rejoin(err) {
			_, err = w.resolve(p)
		}
		if err != nil {
			failed = err
		}
		return err == nil
	})
	return failed
}

// resolve finds out the outcome of a transaction of which nothing is in flight,
// and finishes it if it is committed. Since nothing is in flight, a log without
// DOING will not get it any more.
func (w *Worker) resolve(p *pending) (outcome, error) {
	if p.alone {
		return w.resolveAlone(p)
	}
	now, err := w.readState(w.id)
	if err != nil {
		return unknown, err
	}
	switch {
	// DOING was never written, and never will be.
	case now.sequence() < p.sequence:
		w.state = now
		return aborted, nil
	case now.sequence() == p.sequence && now.phase() == phaseAbort:
		w.state = now
		return aborted, nil
	}
	if err := w.finishLog(w.id, now); err != nil {
		return unknown, err
	}
	w.state, err = w.readState(w.id)
	return committed, err
}

// resolveAlone is resolve for OPT1. As long as the lock is the worker's the
// pointer tells the outcome. The READ of the pointer precedes the release of the
// lock. If the pointer is neither the old nor the new one, the outcome is
// unknown, and what it names is another transaction's.
func (w *Worker) resolveAlone(p *pending) (outcome, error) {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := b.Read(p.at, MetaBytes)
	if err := w.trips.Do(stepResolve, b); err != nil {
		return unknown, err
	}
	now := MetaOf(op.Buf)
	before, _, err := w.trips.Swap(stepUnlock, p.at, uint64(p.lock), uint64(p.lock.released()))
	if err == nil && p.lock.became(Lock(before)) {
		err = w.free(p.at, Lock(before))
	}
	if err != nil {
		return unknown, err
	}
	switch {
	case now.Pointer == p.new:
		return committed, nil
	case now.Pointer == p.old:
		return aborted, nil
	}
	return unknown, nil
}
