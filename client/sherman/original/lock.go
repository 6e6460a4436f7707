package original

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// lockWord is what a lock holds: the client that has it, what it is about to do, and to which node.
// So an error can name the client, and what it left half done can be repaired. 0: no client has it.
//
//	48  client
//	44  operation
//	40  kind of the slot that an update writes
//	32  a number of the client's, so that a word does not come back soon
//	 0  number of the node
type lockWord uint64

type operation uint8

// What a client does to the node that it has locked.
const (
	opInsert operation = iota + 1 // writes a free slot, and may split the leaf
	opUpdate                      // writes a slot that is used
	opDelete                      // frees one
	opAdopt                       // writes an internal node
	opMend                        // looks at the node
)

func makeLock(c rdma.ClientID, op operation, kind int, seq uint8, r ref) lockWord {
	return lockWord(c)<<48 | lockWord(op)<<44 | lockWord(kind)<<40 | lockWord(seq)<<32 | lockWord(uint32(r.index()))
}
func (w lockWord) client() rdma.ClientID { return rdma.ClientID(w >> 48) }
func (w lockWord) op() operation         { return operation(w>>44) & 15 }
func (w lockWord) kind() int             { return int(w>>40) & 15 }
func (w lockWord) index() int            { return int(uint32(w)) }

// held is the lock that a worker has.
type held struct {
	r     ref
	at    rdma.Addr
	word  lockWord
	from  lockWord // by which it was handed over, unless that is known to be over; 0: it was not
	sent  bool     // the node may have been written
	image []byte   // the node, as it was read
	batch *rdma.Batch
}

// Pauses of a worker that does not get a lock: the paper's tries again at once, which is a round
// trip. And of one that waits for its turn: a turn takes some round trips.
const (
	firstPause = time.Microsecond
	lastPause  = 256 * time.Microsecond
	turnPause  = 2 * time.Microsecond
	mostAhead  = 64 // turns that a worker sleeps for at most before it looks again
)

var forLocks = kit.Spread(firstPause/2, kit.Doubling(firstPause, lastPause))

// lock locks a node and reads it. What it returns points into memory that is there until unlock.
//
// A crash behind the CAS leaves the lock, and a node that is as it was.
func (s *Store) lock(r ref, op operation, kind int) ([]byte, error) {
	s.seq++
	h := &s.held
	*h = held{r: r, at: s.lockAt(r), word: makeLock(s.id, op, kind, s.seq, r)}
	s.turns.Join(&s.turn, uint64(h.at))
	handed, err := s.awaitTurn()
	if err == nil && handed != 0 {
		var ok bool
		if ok, err = s.takeOver(handed); err == nil && ok {
			return h.image, nil
		}
	}
	if err == nil {
		err = s.contend()
	}
	if err == nil {
		if h.batch, h.image, err = s.read(stepReadLocked, s.trees.at(r), s.nodeBytes); err != nil {
			s.owe(nil)
		}
	}
	if err != nil {
		s.turns.Leave(&s.turn, 0)
		return nil, fmt.Errorf("lock node %v: %w", r, err)
	}
	return h.image, nil
}

// awaitTurn waits until no worker of the process is ahead. It returns the word that the lock was
// handed over with.
func (s *Store) awaitTurn() (lockWord, error) {
	for {
		n, word := s.turns.Ahead(&s.turn)
		if n == 0 {
			return lockWord(word), nil
		}
		if s.over() {
			return 0, fmt.Errorf("%d workers of this process are ahead: %w", n, rdma.ErrTimeout)
		}
		s.stats.Turns++
		s.ep.Sleep(time.Duration(min(n, mostAhead)) * turnPause)
	}
}

// takeOver makes a lock that was handed over the worker's own, and reads the node with it, in one
// trip: the READ may pass the CAS, as no other process has the lock. false: it was not there any
// more, as its holder was recovered.
//
// The lock names whose verbs may be in flight, always: a crash in front of the CAS leaves it to the
// one that handed it over, which has nothing in flight, and behind it to this one.
func (s *Store) takeOver(from lockWord) (bool, error) {
	h := &s.held
	h.from = from
	b := s.ep.Batch()
	cas := b.CompareSwap(h.at, uint64(from), uint64(h.word))
	read := b.Read(s.trees.at(h.r), s.nodeBytes)
	if err := s.do(stepLock, b); err != nil {
		return false, s.failed(b, err)
	}
	h.from = 0
	if !cas.Swapped() {
		b.Release()
		return false, nil
	}
	s.stats.HandOvers++
	h.batch, h.image = b, read.Buf
	return true, nil
}

// contend takes a lock by CAS.
func (s *Store) contend() error {
	h := &s.held
	for r := s.pace; ; {
		b := s.ep.Batch()
		cas := b.CompareSwap(h.at, 0, uint64(h.word))
		if err := s.do(stepLock, b); err != nil {
			if err := s.failed(b, err); !s.rejoin(err) || s.settle() != nil {
				return err
			}
			continue
		}
		met := lockWord(cas.Result)
		b.Release()
		if cas.Swapped() {
			return nil
		}
		s.stats.Waits++
		if !r.Again() {
			return s.blocked(met)
		}
	}
}

// blocked is the error of an operation that waits for another client in vain.
func (s *Store) blocked(by lockWord) error {
	return fmt.Errorf("client %d has the lock: if it died, `farkv recover` releases it: %w", by.client(),
		rdma.ErrTimeout)
}

// unlock releases the lock, or hands it over, with nothing written.
func (s *Store) unlock() error {
	h := &s.held
	s.forget()
	if s.turns.HandsOver(&s.turn) && s.turns.Leave(&s.turn, uint64(h.word)) {
		return nil
	}
	err := s.release()
	if s.turn.line != nil {
		s.turns.Leave(&s.turn, 0)
	}
	return err
}

// release releases the lock.
func (s *Store) release() error {
	h := &s.held
	b := s.ep.Batch()
	cas := b.CompareSwap(h.at, uint64(h.word), 0)
	if err := s.do(stepRelease, b); err != nil {
		return fmt.Errorf("release node %v: %w", h.r, s.failed(b, err))
	}
	defer b.Release()
	return s.released(cas)
}

// forget gives up the node that was read.
func (s *Store) forget() {
	if h := &s.held; h.batch != nil {
		h.batch.Release()
		h.batch, h.image = nil, nil
	}
}

// released looks at a CAS that has released the lock.
func (s *Store) released(cas *rdma.Op) error {
	if !cas.Swapped() {
		return fmt.Errorf("lock at %v of node %v is %#x: another client released it: %w", s.held.at, s.held.r,
			cas.Result, errStolen)
	}
	return nil
}

// writeBack posts what was written to the node that is locked, and its release, in one doorbell
// (section 4.5): the queue pair executes them in order, so that a client that takes the lock next
// sees what was written. A worker of the process that waits is handed the lock instead.
//
// A crash leaves a part of what was written, in order, of the last WRITE any words, and the lock;
// or all, without it.
func (s *Store) writeBack(b *rdma.Batch) error {
	h := &s.held
	hands := s.turns.HandsOver(&s.turn)
	var cas *rdma.Op
	if !hands {
		cas = b.CompareSwap(h.at, uint64(h.word), 0)
	}
	h.sent = true
	err := s.do(stepWriteBack, b)
	if err != nil {
		err = s.failed(b, err)
		s.forget()
		s.turns.Leave(&s.turn, 0)
		return err
	}
	defer b.Release()
	s.forget()
	s.used(&s.fresh)
	h.sent = false
	switch {
	case !hands:
		s.turns.Leave(&s.turn, 0)
		return s.released(cas)
	case s.turns.Leave(&s.turn, uint64(h.word)):
		return nil
	}
	if err := s.release(); err != nil && s.settle() != nil { // the one that waited has given up
		return fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	return nil
}
