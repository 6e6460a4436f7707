package rcuckoo

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// An operation may fail in the midst: a node does not answer, or the pool's view changes and fences
// off what was in flight. Then the worker's own intent stays as it is, and the shard is dirty.
// Before anything else there, or at once, the worker repairs what it left itself, as others would
// (see repair.go): behind its last verb nothing of the ones before can land, so that it need not be
// fenced off. Then it is known what became of the operation: whether its redo was whole.

// retryable reports whether it makes sense to go on behind an error: others have repaired
// something, the pool's view has changed, or a node does not answer, which may be out of reach for
// a moment.
func (s *Store) retryable(shard int, err error) bool {
	switch {
	case errors.Is(err, rdma.ErrClosed), errors.Is(err, rdma.ErrUnreachable) && s.Replicas == 1:
		return false
	case errors.Is(err, errAgain):
		return true
	case errors.Is(err, rdma.ErrStale):
		return s.view.Join() == nil
	case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrUnreachable):
		return s.reach(shard)
	}
	return false
}

// An operation waits for a node that is out of reach for a share of its timeout: then the shard is
// down.
const (
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// ended looks at what became of the WRITE that ended the last intent. One that was lost leaves
// others to take the worker for one that holds locks.
func (s *Store) ended(wait bool) {
	if s.ending == nil || !s.ending.Finished() && !wait {
		return
	}
	failed := false
	if !s.ending.Finished() {
		err := s.ep.Wait(s.ending, rdma.All, s.each)
		failed = err != nil && !s.ending.Finished()
	}
	failed = failed || s.ending.Err() != nil
	s.ending.Release()
	s.ending = nil
	if st := &s.shards[s.endingIn]; failed && st.seq == s.endingSeq { // else a later intent took its place
		st.dirty = true
		s.deferCleanup(s.endingIn)
	}
}

// deferCleanup notes that an operation is over, and left something in a shard by which it may seem
// to hold others up: an intent, or leases. A worker that does not settle it is fenced off, though
// it goes on elsewhere.
func (s *Store) deferCleanup(shard int) {
	if st := &s.shards[shard]; (st.dirty || len(st.leased) > 0) && !slices.Contains(s.pendingCleanup, shard) {
		s.pendingCleanup, s.nextCleanup = append(s.pendingCleanup, shard), 0
	}
}

// cleanupDue reports whether it is time to settle what earlier operations left: at once, and then a
// few times in a failure timer, as nodes may not answer. Under a busy view, which changes of
// replicas wait for, it holds up no client.
func (s *Store) cleanupDue() bool {
	s.ended(false)
	return len(s.pendingCleanup) > 0 && s.ep.Now() >= s.nextCleanup && !s.waiting()
}

// runCleanup settles what earlier operations left. The worker has no intent but those.
func (s *Store) runCleanup() {
	if !s.cleanupDue() {
		return
	}
	s.abandonPending()
	s = s.briefly()
	for _, shard := range slices.Clone(s.pendingCleanup) {
		if s.settled(shard) == nil {
			s.pendingCleanup = slices.DeleteFunc(s.pendingCleanup, func(o int) bool { return o == shard })
		}
	}
	s.nextCleanup = s.ep.Now() + s.opt.Failure/lookShares
}

// abandonPending gives up what earlier operations left, so that others do not wait while the worker
// settles it, one shard behind the other. Where it does not succeed, it is tried again.
func (s *Store) abandonPending() {
	if !s.cleanupDue() {
		return
	}
	s = s.briefly()
	for _, shard := range s.pendingCleanup {
		if st := &s.shards[shard]; st.dirty && !st.given {
			_, _ = s.abandon(shard)
		}
	}
}

// briefly returns the worker for a share of the time that an operation has, which waits no longer
// for another shard's node.
func (s *Store) briefly() *Store {
	each := s.each / reachShare
	return s.bounded(bound{each, min(s.until, s.ep.Now()+each), s.pulse})
}

// reach waits for a moment; false: it has waited for long enough, or the pool has given all copies
// of the shard up. With replicas the pool goes on when it has given a node up, and that is waited
// for as long as there is time.
func (s *Store) reach(shard int) bool {
	err := s.view.Join()
	switch {
	case err == nil && s.orphan[shard], err != nil && !(s.Replicas > 1 && errors.Is(err, rdma.ErrUnreachable)):
		return false
	case s.Replicas > 1:
		s.ep.Sleep(min(reachPause<<min(s.reaches, 10), max(reachPause, s.each/(joins/2)))) // or it would join too often
		s.reaches++
		return s.left() > 0
	case s.left() < s.each-s.each/reachShare:
		return false
	}
	s.ep.Sleep(reachPause)
	return true
}

// outcome finds out what became of a change that failed. done: it took effect; again: it did not,
// and may begin again.
func (s *Store) outcome(shard int, err error) (done, again bool, _ error) {
	sent := s.locks.sent
	switch {
	case errors.Is(err, errAgain):
		return false, true, err
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrExists), errors.Is(err, client.ErrFull):
		return false, false, err
	case !sent && !s.shards[shard].dirty:
		return false, s.retryable(shard, err), err
	}
	failed := err
	for first := true; (first || s.left() > 0) && s.retryable(shard, failed); first = false {
		var begun bool
		if begun, failed = s.settle(shard); failed == nil {
			return begun && sent, s.left() > 0, fmt.Errorf("it did not happen: %w: %w", rdma.ErrTimeout, err) // if no time is left
		}
	}
	if sent {
		return false, false, fmt.Errorf("nobody knows what became of it: %w: %w", client.ErrUncertain, err)
	}
	switch { // nothing was changed
	case s.left() == 0 && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", errLate, err)
	case errors.Is(failed, rdma.ErrTimeout) && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", failed, err)
	}
	return false, false, err
}

// errLate is what an operation ends with that could not be settled in its time.
var errLate = fmt.Errorf("it could not be settled: %w", rdma.ErrTimeout)

// settled settles a shard that is dirty.
func (s *Store) settled(shard int) error {
	st := &s.shards[shard]
	if err := s.awaitIdleView(); err != nil {
		return err
	}
	if !st.dirty && len(st.leased) == 0 && st.flying == nil {
		return nil
	}
	if _, err := s.settle(shard); err != nil {
		return fmt.Errorf("settle what an earlier operation left in shard %d: %w", shard, err)
	}
	return nil
}

// settle brings the worker's own operation in a shard to its end, or makes sure that it never
// began.
func (s *Store) settle(shard int) (begun bool, err error) {
	if err := s.awaitIdleView(); err != nil {
		return false, err
	}
	err = s.repeat(func() error {
		s.abandonPending()
		begun, err = s.settleOnce(shard)
		return err
	})
	return begun, err
}

// repeat does something again that others were in the way of.
func (s *Store) repeat(f func() error) error {
	for r := s.pace; ; {
		if err := f(); !errors.Is(err, errAgain) {
			return err
		}
		if !r.Again() {
			return errWaited
		}
	}
}

func (s *Store) settleOnce(shard int) (begun bool, err error) {
	st := &s.shards[shard]
	own, err := s.abandon(shard)
	if err != nil {
		return false, err
	}
	st.seq = max(st.seq, own.state>>1) // it is greater where the shard had no leader when the worker opened the store
	words := slices.Clone(st.leased)
	if !idle(own.state) && !own.torn {
		words = own.addWords(words)
	}
	if len(words) > 0 {
		err = s.repair(shard, words)
	}
	if err == nil && own.state>>1 == st.seq {
		_, _, begun, err = s.readRedo(shard, s.leads[shard], s.id, st.seq)
	}
	if err != nil {
		return false, err
	}
	st.dirty, st.given, st.leased = false, false, st.leased[:0]
	return begun, nil
}

// abandon waits until nothing is in flight of the worker's own operation in a shard, and lets
// others bring it to its end.
func (s *Store) abandon(shard int) (own intent, err error) {
	st := &s.shards[shard]
	if st.flying != nil {
		if err := s.ep.Wait(st.flying, rdma.All, s.each); err != nil && !st.flying.Finished() {
			return own, fmt.Errorf("verbs are in flight: %w", err)
		}
		st.flying.Release()
		st.flying = nil
	}
	own, err = s.readIntent(shard, s.id)
	switch {
	case err != nil, idle(own.state):
	case own.torn: // nothing was taken, and its WRITE does not land any more
		err = s.end(shard, s.id, own.state)
	default:
		if own.beat != givenUp { // or it has landed before
			err = s.landed(shard)
		}
		if err == nil {
			err = s.giveUp(shard)
		}
	}
	st.given = err == nil
	return own, err
}

// giveUp lets others bring the worker's own operation to its end. Behind it nothing of that lands
// any more.
func (s *Store) giveUp(shard int) error {
	b := s.ep.Batch()
	b.WriteWord(s.intentAt(shard, s.id).Add(intentBeat), givenUp)
	return s.carry(stepGiveUp, shard, b, "give the worker's own operation in shard %d up", shard)
}

// readIntent reads one client's.
func (s *Store) readIntent(shard int, c rdma.ClientID) (intent, error) {
	b := s.ep.Batch()
	op := b.Read(s.intentAt(shard, c), intentBytes)
	if err := s.do(stepReadIntents, b); err != nil {
		return intent{}, s.unread(shard, b, fmt.Errorf("read the intent of client %d in shard %d: %w", c, shard, err))
	}
	t := decodeIntent(bytes.Clone(op.Buf), shard, c)
	b.Release()
	return t, nil
}

// end ends an intent by which nothing is locked.
func (s *Store) end(shard int, c rdma.ClientID, state uint64) error {
	b := s.ep.Batch()
	b.WriteWord(s.intentAt(shard, c), state|idleBit)
	return s.carry(stepDone, shard, b, "end the intent of client %d in shard %d", c, shard)
}

// readWord reads a word of pool memory.
func (s *Store) readWord(a rdma.Addr) (uint64, error) {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := s.do(stepReadWord, b); err != nil {
		return 0, err
	}
	return le.Uint64(op.Buf), nil
}
