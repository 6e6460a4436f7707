package dtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Await returns when an object is not locked. A lock of a dead client is in the
// way until the client is recovered: then it is released on sight. Await is not
// called by a closure that Run runs: its transaction waits by itself. The error
// wraps rdma.ErrTimeout when the lock is held for longer than Options.Timeout.
func (w *Worker) Await(r Ref) error {
	w.trips.Begin()
	return w.await(r)
}

// await is Await without a span of its own. In each look it READs the lock and
// the word "ended" of its owner's log: from that it learns of a recovery, and
// needs no message. It never suspects a client, since locks have no lease.
func (w *Worker) await(r Ref) error {
	if !w.valid(r) {
		return fmt.Errorf("await %v: %w", r, ErrNoObject)
	}
	at, _ := w.Object(r)
	var owner rdma.ClientID
	var met Version
	for p := w.waits; ; {
		v, ended, err := w.look(at, owner)
		switch {
		case errors.Is(err, rdma.ErrTimeout) && owner != 0:
			return heldBy(r, owner)
		case err != nil:
			return fmt.Errorf("await %v: %w", r, err)
		case !v.Held():
			return nil
		case v.owner() == 0 || int(v.owner()) > w.Clients:
			return fmt.Errorf("await %v, locked by client %d of 1 to %d: %w", r, v.owner(), w.Clients,
				client.ErrDamaged)
		case v.owner() != owner:
			// The next look also reads up to which sequence the owner's
			// transactions are over.
			if owner = v.owner(); owner != w.id {
				w.stats.Waits++
			}
			continue
		case ended >= v.sequence():
			err = w.free(at, v)
		// The lock is that of an earlier transaction, or attempt.
		case owner == w.id:
			err = w.settle()
		default:
			// The lock was passed on meanwhile. A client that waits for long looks as
			// often as a new one.
			if v != met {
				met, p = v, w.waits
			}
			if p.Again() {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("await %v: %w", r, err)
		}
		if w.trips.Over() {
			return heldBy(r, owner)
		}
	}
}

// heldBy is the error of a wait for a lock that took all of the time.
func heldBy(r Ref, owner rdma.ClientID) error {
	return fmt.Errorf("%v is locked by client %d; if it is dead, 'farkv recover' ends what it has begun: %w", r,
		owner, errTime)
}

// look reads an object's lock, and up to which sequence the transactions of a
// client are over, if there is a client.
func (w *Worker) look(at rdma.Addr, c rdma.ClientID) (v Version, ended uint64, err error) {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	lock := b.Read(at, 8)
	if c != 0 {
		b.Read(w.log(c).Add(endedAt), 8)
	}
	if err := w.trips.Do(stepAwait, b); err != nil {
		return 0, 0, err
	}
	if c != 0 {
		ended = b.Op(1).Word(0)
	}
	return Version(lock.Word(0)), ended, nil
}

// free releases the lock of a transaction that is over. No client writes the
// object's body for as long as the lock is there, so the lock becomes the version
// that stands in the body. That version is READ when the transaction is known to
// be over, and not in the batch that says so: that READ could be of an earlier
// moment. If another client was faster, nothing changes.
func (w *Worker) free(at rdma.Addr, v Version) error {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := b.Read(at.Add(versionAt), 8)
	if err := w.trips.Do(stepReadUnder, b); err != nil {
		return err
	}
	_, ok, err := w.trips.Swap(stepFreeLock, at, uint64(v), op.Word(0))
	if ok {
		w.stats.Freed++
	}
	return err
}
