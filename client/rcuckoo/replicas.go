package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Replication by the clients, beyond the paper: each shard has copies on as many nodes, so that a
// node's death loses nothing.
//
// One copy of a shard leads. All that the protocol is about, locks and what belongs to them, reads,
// claims, lies with it alone, and costs what it costs without replicas. The others, its backups,
// hold rows, redos and the content of extents. Which copy leads follows from the pool's view: the
// one that has been there for longest, and of those the first. So a leader changes only when its
// node died, and a copy that leads once leads as long as its node lives. All agree on it, since an
// epoch's verbs do not land in the next one.
//
// A change takes one trip more:
//
//	1. on the leader intent, lock, rows, as without backups; the value on all copies
//	2. on each backup, in this order: redo, rows
//	3. on the leader, behind the completion of all of 2: redo, rows, mark, release
//
// What is relied on:
//
//	C1  On each copy a redo is whole before anything of its rows is written there.
//	C2  What a reader can see, at the leader, is whole on all backups.
//	C3  Locks are let go of when all copies have all rows. So the next change finds equal rows on all copies, and no WRITE of
//	    the one before can land behind its own.
//	C4  An operation has begun when some copy that the view has, has its redo whole. The client that brings it to its
//	    end writes that redo to each copy, before the rows (C1), and to the leader last, where all later look for what
//	    became of it.
//	C5  No client changes anything under a busy view, or reads under it what was not led by the same copy before.
//
// A crash between 2 and 3 leaves some copies behind others: repair asks all copies for the redo. A
// copy that does not answer, and is not gone, may have the only one: nothing is decided until it
// answers or the view says that it is gone. When a leader's node died see takeover.go; how a spare
// takes a place, restore.go.

// placement is where the copies of shards lie, all by shard.
type placement struct {
	originals [][]node.Replica // when the pool was made
	leads     []node.Replica   // in a view: whose memory everything about a shard names
	copies    [][]node.Replica // that are there; the first is the leader
	orphan    []bool           // no copy is there any more: the leader is a node that is down
}

// placesEach is how many copies of shards a node has, at most.
func (p *Params) placesEach(nodes int) int {
	data := nodes - p.Spares
	return (p.Shards + data - 1) / data * max(p.Replicas, 1)
}

// placeOriginals places all copies as when the pool was made.
func (l *layout) placeOriginals() {
	l.originals, l.leads = make([][]node.Replica, l.Shards), make([]node.Replica, l.Shards)
	l.copies, l.orphan = make([][]node.Replica, l.Shards), make([]bool, l.Shards)
	all, data := make([]node.Replica, l.Shards*l.Replicas), l.nodes-l.Spares
	for shard := range l.originals {
		l.originals[shard], all = all[:l.Replicas:l.Replicas], all[l.Replicas:]
		for k := range l.originals[shard] {
			l.originals[shard][k] = node.Replica{Node: (shard + k) % data, Index: k*(l.perNode/l.Replicas) + shard/data}
		}
	}
	l.applyView(&rdma.View{})
}

// applyView places all copies as a view says.
func (l *layout) applyView(v *rdma.View) {
	for shard, o := range l.originals {
		l.copies[shard], l.orphan[shard] = kit.Replicas(v, o)
		l.leads[shard] = l.copies[shard][0]
	}
}

// backups are a shard's copies but for its leader.
func (l *layout) backups(shard int) []node.Replica { return l.copies[shard][1:] }

func (l *layout) roleAt(shard int) rdma.Addr { return l.at(l.roles, shard, 0) }

// leading is the role of a copy that leads, or led until its node died: it has all that a leader
// has. 0: it is a backup.
const leading = 1

// makeLeader says that a copy has all that a leader has: the first one of a new pool, too.
func (l *layout) makeLeader(ep rdma.Endpoint, shard int) error {
	b := ep.Batch()
	defer b.Release()
	b.WriteWord(l.roleAt(shard), leading)
	if err := rdma.Do(ep, b.As(stepTakeOver), l.Timeout); err != nil {
		return fmt.Errorf("make a leader of shard %d: %w", shard, err)
	}
	return nil
}

// enter begins with the view that the layout was read in. Where that is busy the worker learns
// later how things stand.
func (s *Store) enter() {
	s.takeoverPending = make([]bool, s.Shards)
	for shard := range s.takeoverPending {
		s.takeoverPending[shard] = s.Replicas > 1 && s.view.Busy
		s.shards[shard].dirty = s.takeoverPending[shard]
	}
}

// applyView makes a view the worker's. What it had of a shard with a former leader it owns no more:
// see takeover.go.
func (s *Store) applyView(v *rdma.View) {
	before, epoch := slices.Clone(s.leads), s.view.Epoch
	s.layout.applyView(v)
	for shard, lead := range s.leads {
		if lead == before[shard] {
			continue
		}
		s.takeoverPending[shard] = true
		st := &s.shards[shard]
		st.dirty, st.given, st.leased = true, false, nil
		s.extents.forget(shard)
		s.levels.forget(shard)
		if s.takenIn == shard {
			s.taken = ref{}
		}
	}
	if !v.Busy {
		clear(s.takeoverPending)
	}
	if s.Replicas > 1 && v.Epoch != epoch {
		s.vigil.shard = -1 // all stood still
	}
}

// errMending is what an operation ends with that waited for too long.
var errMending = fmt.Errorf("the pool's view is busy: %w", rdma.ErrTimeout)

// waiting reports whether no client may change anything.
func (s *Store) waiting() bool { return s.Replicas > 1 && s.view.Busy }

// awaitIdleView waits until the view is idle: under a busy one no client changes what has replicas.
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

// awaitLeader waits until a shard's leader can be read.
func (s *Store) awaitLeader(shard int) error {
	if s.takeoverPending[shard] {
		return s.awaitIdleView()
	}
	return nil
}

// addBackups adds the WRITEs of an extent's content to the backups.
func (s *Store) addBackups(b *rdma.Batch, shard int, r ref, content []byte) {
	for _, at := range s.backups(shard) {
		b.Chain()
		b.Write(s.extentAt(at, r), content)
	}
}

// writeBackups carries changes out on all backups, and returns when they have them whole: trip 2.
func (s *Store) writeBackups(changes []change, freed ref) error {
	l := &s.locks
	backups := s.backups(l.shard)
	if len(backups) == 0 {
		return nil
	}
	b := s.ep.Batch()
	s.addChanges(b, changes, freed, backups)
	if err := s.do(stepWriteBackups, b); err != nil {
		return s.lost(b, fmt.Errorf("write %d rows of shard %d to its backups: %w", len(changes), l.shard, err))
	}
	b.Release()
	return nil
}

// findRedo looks for a client's redo on all copies; begun: one of them has it whole.
func (s *Store) findRedo(shard int, c rdma.ClientID, seq uint64) (p []byte, steps int, begun bool, err error) {
	for _, at := range s.copies[shard] {
		if p, steps, begun, err = s.readRedo(shard, at, c, seq); err != nil || begun {
			return p, steps, begun, err
		}
	}
	return nil, 0, false, nil
}

// carryForward brings an operation that has begun to its end on all copies, on the leader last.
func (s *Store) carryForward(shard int, c rdma.ClientID, p []byte, steps int) error {
	for _, at := range slices.Backward(s.copies[shard]) {
		if s.Replicas > 1 {
			if err := s.copyRedo(shard, at, c, p[:redoHeader+steps*(redoStep+s.entryBytes)]); err != nil {
				return err
			}
		}
		if err := s.redoRows(shard, at, c, p, steps); err != nil {
			return err
		}
	}
	return nil
}

// copyRedo writes a client's redo, of which nothing lands any more, to a copy where it may not have
// landed.
func (s *Store) copyRedo(shard int, at node.Replica, c rdma.ClientID, p []byte) error {
	b := s.ep.Batch()
	b.WriteCopy(s.redoAt(at, c), p)
	return s.carry(stepRollForward, shard, b, "write the redo of client %d in shard %d", c, shard)
}

// A backup may be slow, or out of reach for a moment, and others wait for the worker meanwhile: it
// shows them that it is alive.

// doAlive is do for batches that others wait for.
func (s *Store) doAlive(step rdma.Step, b *rdma.Batch) error {
	if err := s.ep.Post(b.As(step)); err != nil {
		return err
	}
	part, limit := s.opt.Failure/lookShares, s.ep.Now()+s.each
	for {
		err := s.ep.Wait(b, rdma.All, min(part, max(limit-s.ep.Now(), 0)))
		switch {
		case err == nil:
			return b.Err()
		case !errors.Is(err, rdma.ErrTimeout) || s.ep.Now() >= limit:
			return err
		}
		if err := s.pulse(s.showing(nil)); err != nil { // the pulse waits for the leader alone
			return err
		}
	}
}

// showing returns the worker with another pulse.
func (s *Store) showing(pulse func(*Store) error) *Store {
	return s.bounded(bound{s.each, s.until, pulse})
}

// beatOwn is a beat of the intent of the operation at work.
func (s *Store) beatOwn() error { return s.beatIntent(s.locks.shard) }

func (s *Store) beatIntent(shard int) error {
	b := s.ep.Batch()
	s.addBeat(b, shard)
	return s.carry(stepWriteBackups, shard, b, "wait for the backups of shard %d", shard)
}

// addBeat adds a beat that differs from the one before: those of waiting for a lock are small
// numbers.
func (s *Store) addBeat(b *rdma.Batch, shard int) {
	s.beats++
	b.WriteWord(s.intentAt(shard, s.id).Add(intentBeat), 1<<62|s.beats)
}

// landed returns when nothing lands any more on backups that the worker sent there before.
func (s *Store) landed(shard int) error {
	if len(s.backups(shard)) == 0 {
		return nil
	}
	s = s.showing(func(s *Store) error { return s.beatIntent(shard) })
	b := s.ep.Batch()
	s.addBeat(b, shard)
	for _, at := range s.backups(shard) {
		b.Read(rdma.At(at.Node, s.redos.of(at.Index)), 8)
	}
	return s.carry(stepGiveUp, shard, b, "wait for verbs to the backups of shard %d", shard)
}
