package rtx

import "github.com/farkv/farkv/node/rdma"

// release is the CAS that releases a lock. It may be done again, also where it has landed: no
// later lock has the word that it expects.
type release struct {
	at   rdma.Addr
	lock Lock
}

// mostFailed bounds the releases that a worker does again when it closes. Locks of earlier ones
// have met other clients since, or are released by one behind their lease.
const mostFailed = 64

// abort releases the locks of an attempt that is not committed, and gives back
// what it has taken.
func (tx *Tx) abort() {
	tx.w.letGo(stepLetGo, tx.objects)
	tx.settled(false)
}

// letGo releases locks in the background. The CASes may land at any time, since
// no later lock has a word that they expect. A crash behind it, or an error,
// leaves locks of a transaction that is over, or of one in INIT. Other clients
// release what they meet.
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

// reap releases batches of releases that have landed.
func (w *Worker) reap() {
	list := w.releases
	w.releases = w.releases[:0]
	for _, b := range list {
		if b.Finished() {
			w.landed(b)
			continue
		}
		w.releases = append(w.releases, b)
	}
}

// landed ends a batch of releases of which nothing is in flight any more.
func (w *Worker) landed(b *rdma.Batch) {
	w.noteFailed(b)
	w.releaseWanted(b)
	b.Release()
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

// noteFailed notes the releases of a batch that may not have landed.
func (w *Worker) noteFailed(b *rdma.Batch) {
	for i := range b.Len() {
		if op := b.Op(i); op.Err != nil {
			w.failed = append(w.failed, release{op.Addr, Lock(op.Expect)})
		}
	}
	w.failed = w.failed[max(len(w.failed)-mostFailed, 0):]
}

// releaseFailed does once more what noteFailed has noted, when nothing is in flight. A worker that
// goes on meets its own locks; one that closes leaves none on nodes that answer. Elsewhere other
// clients release them behind their lease.
func (w *Worker) releaseFailed() {
	for err := w.tryFailed(); w.rejoin(err); {
		err = w.tryFailed()
	}
	w.failed = nil
}

func (w *Worker) tryFailed() error {
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for _, r := range w.failed {
		// The lock may have become wanted since.
		b.CompareSwap(r.at, uint64(r.lock), uint64(r.lock.released()))
		if !r.lock.Wanted() {
			b.CompareSwap(r.at, uint64(r.lock|lockWanted), uint64((r.lock | lockWanted).released()))
		}
	}
	return w.trips.DoWhereLeft(stepFreeLock, b, w.view)
}
