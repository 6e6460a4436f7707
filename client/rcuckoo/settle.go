package rcuckoo

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// An operation may fail before its end: a node does not answer, or the pool's view changes and
// fences off what was in flight. Then the worker's own intent stays as it is, and the shard is
// dirty. The worker repairs what it left, as other clients would (see repair.go), before any
// other operation in the shard. It need not be fenced off: verbs to one node land in order, so
// once its last verb has landed no earlier one can. Then the redo decides the outcome: if it is
// whole the operation took effect, else it did not begin.

// retryable reports whether an operation may go on after an error: other clients have repaired
// something, the pool's view has changed, or a node does not answer and may be unreachable only
// for a moment. It joins the new view, or waits for the node.
func (s *Store) retryable(shard int, err error) bool {
	switch {
	case errors.Is(err, rdma.ErrClosed), errors.Is(err, rdma.ErrUnreachable) && s.table.Replicas == 1:
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

const (
	// reachShare: without replicas, an operation waits for an unreachable node for a quarter of
	// its timeout. Then the shard counts as down.
	reachShare = 4
	// reachPause is the first pause between two tries to reach a node.
	reachPause = 500 * time.Microsecond
)

// ended checks the WRITE that ended the last intent, once it has completed, or waits for it. If
// the WRITE was lost, other clients take the worker for one that holds locks, so the shard is
// dirty and is settled.
func (s *Store) ended(wait bool) {
	if s.ending == nil || !s.ending.Finished() && !wait {
		return
	}
	// A batch that is released while a verb is in flight keeps its memory until the verb has
	// landed.
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

// deferCleanup notes that an operation is over and left an intent or leases in a shard, so that
// other clients may wait for the worker. If the worker did not settle them in time, it would be
// fenced off, though it makes progress in other shards.
func (s *Store) deferCleanup(shard int) {
	if st := &s.shards[shard]; (st.dirty || len(st.leased) > 0) && !slices.Contains(s.pendingCleanup, shard) {
		s.pendingCleanup, s.nextCleanup = append(s.pendingCleanup, shard), 0
	}
}

// cleanupDue reports whether it is time to settle what earlier operations left: at once, and then
// a few times in a failure timer, as nodes may not answer. It is not due under a busy view of a
// pool with replicas: no client changes anything then, so what is left blocks none.
func (s *Store) cleanupDue() bool {
	s.ended(false)
	return len(s.pendingCleanup) > 0 && s.ep.Now() >= s.nextCleanup && !s.waiting()
}

// runCleanup settles what earlier operations left, if it is due. The worker may have no other
// intent: it waits for nodes and repairs here, and would not send heartbeats for that intent.
// What cannot be settled stays pending.
func (s *Store) runCleanup() {
	if !s.cleanupDue() {
		return
	}
	// First all shards are given up, as settling one may take long, and others wait meanwhile.
	s.abandonPending()
	s = s.briefly()
	for _, shard := range slices.Clone(s.pendingCleanup) {
		if s.settled(shard) == nil {
			s.pendingCleanup = slices.DeleteFunc(s.pendingCleanup, func(o int) bool { return o == shard })
		}
	}
	s.nextCleanup = s.ep.Now() + s.opt.Failure/lookShares
}

// abandonPending gives up what earlier operations left, in all shards, so that other clients need
// not wait while the worker settles one shard after the other. A shard where that fails stays
// pending, and is tried again.
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

// briefly returns a Store of the worker with a share of the operation's time, so that another
// shard's node does not delay the operation for longer.
func (s *Store) briefly() *Store {
	each := s.each / reachShare
	return s.bounded(bound{each, min(s.until, s.ep.Now()+each), s.pulse})
}

// reach pauses before the next try to reach a shard's node. false: the operation has waited for
// long enough, or the shard has no copy any more. With replicas the master replaces a dead node,
// so the operation waits for that as long as it has time; the pauses grow, so that it joins the
// view less than joins times.
func (s *Store) reach(shard int) bool {
	err := s.view.Join()
	switch {
	case err == nil && s.table.Orphan[shard], // no copy is left to wait for
		err != nil && !(s.table.Replicas > 1 && errors.Is(err, rdma.ErrUnreachable)):
		return false
	case s.table.Replicas > 1:
		s.ep.Sleep(min(reachPause<<min(s.reaches, 10), max(reachPause, s.each/(joins/2))))
		s.reaches++
		return s.left() > 0
	case s.left() < s.each-s.each/reachShare:
		return false
	}
	s.ep.Sleep(reachPause)
	return true
}

// outcome settles an operation that failed, and so decides its outcome. done: it took effect.
// again: it did not, and may begin again. Neither: the error is the operation's result. It wraps
// client.ErrUncertain only if rows may have been written and the shard cannot be settled in time.
func (s *Store) outcome(shard int, err error) (done, again bool, _ error) {
	sent := s.locks.sent
	switch {
	case errors.Is(err, errAgain):
		return false, true, err
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrExists), errors.Is(err, client.ErrFull):
		return false, false, err // the operation itself has written no row
	case !sent && !s.shards[shard].dirty:
		return false, s.retryable(shard, err), err
	}
	// With or without rows written: an intent may have landed, and other clients may wait for it.
	failed := err
	for first := true; (first || s.left() > 0) && s.retryable(shard, failed); first = false {
		var begun bool
		if begun, failed = s.settle(shard); failed == nil {
			// The error counts only if no time is left.
			return begun && sent, s.left() > 0, fmt.Errorf("write not applied: %w: %w", rdma.ErrTimeout, err)
		}
	}
	if sent {
		return false, false, fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	switch { // nothing was changed
	case s.left() == 0 && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", errLate, err)
	case errors.Is(failed, rdma.ErrTimeout) && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", failed, err)
	}
	return false, false, err
}

// errLate is the error of an operation that changed nothing, and could not be settled in its time.
var errLate = fmt.Errorf("it could not be settled: %w", rdma.ErrTimeout)

// settled returns when nothing of an earlier operation is left in a shard, so that a new one may
// begin there.
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

// settle completes the worker's own operation in a shard, or makes sure that it never begins.
// begun: it took effect.
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

// repeat calls f until its error does not wrap errAgain, with pauses, as long as there is time.
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

// settleOnce is one try of settle. First no verb of the operation may land any more (abandon).
// Then the words that the intent names, and those of an interrupted repair, are repaired. At last
// the redo says whether the operation had begun, if the intent has its sequence. If not, not even
// the intent landed, and so no redo behind it.
func (s *Store) settleOnce(shard int) (begun bool, err error) {
	st := &s.shards[shard]
	own, err := s.abandon(shard)
	if err != nil {
		return false, err
	}
	st.seq = max(st.seq, own.State>>1) // the intent's may be greater: the shard may have had no leader at open
	words := slices.Clone(st.leased)
	if !table.Idle(own.State) && !own.Torn {
		words = own.AddWords(words)
	}
	// The worker is a suspect of its own repair. If another client has repaired the words, there
	// is nothing left to do.
	if len(words) > 0 {
		err = s.repair(shard, words)
	}
	// The leader has the redo if any copy had: repair writes the leader's copy, too (C4).
	if err == nil && own.State>>1 == st.seq {
		_, _, begun, err = s.readRedo(shard, s.table.Leads[shard], s.id, st.seq)
	}
	if err != nil {
		return false, err
	}
	st.dirty, st.given, st.leased = false, false, st.leased[:0]
	return begun, nil
}

// abandon waits until nothing of the worker's own operation in a shard is in flight, and gives
// the operation up, so that other clients may complete it. The error wraps rdma.ErrTimeout while
// verbs are in flight: they may still land.
func (s *Store) abandon(shard int) (own table.Intent, err error) {
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
	case err != nil, table.Idle(own.State):
	case own.Torn: // no lock was taken (I2), and nothing of the WRITE lands any more
		err = s.end(shard, s.id, own.State)
	default:
		if own.Heartbeat != table.GivenUp { // else all has landed before
			err = s.landed(shard)
		}
		if err == nil {
			err = s.giveUp(shard)
		}
	}
	st.given = err == nil
	return own, err
}

// giveUp writes the heartbeat by which other clients may complete the worker's own operation. No
// verb of the operation may be in flight on any copy.
func (s *Store) giveUp(shard int) error {
	b := s.ep.Batch()
	b.WriteWord(s.table.IntentAt(shard, s.id).Add(table.IntentHeartbeat), table.GivenUp)
	return s.carry(steps.GiveUp, shard, b, "give the worker's own operation in shard %d up", shard)
}

// readIntent reads a client's intent in a shard, into memory of its own.
func (s *Store) readIntent(shard int, c rdma.ClientID) (table.Intent, error) {
	b := s.ep.Batch()
	op := b.Read(s.table.IntentAt(shard, c), table.IntentBytes)
	if err := s.do(steps.ReadIntents, b); err != nil {
		return table.Intent{}, s.unread(shard, b, fmt.Errorf("read the intent of client %d in shard %d: %w", c, shard,
			err))
	}
	t := table.DecodeIntent(bytes.Clone(op.Buf), shard, c)
	b.Release()
	return t, nil
}

// end ends an intent by which no lock is held. state is the intent's, so its sequence stays.
func (s *Store) end(shard int, c rdma.ClientID, state uint64) error {
	b := s.ep.Batch()
	b.WriteWord(s.table.IntentAt(shard, c), state|table.IdleBit)
	return s.carry(steps.Done, shard, b, "end the intent of client %d in shard %d", c, shard)
}

// readWord reads one word of the pool's memory.
func (s *Store) readWord(a rdma.Addr) (uint64, error) {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := s.do(steps.ReadWord, b); err != nil {
		return 0, err
	}
	return le.Uint64(op.Buf), nil
}
