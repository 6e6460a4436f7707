package rtx

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// watch is the lock that a worker waits for, the state of its holder's log, and
// for how long both have been what they are, on the worker's own clock. So no
// clock has to be right (section 4.1 needs a common one). It lasts from one
// attempt of a transaction to the next.
type watch struct {
	at    rdma.Addr
	lock  Lock
	state state
	// last is when they were seen so last.
	last time.Duration
	// still is for how long they have been so, without gaps between looks that
	// are too long.
	still time.Duration
	// looks counts the calls of moved.
	looks int
	// use is the use of the buffer that the second look found.
	use Pointer
}

// gapShares is the number of parts of a lease. A look that comes later than a
// part behind the one before counts as one part: the worker may have stood still,
// or its clock was set. So a suspicion takes at least three looks behind the
// first one.
const gapShares = 3

// see returns for how long the lock and the state have been what they are. A
// change begins anew.
func (v *watch) see(at rdma.Addr, k Lock, s state, now, lease time.Duration) time.Duration {
	if v.at != at || v.lock != k || v.state != s {
		*v = watch{at: at, lock: k, state: s, last: now}
		return 0
	}
	v.still += min(max(now-v.last, 0), lease/gapShares)
	v.last = now
	return v.still
}

// moved reports whether the holder has swapped the pointer since. Then a lock
// without a log has nothing left to do but to be released. The READ that saw the
// lock first may have the pointer of before, so moved compares with a later READ.
// Steals do not count: a late repair of an earlier holder may add one.
func (v *watch) moved(p Pointer) bool {
	if v.looks++; v.looks == 2 {
		v.use = p.use()
	}
	return v.looks > 2 && v.use != p.use()
}

// waits paces the looks at a lock: about what a transaction takes at first, then
// a sixteenth of Drift, which does not delay a repair by much.
func waits(w *Worker) kit.Retry {
	most := w.opt.Drift / 16
	return kit.Retry{Env: w.ep, Pause: kit.Doubling(min(time.Microsecond, most), most), Over: w.trips.Over}
}

// Await returns when an object is not locked. It repairs what a suspected client
// has left: the lock, and the word of its log, have stayed as they are for the
// lease. It releases locks of transactions that are over at once. Await is not
// called by a closure that Run runs: its transaction waits by itself.
func (w *Worker) Await(r Ref) error {
	w.begin()
	_, err := w.await(r, false)
	return err
}

// await returns an object's metadata when the object is not locked. lock: and
// when the worker's transaction may lock it, too, which a wanted lock may delay.
//
// A suspicion relies on two facts that are READ in one batch, again and again:
// the lock's word and the word of its owner's log are as they were for a lease,
// on the worker's own clock. A holder that goes on changes one of them. A
// suspicion that is wrong does no harm, since all that the holder does then
// fails.
func (w *Worker) await(r Ref, lock bool) (m Meta, err error) {
	if !w.valid(r) {
		return m, fmt.Errorf("await %v: %w", r, ErrNoObject)
	}
	at := w.Meta(r)
	var owner rdma.ClientID
	for p := w.waits; ; {
		m, s, err := w.look(at, owner)
		switch {
		case err != nil:
			return m, fmt.Errorf("await %v: %w", r, err)
		case !m.Lock.Held() && (!lock || w.mayLock(at, m.Lock)):
			return m, nil
		case !m.Lock.Held():
			w.watch.see(at, m.Lock, 0, w.ep.Now(), w.lapse())
			if !p.Again() {
				return m, errTime
			}
			continue
		case w.owner(m.Lock) == w.id:
			if err := w.freeOwn(at, m.Lock); err != nil {
				return m, err
			}
			continue
		case w.owner(m.Lock) != owner:
			// The next look reads the state of the owner's log, too.
			owner = w.owner(m.Lock)
			w.stats.Waits++
			continue
		}
		term, sequence := lease(m.Lock, w.opt.Drift), w.sequence(m.Lock)
		over := s.over(sequence) || m.Lock.Alone() && s.sequence() >= sequence
		still := w.watch.see(at, m.Lock|lockWanted, s, w.ep.Now(), term)
		if m.Lock.Alone() && w.watch.moved(m.Pointer) {
			if err := w.free(at, m.Lock); err != nil {
				return m, fmt.Errorf("release %v: %w", r, err)
			}
			continue
		}
		if over || still >= term {
			if err := w.repair(at, m, s); err != nil {
				return m, fmt.Errorf("repair %v: %w", r, err)
			}
			if w.trips.Over() {
				return m, errTime
			}
			continue
		}
		if lock && !m.Lock.Wanted() && w.late() {
			if err := w.want(at, m.Lock); err != nil {
				return m, fmt.Errorf("await %v: %w", r, err)
			}
		}
		// The lock was passed on meanwhile. A client that waits for long looks as
		// often as a new one.
		if still == 0 {
			p = w.waits
		}
		if !p.Again() {
			return m, errTime
		}
	}
}

// repairer ends transactions of others, and the worker's own once their outcome is known.
type repairer struct {
	*session
	// record is the one that was read or written last. Its entries are used
	// again.
	record record
}

// look reads an object's metadata and the word of a client's log, if there is a
// client.
func (r *repairer) look(at rdma.Addr, c rdma.ClientID) (m Meta, s state, err error) {
	b := r.ep.Batch()
	defer r.trips.Drop(b)
	meta := b.Read(at, MetaBytes)
	if c != 0 {
		b.Read(r.log(c).Add(stateAt), 8)
	}
	if err := r.trips.Do(stepAwait, b); err != nil {
		return m, s, err
	}
	if c != 0 {
		s = state(b.Op(1).Word(0))
	}
	return MetaOf(meta.Buf), s, nil
}

// freeOwn releases a lock of an earlier transaction of the worker's own, or of an
// earlier attempt. A release of it may be in flight, or have failed. Settling
// comes first: the lock may be that of a transaction of unknown outcome.
func (w *Worker) freeOwn(at rdma.Addr, k Lock) error {
	if err := w.settle(); err != nil {
		return err
	}
	return w.free(at, k)
}

// free releases a lock of a transaction that is over. If another client was
// faster, nothing changes.
func (r *repairer) free(at rdma.Addr, k Lock) error {
	_, ok, err := r.trips.Swap(stepFreeLock, at, uint64(k), uint64(k.released()))
	if ok {
		r.stats.Freed++
	}
	return err
}

// repair does one step for a transaction that is over, or of which the client is
// suspected (Figure 10):
//
//	INIT: the log's word is of an      ABORT; all other locks of the
//	earlier transaction                transaction are then released on sight
//	ABORT, and no log (OPT1)           change the pointer, so that the
//	                                   client's own CAS fails, then release
//	DOING                              finish the transaction
//	ABORT or DONE, or the word is of   release the lock: it landed late, or
//	a later transaction                was left
//
// Any number of clients may repair at a time, and the suspected client may go on:
// what it does then fails, or was done by others. A crash behind a step leaves a
// state of this table for the next client.
func (r *repairer) repair(at rdma.Addr, m Meta, s state) error {
	c, sequence := r.owner(m.Lock), r.sequence(m.Lock)
	if s.sequence() < sequence {
		// No client begins a transaction before the one before is DONE.
		if s.phase() == phaseDoing {
			return fmt.Errorf("client %d is in transaction %d, and %d is not done: %w", c, sequence, s.sequence(),
				client.ErrDamaged)
		}
		aborted := makeState(phaseAbort, sequence)
		_, ok, err := r.trips.Swap(stepAbort, r.log(c).Add(stateAt), uint64(s), uint64(aborted))
		// The holder goes on, or another client has aborted it: look again.
		if err != nil || !ok {
			return err
		}
		r.stats.Aborted++
		s = aborted
	}
	switch current := s.sequence() == sequence; {
	case current && s.phase() == phaseAbort && m.Lock.Alone():
		return r.steal(at, m)
	// A lock that is alone was taken early, and its object does not change: it is
	// released.
	case current && s.phase() == phaseDoing && !m.Lock.Alone():
		_, err := r.takeOver(c, s)
		return err
	}
	return r.free(at, m.Lock)
}

// steal is the repair of OPT1: the pointer gets another count of steals, instead
// of the paper's copy of the data. If the suspected client's CAS came first, the
// object has its data; else that CAS fails from now on. Only then the lock may be
// released. A crash in between leaves the lock to the next client, which steals
// again.
func (r *repairer) steal(at rdma.Addr, m Meta) error {
	p, ok := m.Pointer.stolen()
	// No steal is left. The lock waits until its client is recovered.
	if !ok {
		r.ep.Sleep(r.opt.Drift / 16)
		return nil
	}
	_, ok, err := r.trips.Swap(stepSteal, at.Add(8), uint64(m.Pointer), uint64(p))
	// The pointer has moved: look again.
	if err != nil || !ok {
		return err
	}
	r.stats.Stolen++
	return r.free(at, m.Lock)
}

// takeOver finishes the commit of a suspected client, unless another repair began
// earlier: then its CAS of the takeover fails. A repair that dies leaves the
// count of takeovers changed, so that others wait for another lease.
func (r *repairer) takeOver(c rdma.ClientID, s state) (bool, error) {
	whole, err := r.readLog(c, s)
	if err != nil || !whole {
		return false, err
	}
	_, first, err := r.trips.Swap(stepTakeOver, r.log(c).Add(stateAt), uint64(s), uint64(s.takenOver()))
	if err != nil || !first {
		return false, err
	}
	r.stats.Finished++
	return true, r.finishRecord(c, s.takenOver())
}

// readLog reads the record of a log in DOING into r.record. It returns false if
// the client has gone on meanwhile. The state was read before the record, and
// takeOver changes it behind: if that CAS succeeds, the record is that of the
// state's transaction.
func (r *repairer) readLog(c rdma.ClientID, s state) (whole bool, err error) {
	b := r.ep.Batch()
	defer r.trips.Drop(b)
	op := r.readRecord(b, c)
	if err := r.trips.Do(stepReadLog, b); err != nil {
		return false, fmt.Errorf("read the log of client %d: %w", c, err)
	}
	whole = r.record.decode(op.Buf)
	return whole && r.owner(r.record.lock) == c && r.sequence(r.record.lock) == s.sequence(), nil
}

// finishRecord does steps 4 and 5 of the transaction in r.record.
func (r *repairer) finishRecord(c rdma.ClientID, s state) error {
	if err := r.swapPointers(r.record.entries); err != nil {
		return err
	}
	if err := r.unlock(); err != nil {
		return err
	}
	return r.done(c, s.sequence(), s)
}

// finishLog finishes the commit of a client that does not go on: it is fenced
// off, or is the worker itself. So the record cannot change, and one that is not
// whole is damage.
func (r *repairer) finishLog(c rdma.ClientID, s state) error {
	if s.phase() != phaseDoing {
		return nil
	}
	whole, err := r.readLog(c, s)
	if err != nil {
		return err
	}
	if whole {
		return r.finishRecord(c, s)
	}
	return fmt.Errorf("client %d committed its transaction %d, and has no log of it at %v: %w", c, s.sequence(),
		r.log(c), client.ErrDamaged)
}
