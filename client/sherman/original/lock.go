package original

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// lockWord is what a lock holds: the client that has it, what the client is about
// to do, and to which node. So an error can name the client, and a recovery can
// repair what it has left half done. 0: no client has the lock. From the top:
//
//	16  client
//	 4  operation
//	 4  kind of the slot that an UPDATE writes
//	 8  a number of the client's, so that a word does not come back soon
//	32  number of the node
type lockWord uint64

// operation is what a client does to the node that it has locked.
type operation uint8

const (
	// opInsert writes a free slot, and may split the leaf.
	opInsert operation = iota + 1
	// opUpdate writes a slot that is used.
	opUpdate
	// opDelete frees a slot.
	opDelete
	// opAdopt writes an internal node.
	opAdopt
	// opMend looks at the node.
	opMend
)

// makeLock returns the word by which a client locks a node.
func makeLock(c rdma.ClientID, op operation, kind int, seq uint8, r ref) lockWord {
	return lockWord(c)<<48 | lockWord(op)<<44 | lockWord(kind)<<40 | lockWord(seq)<<32 | lockWord(uint32(r.index()))
}

// client returns the client that has the lock.
func (w lockWord) client() rdma.ClientID { return rdma.ClientID(w >> 48) }
func (w lockWord) op() operation         { return operation(w>>44) & 15 }
func (w lockWord) kind() int             { return int(w>>40) & 15 }

// index returns the index of the node in the arena of its memory node.
func (w lockWord) index() int { return int(uint32(w)) }

// held is the lock that a worker has.
type held struct {
	// r is the node, and at the address of its lock, which other nodes may share.
	r  ref
	at rdma.Addr
	// word is what the worker has put there, or was about to.
	word lockWord
	// sent: the node may have been written.
	sent bool
	// image is the node as it was read. It lies in batch.
	image []byte
	// batch is released by forget.
	batch *rdma.Batch
}

// locker locks nodes, one at a time, and writes them back. It settles what a failure in between
// has left.
type locker struct {
	*session
	*tree
	*memory
	turns Turns
	// turn is the worker's place in a line of local waiters.
	turn Waiter
	// seq makes successive lock words of the worker differ.
	seq uint8
	// held is the lock that the worker has. A worker has one lock at a time.
	held held
	// key is that of a write; it is the caller's.
	key []byte
	// kind is that of the slot that an UPDATE writes, and word its value's word.
	kind int
	word uint64
	// fresh is what the operation has taken from the client's memory.
	fresh fresh
	// unresolved is what a failure has left: see settle.go. While it is open the worker
	// does nothing else.
	unresolved unresolvedWrite
	// releasing is a batch of releaseUnclaimed that may be in flight; nil: none is.
	releasing *rdma.Batch
	// pending are separators of splits that parents do not have yet, in the order
	// of the splits: a parent is there before its own separator is due.
	pending []separator
}

const (
	// firstPause and lastPause are of a worker that does not get a lock. The
	// paper's client tries again at once, which takes a round trip.
	firstPause = time.Microsecond
	lastPause  = 256 * time.Microsecond
	// turnPause is of a worker that waits for its turn, for each worker ahead: a
	// turn takes some round trips. Where trips take long, as over TCP, the pause is
	// one part of pausesATrip of the worker's last one: to look takes the processor
	// from the workers ahead.
	turnPause   = 2 * time.Microsecond
	pausesATrip = 4
	// mostAhead bounds the turns that a worker sleeps for before it looks again.
	mostAhead = 64
)

// forLocks is the pause between tries for a lock.
var forLocks = kit.Spread(firstPause/2, kit.Doubling(firstPause, lastPause))

// lock locks a node and reads it. The result is valid until unlock or writeBack.
//
//	1  wait for the turn in the process, so that one of its workers contends
//	2  CAS the lock: free -> mine; handed over: its holder's -> mine, with 3
//	3  READ the node
//
// The READ of 3 comes behind the CAS, in a trip of its own, so it shows what the
// last holder has written. A crash behind 2 leaves the lock, and the node as it
// was.
//
// The node may have been split since it was found: the caller looks at the
// fences.
func (k *locker) lock(r ref, op operation, kind int) ([]byte, error) {
	// Successive lock words of a client differ, so a CAS that lands late does not
	// take a later lock for an earlier one.
	k.seq++
	h := &k.held
	*h = held{r: r, at: k.lockAt(r), word: makeLock(k.id, op, kind, k.seq, r)}
	k.turns.Join(&k.turn, uint64(h.at))
	// A lock that was handed over names another worker of the process. That
	// worker has nothing in flight to the node.
	handed, err := k.awaitTurn()
	if err == nil && handed != 0 {
		var ok bool
		if ok, err = k.takeOver(handed); err == nil && ok {
			return h.image, nil
		}
	}
	if err == nil {
		err = k.contend()
	}
	if err == nil {
		if h.batch, h.image, err = k.read(stepReadLocked, k.trees.at(r), k.nodeBytes); err != nil {
			// The lock is the worker's, and nothing is in flight: it only has to
			// be released.
			k.keepUnresolved(nil)
		}
	}
	if err != nil {
		k.turns.Leave(&k.turn, 0)
		// The worker ahead may have handed the lock over when this one gave up. Behind another
		// failure settle does it.
		if !k.unresolved.open {
			_ = k.releaseUnclaimed()
		}
		return nil, fmt.Errorf("lock node %v: %w", r, err)
	}
	return h.image, nil
}

// awaitTurn waits until no worker of the process is ahead. It returns the word by
// which the lock was handed over; 0: it was not.
func (k *locker) awaitTurn() (lockWord, error) {
	pause := max(k.trip/pausesATrip, turnPause)
	for {
		n, word := k.turns.Ahead(&k.turn)
		// It is the worker's turn.
		if n == 0 {
			return lockWord(word), nil
		}
		if k.over() {
			return 0, fmt.Errorf("%d workers of this process are ahead: %w", n, rdma.ErrTimeout)
		}
		// The pause is what the workers ahead need, about. A long one would outlast
		// their turns when they go on at last, and leave the lock idle.
		k.stats.Turns++
		ahead := time.Duration(min(n, mostAhead))
		k.ep.Sleep(min(ahead*pause, max(ahead*turnPause, lastPause)))
	}
}

// takeOver makes a lock that was handed over the worker's own, and reads the
// node, in one trip. The READ may pass the CAS, as no other process has the lock.
// It returns false if the lock was not there any more because its holder was
// recovered.
//
// The lock always names the client of which verbs may be in flight. A crash
// before the CAS leaves the lock to the worker that handed it over, which has
// nothing in flight; behind the CAS it is this worker's. After a failure before
// the CAS its word stays in the line, for the next worker that wants the lock, and
// for releaseUnclaimed.
func (k *locker) takeOver(from lockWord) (bool, error) {
	h := &k.held
	b := k.ep.Batch()
	cas := b.CompareSwap(h.at, uint64(from), uint64(h.word))
	read := b.Read(k.trees.at(h.r), k.nodeBytes)
	if err := k.do(stepLock, b); err != nil {
		return false, k.failed(b, err)
	}
	// From here on the lock, if it is the worker's, has its own word.
	k.turns.Forget(uint64(h.at), uint64(from))
	if !cas.Swapped() {
		b.Release()
		return false, nil
	}
	k.stats.HandOvers++
	h.batch, h.image = b, read.Buf
	return true, nil
}

// contend takes a lock by CAS, until it is free or the time is over. If the
// outcome of a CAS is unknown, that is settled before the next try.
func (k *locker) contend() error {
	h := &k.held
	for r := k.pace; ; {
		b := k.ep.Batch()
		cas := b.CompareSwap(h.at, 0, uint64(h.word))
		if err := k.do(stepLock, b); err != nil {
			// The CAS may have taken the lock, which settle releases. Then the
			// worker tries again.
			if err := k.failed(b, err); !k.rejoin(err) || k.settle() != nil {
				return err
			}
			continue
		}
		// The word names the client that has the lock, for the error.
		met := lockWord(cas.Result)
		b.Release()
		if cas.Swapped() {
			return nil
		}
		k.stats.Waits++
		if !r.Again() {
			return met.blocked()
		}
	}
}

// blocked is the error of an operation that has waited for another client in
// vain.
func (w lockWord) blocked() error {
	return fmt.Errorf("client %d has the lock: if it died, `farkv recover` releases it: %w", w.client(),
		rdma.ErrTimeout)
}

// unlock releases the lock, or hands it over. Nothing was written.
func (k *locker) unlock() error {
	h := &k.held
	k.forget()
	// Nothing of the worker is in flight, so the next one in line may write the
	// node.
	if k.turns.HandsOver(&k.turn) && k.turns.Leave(&k.turn, uint64(h.word)) {
		return nil
	}
	err := k.release()
	// A failure has left the line already.
	if k.turn.line != nil {
		k.turns.Leave(&k.turn, 0)
	}
	return err
}

// release releases the lock. If the outcome is unknown, that is unresolved.
func (k *locker) release() error {
	h := &k.held
	b := k.ep.Batch()
	cas := b.CompareSwap(h.at, uint64(h.word), 0)
	if err := k.do(stepRelease, b); err != nil {
		return fmt.Errorf("release node %v: %w", h.r, k.failed(b, err))
	}
	defer b.Release()
	return k.released(cas)
}

// releaseUnclaimed releases the locks that were handed over to workers which failed
// before they made them their own, if no other worker of the process waits for
// them. Nothing is written under such a lock, and the CAS expects the word by which
// it was handed over. So it does no harm if another worker takes the lock over
// meanwhile, or if it lands late, as long as that word does not come back: see README.md.
// One that was not answered in time is waited for first.
func (k *locker) releaseUnclaimed() error {
	if err := k.landed(&k.releasing); err != nil {
		return fmt.Errorf("release a lock that was handed over: %w", err)
	}
	for {
		at, word := k.turns.Unclaimed()
		if word == 0 {
			return nil
		}
		b := k.ep.Batch()
		b.CompareSwap(rdma.Addr(at), word, 0)
		if err := k.do(stepRelease, b); err != nil {
			if k.sent {
				k.releasing = b
			} else {
				b.Release()
			}
			return fmt.Errorf("release a lock that was handed over: %w", err)
		}
		b.Release()
		k.turns.Forget(at, word)
	}
}

// forget releases the buffer of the node that was read.
func (k *locker) forget() {
	if h := &k.held; h.batch != nil {
		h.batch.Release()
		h.batch, h.image = nil, nil
	}
}

// released looks at a CAS that has released the lock. Only a recovery, which
// fences the client off first, releases a lock of another client.
func (k *locker) released(cas *rdma.Op) error {
	if !cas.Swapped() {
		return fmt.Errorf("lock at %v of node %v is %#x: another client released it: %w", k.held.at, k.held.r,
			cas.Result, errStolen)
	}
	return nil
}

// writeBack posts the writes to the node that is locked, and the release of the
// lock, in one doorbell (section 4.5). The queue pair executes them in order, so
// a client that takes the lock next sees what was written. If a worker of the
// process waits it is handed the lock instead, when the writes are complete.
//
// A crash leaves the first of the writes, any words of the next one, and the
// lock; or all of them, without the lock.
func (k *locker) writeBack(b *rdma.Batch) error {
	h := &k.held
	// This is decided before the writes are posted, since the release goes out
	// with them.
	hands := k.turns.HandsOver(&k.turn)
	var cas *rdma.Op
	if !hands {
		cas = b.CompareSwap(h.at, uint64(h.word), 0)
	}
	// From here on the node may have been written, which settle has to find out.
	h.sent = true
	err := k.do(stepWriteBack, b)
	if err != nil {
		err = k.failed(b, err)
		k.forget()
		k.turns.Leave(&k.turn, 0)
		return err
	}
	defer b.Release()
	k.forget()
	// The writes are complete: the tree names what is new, and does not name what
	// was replaced.
	k.used(&k.fresh)
	h.sent = false
	switch {
	case !hands:
		k.turns.Leave(&k.turn, 0)
		return k.released(cas)
	case k.turns.Leave(&k.turn, uint64(h.word)):
		return nil
	}
	// The worker that was to get the lock has given up.
	if err := k.release(); err != nil && k.settle() != nil {
		return fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	return nil
}
