package rtx

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// A free lock is for whichever transaction comes first. If many clients change
// one object, and share few processors, one of them may come too late for as long
// as its whole time lasts. So a transaction that has waited for a part of its
// time is late. It makes the lock that it meets wanted, by a CAS that changes one
// bit of its holder's word. The bit stays when the lock is released. From then on
// only a late transaction takes the lock, at once. It leaves the lock wanted,
// since other transactions may be late, too. A transaction that is not late takes
// the lock when it has stayed free for a moment, and clears the bit.
//
// The bit says which client comes next, and never which one holds the lock: owner
// and sequence are those of the holder, and a word with the bit comes back as
// little as one without. A holder repeats a CAS that meets the bit. If it does
// not, or dies, other clients release the lock, on sight or after its lease.
// While no client is late nothing is posted for the bit.

// late reports whether a transaction has waited for long: see Options.Late.
func (s *session) late() bool { return s.trips.Left() < s.opt.Timeout-s.opt.Late }

// want makes a lock wanted that another client holds. If the holder releases it
// meanwhile, nothing changes.
func (r *repairer) want(at rdma.Addr, k Lock) error {
	_, ok, err := r.trips.Swap(stepAwait, at, uint64(k), uint64(k|lockWanted))
	if ok {
		r.stats.Wanted++
	}
	return err
}

// mayLock reports whether the worker's transaction may lock an object that has
// the lock k. A wanted lock is left to late transactions for as long as lapse.
func (w *Worker) mayLock(at rdma.Addr, k Lock) bool {
	switch v := &w.watch; {
	case k.Held():
		return false
	case !k.Wanted() || w.late():
		return true
	default:
		return v.at == at && v.lock == k && v.still >= w.lapse()
	}
}

// lapseShare is the part of Drift for which a wanted lock is left to late
// transactions: one of so many. It is twice the longest pause between their
// looks.
const lapseShare = 8

// lapse is that time.
func (s *session) lapse() time.Duration { return s.opt.Drift / lapseShare }

// inPlaceOf returns the word of a lock k of the worker's transaction when it
// replaces the word before. A late transaction keeps the wanted bit, for other
// late ones.
func (w *Worker) inPlaceOf(before, k Lock) Lock {
	if w.late() {
		return k | before&lockWanted
	}
	return k
}

// yield ends the attempt if an object that is to be locked is another
// transaction's to lock next.
func (tx *Tx) yield() error {
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change != unchanged && o.lock == 0 && !o.created && !tx.w.mayLock(o.at, o.seen.Lock) {
			return tx.conflict(o, true)
		}
	}
	return nil
}

// lockWanted gives the lock with a log to objects for which the early lock has
// become wanted since. Their CAS in lockAll failed for that reason only. One more
// try is enough: a wanted lock becomes nothing else while it is held.
func (tx *Tx) lockWanted(lock Lock) error {
	w := tx.w
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	early := func(o *object) bool { return o.change != unchanged && o.lock.Alone() }
	for i := range tx.objects {
		if o := &tx.objects[i]; early(o) {
			b.CompareSwap(o.at, uint64(o.lock), uint64(lock|o.lock&lockWanted))
		}
	}
	err := w.trips.Do(stepLock, b)
	at := 0
	for i := range tx.objects {
		o := &tx.objects[i]
		if !early(o) {
			continue
		}
		switch cas := b.Op(at); {
		case err != nil:
			tx.unsure(o, Lock(cas.Value), cas, b)
		case cas.Swapped():
			o.lock = Lock(cas.Value)
		default:
			o.lock = 0
			w.stats.Lost++
			_ = tx.conflict(o, true)
		}
		at++
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return tx.err
}

// releaseWanted releases the locks that a batch of releases has found wanted.
// Once is enough: a wanted lock becomes nothing else while it is held. Nothing
// waits for these CASes; without them other clients release the locks.
func (w *Worker) releaseWanted(was *rdma.Batch) {
	var b *rdma.Batch
	for i := range was.Len() {
		op := was.Op(i)
		if now := Lock(op.Result); op.Err == nil && Lock(op.Expect).became(now) {
			if b == nil {
				b = w.ep.Batch()
			}
			b.CompareSwap(op.Addr, uint64(now), uint64(now.released()))
		}
	}
	if b == nil {
		return
	}
	if err := w.ep.Post(b.As(stepLetGo)); err != nil {
		b.Release()
		return
	}
	w.trips.InFlight = append(w.trips.InFlight, b)
}
