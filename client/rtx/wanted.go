package rtx

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// A lock is taken by whichever transaction comes first when it is free. Where many clients change
// one object, and share few processors, one of them may come too late for as long as its whole time
// lasts. So a transaction that has waited for a part of its time is late. It makes the lock that it
// meets wanted, by a CAS that changes one bit of its holder's word. The bit stays when the lock is
// released: then only a transaction that is late takes it, at once. The one that does leaves the
// lock wanted, since others may be late, too; one that is not late takes the lock when it has
// stayed free for a moment, and leaves it as any other.
//
// The bit says which client comes next, and never which one holds: owner and sequence are those of
// the holder, and a word with the bit comes back as little as one without. A holder whose CAS meets
// the bit does it once more. Where it does not, or dies, the lock is one that others release, on
// sight or behind its lease. Nothing is posted for the bit where no client is late.

// late reports whether a transaction has waited for long: see Options.Late.
func (w *Worker) late() bool { return w.left() < w.opt.Timeout-w.opt.Late }

// want makes a lock wanted that another client holds. Where that lets go meanwhile nothing changes.
func (w *Worker) want(at rdma.Addr, k Lock) error {
	_, ok, err := w.swap(stepAwait, at, uint64(k), uint64(k|lockWanted))
	if ok {
		w.stats.Wanted++
	}
	return err
}

// mayLock reports whether the worker's transaction may lock an object whose lock is as it says.
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

// lapseShare: a lock that is wanted is not kept for transactions that are late behind a part of a
// lease, one of so many: two of the longest pauses between their looks.
const lapseShare = 8

func (w *Worker) lapse() time.Duration { return w.opt.Drift / lapseShare }

// inPlaceOf is the word of a lock of the worker's transaction where it takes the place of another
// one.
func (w *Worker) inPlaceOf(before, k Lock) Lock {
	if w.late() {
		return k | before&lockWanted
	}
	return k
}

// yield ends the attempt where an object that is to be locked is another transaction's to lock
// next.
func (tx *Tx) yield() error {
	for i := range tx.objects {
		o := &tx.objects[i]
		if o.change != unchanged && o.lock == 0 && !o.created && !tx.w.mayLock(o.at, o.seen.Lock) {
			return tx.conflict(o, true)
		}
	}
	return nil
}

// lockWanted gives objects the lock with a log whose locks, which were taken early, have become
// wanted since.
func (tx *Tx) lockWanted(lock Lock) error {
	w := tx.w
	b := w.ep.Batch()
	defer w.drop(b)
	early := func(o *object) bool { return o.change != unchanged && o.lock.Alone() }
	for i := range tx.objects {
		if o := &tx.objects[i]; early(o) {
			b.CompareSwap(o.at, uint64(o.lock), uint64(lock|o.lock&lockWanted))
		}
	}
	err := w.do(stepLock, b)
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

// releaseWanted releases the locks that a batch of releases has found wanted. Once is enough: a
// lock that is wanted becomes nothing else while it is held.
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
	w.flying = append(w.flying, b)
}
