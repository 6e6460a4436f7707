package rtx

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// watch is the lock that a worker waits for, with the state of its holder's log, and for how long
// both have been what they are, on the worker's own clock, whatever that shows (section 4.1,
// without its common clock). It lasts from one attempt of a transaction to the next.
type watch struct {
	at    rdma.Addr
	lock  Lock
	state state
	last  time.Duration // when they were seen so last
	still time.Duration
	looks int
	use   Pointer // behind the second look
}

// gapShares is into how many parts a lease falls. A look that comes later than a part behind the
// one before counts as one part: the worker may have stood still, or its clock was set.
const gapShares = 3

// see tells for how long the lock and the state have been what they are.
func (v *watch) see(at rdma.Addr, k Lock, s state, now, lease time.Duration) time.Duration {
	if v.at != at || v.lock != k || v.state != s {
		*v = watch{at: at, lock: k, state: s, last: now}
		return 0
	}
	v.still += min(max(now-v.last, 0), lease/gapShares)
	v.last = now
	return v.still
}

// moved reports whether the holder has swapped the pointer since, of which a lock with no log has
// nothing left to do but to release it. The READ that saw the lock first may have the pointer of
// before; a later one has that of the lock. Steals do not count: a late repair of an earlier
// holder's may add one.
func (v *watch) moved(p Pointer) bool {
	if v.looks++; v.looks == 2 {
		v.use = p.use()
	}
	return v.looks > 2 && v.use != p.use()
}

// waits paces the looks at a lock: about what a transaction takes at first, and then as long as
// does not delay a repair by much.
func waits(w *Worker) kit.Retry {
	most := w.opt.Drift / 16
	return kit.Retry{Env: w.ep, Pause: kit.Doubling(min(time.Microsecond, most), most), Over: w.over}
}

// Await returns when an object is not locked. It repairs what a client has left that is suspected:
// its lock, and the word of its log, stayed as they are for the lease. Locks of transactions that
// are over it releases at once. It is not called by a closure that Run runs: its transaction waits
// by itself.
func (w *Worker) Await(r Ref) error {
	w.begin()
	_, err := w.await(r, false)
	return err
}

// await returns an object's metadata when it is not locked; lock: and the worker's transaction may
// lock it.
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
			owner = w.owner(m.Lock) // the next look reads its state, too
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
			if w.over() {
				return m, errTime
			}
			continue
		}
		if lock && !m.Lock.Wanted() && w.late() {
			if err := w.want(at, m.Lock); err != nil {
				return m, fmt.Errorf("await %v: %w", r, err)
			}
		}
		// another client has it, which is at work: a client that waits for long looks as often as a new one
		if still == 0 {
			p = w.waits
		}
		if !p.Again() {
			return m, errTime
		}
	}
}

// look reads an object's metadata and the word of a client's log, if there is a client.
func (w *Worker) look(at rdma.Addr, c rdma.ClientID) (m Meta, s state, err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	meta := b.Read(at, MetaBytes)
	if c != 0 {
		b.Read(w.log(c).Add(stateAt), 8)
	}
	if err := w.do(stepAwait, b); err != nil {
		return m, s, err
	}
	if c != 0 {
		s = state(b.Op(1).Word(0))
	}
	return MetaOf(meta.Buf), s, nil
}

// freeOwn releases a lock of an earlier transaction of the worker's own, or of an earlier attempt.
func (w *Worker) freeOwn(at rdma.Addr, k Lock) error {
	if err := w.settle(); err != nil {
		return err
	}
	return w.free(at, k)
}

// free releases a lock of a transaction that is over.
func (w *Worker) free(at rdma.Addr, k Lock) error {
	_, ok, err := w.swap(stepFreeLock, at, uint64(k), uint64(k.released()))
	if ok {
		w.stats.Freed++
	}
	return err
}

// repair does one step for a transaction that is over, or whose client is suspected (Figure 10).
// Any number of clients may do so at a time, and the suspected one may go on: what it does then
// fails, or was done by others.
//
//	INIT: the log's word is of an earlier transaction     ABORT; all other locks of the transaction are then released on sight
//	ABORT, and no log (OPT1)                              change the pointer, so that the client's own CAS fails, then release
//	DOING                                                 finish it
//	ABORT or DONE, or the word is of a later transaction  release the lock: it landed late, or was left
func (w *Worker) repair(at rdma.Addr, m Meta, s state) error {
	c, sequence := w.owner(m.Lock), w.sequence(m.Lock)
	if s.sequence() < sequence {
		if s.phase() == phaseDoing { // no client begins another transaction before that one is DONE
			return fmt.Errorf("client %d is in transaction %d, and %d is not done: %w", c, sequence, s.sequence(),
				client.ErrDamaged)
		}
		aborted := makeState(phaseAbort, sequence)
		_, ok, err := w.swap(stepAbort, w.log(c).Add(stateAt), uint64(s), uint64(aborted))
		if err != nil || !ok { // it moves, or was aborted by others: look again
			return err
		}
		w.stats.Aborted++
		s = aborted
	}
	switch current := s.sequence() == sequence; {
	case current && s.phase() == phaseAbort && m.Lock.Alone():
		return w.steal(at, m)
	case current && s.phase() == phaseDoing && !m.Lock.Alone(): // alone: it was locked early, and not changed
		_, err := w.takeOver(c, s)
		return err
	}
	return w.free(at, m.Lock)
}

// steal is the repair of OPT1: the pointer gets another count of steals, in place of the paper's
// copy of the data. If the suspected client's CAS came first the object has its data, and else its
// CAS fails now.
func (w *Worker) steal(at rdma.Addr, m Meta) error {
	p, ok := m.Pointer.stolen()
	if !ok { // until the client is recovered
		w.ep.Sleep(w.opt.Drift / 16)
		return nil
	}
	_, ok, err := w.swap(stepSteal, at.Add(8), uint64(m.Pointer), uint64(p))
	if err != nil || !ok { // the pointer has moved: look again
		return err
	}
	w.stats.Stolen++
	return w.free(at, m.Lock)
}

// takeOver finishes the commit of a suspected client, unless another repair was faster to begin.
func (w *Worker) takeOver(c rdma.ClientID, s state) (bool, error) {
	whole, err := w.readLog(c, s)
	if err != nil || !whole {
		return false, err
	}
	_, first, err := w.swap(stepTakeOver, w.log(c).Add(stateAt), uint64(s), uint64(s.takenOver()))
	if err != nil || !first {
		return false, err
	}
	w.stats.Finished++
	return true, w.finishRecord(c, s.takenOver())
}

// readLog reads the record of a log in DOING; false: the client has gone on meanwhile. The word was
// read before, and is changed behind it: so the record is its transaction's.
func (w *Worker) readLog(c rdma.ClientID, s state) (whole bool, err error) {
	b := w.ep.Batch()
	defer w.drop(b)
	op := w.readRecord(b, c)
	if err := w.do(stepReadLog, b); err != nil {
		return false, fmt.Errorf("read the log of client %d: %w", c, err)
	}
	r := &w.record
	return r.decode(op.Buf) && w.owner(r.lock) == c && w.sequence(r.lock) == s.sequence(), nil
}

// finishRecord commits the transaction of the record that was read last.
func (w *Worker) finishRecord(c rdma.ClientID, s state) error {
	if err := w.swapPointers(w.record.entries); err != nil {
		return err
	}
	if err := w.unlock(&w.record); err != nil {
		return err
	}
	return w.done(c, s.sequence(), s)
}

// finishLog finishes the commit of a client that does not go on: it is fenced off, or the worker
// itself.
func (w *Worker) finishLog(c rdma.ClientID, s state) error {
	if s.phase() != phaseDoing {
		return nil
	}
	whole, err := w.readLog(c, s)
	if err != nil {
		return err
	}
	if whole {
		return w.finishRecord(c, s)
	}
	return fmt.Errorf("client %d committed its transaction %d, and has no log of it at %v: %w", c, s.sequence(),
		w.log(c),
		client.ErrDamaged)
}
