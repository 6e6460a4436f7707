package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Clients replicate, which is beyond the paper: each shard has copies on several nodes, so that
// no data is lost when a node dies.
//
// One copy of a shard leads. Reads, claims and all that belongs to locks use the leader alone,
// and cost what they cost without replicas. The other copies, its backups, have the rows, redos
// and contents of extents. The pool's view decides which copy leads: the one that has been in it
// longest, and of several such copies the first. So the leader changes only when its node dies,
// and a copy that leads goes on leading as long as its node lives. All clients agree on the
// leader, since no verb of an epoch lands in the next one.
//
// A change takes one trip more:
//
//	1. on the leader: intent, lock, rows, as without backups; the value on all copies
//	2. on each backup, in this order: redo, rows
//	3. on the leader, after all of 2 has completed: redo, rows, mark, release
//
// What is relied on:
//
//	C1  On each copy a redo is whole before anything of its rows is written there.
//	C2  What a reader can see, at the leader, is whole on all backups.
//	C3  Locks are released when all copies have all rows. So the next change finds equal rows on
//	    all copies, and no WRITE of the change before can land behind its own.
//	C4  An operation has begun when its redo is whole on some copy in the view. A client that
//	    completes it writes that redo to each copy, before the rows (C1), and to the leader
//	    last. Later all clients look for the operation's outcome there.
//	C5  Under a busy view no client changes anything, or reads a shard that another copy led
//	    before.
//
// What a crash leaves: between 2 and 3, copies that differ. Repair looks for the redo on all
// copies. A copy that does not answer, and is in the view, may have the only whole redo: nothing
// is decided until it answers, or the view says that it is gone. For the death of a leader's node
// see takeover.go; for how a spare takes a place, restore.go.

// enter begins with the view in which the layout was read. If that is busy, the leaders may not
// have taken over: the shards are dirty, and their intents are read again when the view is idle.
func (s *Store) enter() {
	s.takeoverPending = make([]bool, s.table.Shards)
	for shard := range s.takeoverPending {
		s.takeoverPending[shard] = s.table.Replicas > 1 && s.view.Busy
		s.shards[shard].dirty = s.takeoverPending[shard]
	}
}

// ApplyView makes a view the worker's. In a shard that another copy leads now, the worker owns
// nothing any more: it forgets its extents, leases and what it knows of growth, and the shard is
// dirty. See takeover.go.
func (s *Store) applyView(v *rdma.View) {
	before, epoch := slices.Clone(s.table.Leads), s.view.Epoch
	s.table.ApplyView(v)
	for shard, lead := range s.table.Leads {
		if lead == before[shard] { // the leader goes on, and so does all that the worker has there
			continue
		}
		s.takeoverPending[shard] = true
		st := &s.shards[shard]
		st.dirty, st.given, st.leased = true, false, nil
		s.extents.Forget(shard)
		s.levels.Forget(shard)
		if s.takenIn == shard {
			s.taken = table.Ref{}
		}
	}
	if !v.Busy { // a view becomes idle only when all takeovers are complete
		clear(s.takeoverPending)
	}
	if s.table.Replicas > 1 && v.Epoch != epoch {
		s.vigil.shard = -1 // no client made progress while the view changed, so the timers start again
	}
}

// errMending is the error of an operation that used up its time while the view was busy.
var errMending = fmt.Errorf("the pool's view is busy: %w", rdma.ErrTimeout)

// waiting reports whether the view forbids changes (C5).
func (s *Store) waiting() bool { return s.table.Replicas > 1 && s.view.Busy }

// awaitIdleView waits until the view is idle (C5). It joins new views meanwhile. The error wraps
// rdma.ErrTimeout when the time is used up.
func (s *Store) awaitIdleView() error {
	if !s.waiting() {
		return nil
	}
	ok, err := s.view.AwaitIdle(0, kit.Retry{Env: s.ep, Pause: kit.WhileBusy, Over: s.over})
	switch {
	case err != nil:
		return fmt.Errorf("wait until the pool is mended: %w", err)
	case !ok:
		return errMending
	}
	return nil
}

// awaitLeader waits until a shard's leader can be read: it is the one that led before, or the
// view is idle (C5).
func (s *Store) awaitLeader(shard int) error {
	if s.takeoverPending[shard] {
		return s.awaitIdleView()
	}
	return nil
}

// addBackups adds the WRITEs of an extent's content to the backups. They complete in the trip
// that takes the first lock, so before any row names the extent.
func (s *Store) addBackups(b *rdma.Batch, shard int, r table.Ref, content []byte) {
	for _, at := range s.table.Backups(shard) {
		b.Chain()
		b.Write(s.table.ExtentAt(at, r), content)
	}
}

// writeBackups carries out changes on all backups, and returns when they are whole there: trip 2.
func (s *Store) writeBackups(changes []table.Change, freed table.Ref) error {
	l := &s.locks
	backups := s.table.Backups(l.shard)
	if len(backups) == 0 {
		return nil
	}
	b := s.ep.Batch()
	s.addChanges(b, changes, freed, backups)
	if err := s.do(steps.WriteBackups, b); err != nil {
		return s.lost(b, fmt.Errorf("write %d rows of shard %d to its backups: %w", len(changes), l.shard, err))
	}
	b.Release()
	return nil
}

// findRedo looks for a client's redo on all copies. begun: it is whole on one of them (C4). An
// error of any copy that is asked is returned, as that copy may have the only one.
func (s *Store) findRedo(shard int, c rdma.ClientID, seq uint64) (p []byte, rows int, begun bool, err error) {
	for _, at := range s.table.Copies[shard] {
		if p, rows, begun, err = s.readRedo(shard, at, c, seq); err != nil || begun {
			return p, rows, begun, err
		}
	}
	return nil, 0, false, nil
}

// carryForward completes an operation that has begun on all copies, on the leader last (C2, C4).
func (s *Store) carryForward(shard int, c rdma.ClientID, p []byte, rows int) error {
	for _, at := range slices.Backward(s.table.Copies[shard]) {
		// The copy's own redo first (C1): if this client dies, too, the next one finds it there.
		if s.table.Replicas > 1 {
			if err := s.copyRedo(shard, at, c,
				p[:table.RedoHeader+rows*(table.RedoStepBytes+s.table.EntryBytes)]); err != nil {
				return err
			}
		}
		if err := s.redoRows(shard, at, c, p, rows); err != nil {
			return err
		}
	}
	return nil
}

// copyRedo writes a client's redo to a copy where it may not have landed. No verb of the client
// may land any more.
func (s *Store) copyRedo(shard int, at node.Replica, c rdma.ClientID, p []byte) error {
	b := s.ep.Batch()
	b.WriteCopy(s.table.RedoAt(at, c), p)
	return s.carry(steps.RollForward, shard, b, "write the redo of client %d in shard %d", c, shard)
}

// doAlive is do for batches that other clients wait for. A backup may be slow, or unreachable for
// a moment, so the worker sends heartbeats to the leader while it waits. An error of a heartbeat
// ends the wait, while verbs of the batch may be in flight.
func (s *Store) doAlive(step rdma.Step, b *rdma.Batch) error {
	if err := s.ep.Post(b.As(step)); err != nil {
		return err
	}
	// As many heartbeats as other clients look, so no look finds the worker unchanged for long.
	part, limit := s.opt.Failure/lookShares, s.ep.Now()+s.each
	for {
		err := s.ep.Wait(b, rdma.All, min(part, max(limit-s.ep.Now(), 0)))
		switch {
		case err == nil:
			return b.Err()
		case !errors.Is(err, rdma.ErrTimeout) || s.ep.Now() >= limit:
			return err
		}
		if err := s.pulse(s.showing(nil)); err != nil { // the heartbeat waits for the leader alone
			return err
		}
	}
}

// showing returns a Store of the worker with another heartbeat.
func (s *Store) showing(pulse func(*Store) error) *Store {
	return s.bounded(bound{s.each, s.until, pulse})
}

// beatOwn sends a heartbeat of the intent of the operation at work.
func (s *Store) beatOwn() error { return s.beatIntent(s.locks.shard) }

// beatIntent sends a heartbeat of the worker's intent in a shard, and waits for it.
func (s *Store) beatIntent(shard int) error {
	b := s.ep.Batch()
	s.addBeat(b, shard)
	return s.carry(steps.WriteBackups, shard, b, "wait for the backups of shard %d", shard)
}

// addBeat adds a heartbeat that differs from all before it. Bit 62 sets it apart from the
// heartbeats of clients that wait for a lock, which are small numbers.
func (s *Store) addBeat(b *rdma.Batch, shard int) {
	s.beats++
	b.WriteWord(s.table.IntentAt(shard, s.id).Add(table.IntentHeartbeat), 1<<62|s.beats)
}

// landed returns when no verb that the worker has posted to backups can land any more: a READ to
// each of them has completed behind those verbs. It sends heartbeats meanwhile.
func (s *Store) landed(shard int) error {
	if len(s.table.Backups(shard)) == 0 {
		return nil
	}
	s = s.showing(func(s *Store) error { return s.beatIntent(shard) })
	b := s.ep.Batch()
	s.addBeat(b, shard)
	for _, at := range s.table.Backups(shard) {
		b.Read(rdma.At(at.Node, s.table.Areas.Redos.Of(at.Index)), 8)
	}
	return s.carry(steps.GiveUp, shard, b, "wait for verbs to the backups of shard %d", shard)
}
