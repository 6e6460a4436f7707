package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A table grows when an INSERT finds no path, and Params.Levels allows it. The INSERT divides the
// two rows of its key, under the locks that it holds, and looks for a path again. So it depends
// on no other client. If the rows have the table's level already, the INSERT begins the next
// level first:
//
//  1. The node gives memory to the segments of the next level, a few at a time. A crash leaves
//     segments that have memory early.
//  2. One masked CAS sets the shard's growth word to {level + 1, 0}, unless another client has
//     done so.
//
// So no row has a higher level than the growth word, and each row that can be reached has memory.
// Then each INSERT that knows of the new level divides a share of the other rows, after its own
// change. It gets its share by an FAA of the growth word's cursor. So after as many INSERTs as
// there are shares, all shares are handed out. If a client dies with its share, or does not get
// the locks in time, the rows of the share keep their level, which costs their readers a trip. An
// INSERT that finds them full divides them, or the round of the next level divides them once.

// growShare is how many neighbouring rows an INSERT divides for others. Each takes two steps of
// one redo.
const growShare = maxSteps / 2

// sharesALock is how many shares have a lock in common. If they were handed out one behind the
// other, all INSERTs would wait for the same lock. So the shares of a segment are handed out in
// rounds, and a round has one share of each lock.
func (l *layout) sharesALock() uint64 { return uint64(l.RowsPerLock+growShare-1) / growShare }

// shares returns how many shares a round has, and how many a segment has. Some of the last ones
// may be empty.
func (l *layout) shares() (round, segment uint64) {
	all, rounds := uint64(l.Rows+growShare-1)/growShare, l.sharesALock()
	round = (all + rounds - 1) / rounds
	return round, round * rounds
}

// shareOf returns the share that has a row. The row's segment is older than the level that is
// handed out.
func (l *layout) shareOf(id uint32) uint64 {
	// Groups of growShare rows are numbered along the segment. Group at is in round at%rounds, so
	// neighbouring groups, which share a lock, are in different rounds.
	round, segment := l.shares()
	at, rounds := uint64(l.number(id))/growShare, l.sharesALock()
	return uint64(l.segment(id))*segment + at%rounds*round + at/rounds
}

// shared returns the rows of a share: from, and up to but without, to. It is the inverse of
// shareOf. They are equal if the share is empty.
func (l *layout) shared(share uint64) (from, to uint32) {
	round, segment := l.shares()
	first := uint32(share/segment) * uint32(l.Rows)
	share %= segment
	at := (share%round*l.sharesALock() + share/round) * growShare
	return first + uint32(min(at, uint64(l.Rows))), first + uint32(min(at+growShare, uint64(l.Rows)))
}

// ends returns the cursor of a level at which all shares are handed out: those of all segments of
// the level before.
func (l *layout) ends(level int) uint64 {
	_, segment := l.shares()
	return segment << (level - 1)
}

// backAtOnce is about how many bytes a node backs in one call, so that no call takes long.
const backAtOnce = 16 << 20

// levelMask has the bits of the level in a growth word.
const levelMask = ^uint64(levelOne - 1)

// helpShare is the part of an INSERT's remaining time that one batch of its share may take. A
// share takes fewer batches, so it does not use up the INSERT's time.
const helpShare = 16

// descend makes sure that the rows of a place are the key's by their own levels, under the locks
// that are held. A wrong guess costs a trip for each step towards the right row; the locks do not
// depend on levels. Torn rows are left to the caller. The error wraps client.ErrDamaged if rows
// lead to each other without end.
func (s *Store) descend(at *place) error {
	if s.Levels == 0 {
		return nil
	}
	l := &s.locks
	for range 2*s.Levels + 3 { // a guess, and the way up or down, with a READ for each step
		first, second := l.row(at.first, s.rowBytes), l.row(at.second, s.rowBytes)
		if first == nil || second == nil {
			s.wantRows(*at)
			if err := s.readHeld(); err != nil {
				return err
			}
			continue
		}
		if !s.valid(first, l.shard, at.first) || !s.valid(second, l.shard, at.second) || s.follow(at, first, second) {
			return nil
		}
		s.levels.doubts[l.shard] = true
	}
	err := fmt.Errorf("rows %d and %d of shard %d lead nowhere: %w", at.first, at.second, l.shard, client.ErrDamaged)
	return errors.Join(err, s.retreat())
}

// readHeld reads all bands again, under the locks that are held.
func (s *Store) readHeld() error {
	s.endReads()
	b := s.ep.Batch()
	s.addReads(b, false)
	growth := s.addGrowth(b, s.locks.shard)
	if err := s.do(stepReadRows, b); err != nil {
		return s.lost(b, fmt.Errorf("read rows of shard %d: %w", s.locks.shard, err))
	}
	s.learned(s.locks.shard, growth)
	s.locks.read = b
	return nil
}

// makeRoom is for an INSERT that has locked and read its key's rows, and found no path anywhere.
// It divides those of the two rows that do not have the table's level yet, or begins the next
// level. It releases the locks, and the INSERT looks again. The error wraps client.ErrFull if
// both rows have the last level.
func (s *Store) makeRoom(at place) error {
	shard := s.locks.shard
	level, last, n := 0, true, 0
	if s.Levels > 0 {
		level, _ = growthOf(s.levels.words[shard])
	}
	for i, id := range [2]uint32{at.first, at.second} {
		r := s.locks.row(id, s.rowBytes)
		last = last && s.level(r) >= s.Levels
		if s.level(r) < level && (i == 0 || id != at.first) {
			n += s.addDivision(n, id, r)
		}
	}
	if n > 0 {
		return s.divide(n)
	}
	if err := s.retreat(); err != nil {
		return err
	}
	if last {
		return errFull
	}
	return s.raise(shard, level)
}

// addDivision notes the changes that divide a row, behind n other changes, and returns how many
// they are. The new row comes first: see levels.go.
func (s *Store) addDivision(n int, id uint32, r row) int {
	level := s.level(r)
	moving := uint64(0)
	for slot := range s.entries {
		e := s.entry(r, slot)
		if e.meta.used() && s.sound(e) && s.place(s.key(e)).bits>>level&1 != 0 {
			moving |= 1 << slot
		}
	}
	s.changes[n] = change{kind: filling, row: s.child(id, level), slots: moving}
	s.changes[n+1] = change{kind: leaving, row: id, slots: moving}
	return 2
}

// divide carries out n changes that divide rows, and releases the locks. The operation's own
// change is not among them, so a failure leaves no doubt about the operation: sent is false.
func (s *Store) divide(n int) error {
	err := s.write(s.changes[:n], ref{})
	s.locks.sent = false
	if err == nil {
		s.stats.Divided += uint64(n / 2)
	}
	return err
}

// raise begins the level after the one that a table has, unless another client has begun it. The
// memory comes first: rows of the new level can be reached once the word is set.
func (s *Store) raise(shard, level int) error {
	if err := s.backLevel(shard, level+1); err != nil {
		return err
	}
	b := s.ep.Batch()
	// The CAS compares the level alone: the cursor grows by FAAs of other clients meanwhile, and
	// is zero after it.
	next := uint64(level+1) << levelShift
	cas := b.MaskedCompareSwap(s.growthAt(shard), uint64(level)<<levelShift, levelMask, next, ^uint64(0))
	if err := s.do(stepRaiseLevel, b); err != nil {
		s.keepFlying(shard, b)
		return fmt.Errorf("begin level %d of shard %d: %w", level+1, shard, err)
	}
	if cas.Swapped() {
		s.levels.learn(shard, next)
	} else {
		s.levels.learn(shard, cas.Result)
	}
	b.Release()
	return nil
}

// backLevel has the node give memory to all segments of a level. The error wraps client.ErrFull
// when there is not enough.
func (s *Store) backLevel(shard, level int) error {
	if s.Replicas > 1 {
		return nil // all segments have had memory since the pool was made
	}
	// The node itself counts the segments and refuses more than segments, so any client may ask
	// at any time.
	home, index := s.leads[shard].Node, s.leads[shard].Index
	segment, segments := uint64(s.Rows)*uint64(s.rowBytes), uint64(1)<<level-1
	for {
		r := rdma.Request{Step: stepAskForASegment, Proc: node.ProcGrow}
		r.Arg = [6]uint64{s.growths.of(index) + growthSegments, s.rows.of(index) + segment,
			segment, segments, max(1, backAtOnce/segment)}
		err := s.ep.Call(home, &r, s.each)
		switch {
		case errors.Is(err, rdma.ErrFull): // there is no memory, or other clients have asked for all segments
			have, unread := s.readWord(s.growthAt(shard).Add(growthSegments))
			if unread != nil || have < segments {
				return errors.Join(fmt.Errorf("grow shard %d to level %d: %w", shard, level, err), unread)
			}
			return nil
		case err != nil:
			return fmt.Errorf("ask node %d for memory of shard %d: %w", home, shard, err)
		case r.Ret[0]+r.Ret[1] >= segments:
			return nil
		case s.left() == 0: // the next INSERT goes on: the node counts what it gave
			return fmt.Errorf("grow shard %d to level %d: %d of its %d segments have memory: %w",
				shard, level, r.Ret[0]+r.Ret[1], segments, errNoTime)
		}
	}
}

// help divides some rows of a table that grows. It runs after an INSERT that has succeeded, so
// its error is dropped: what it leaves unfinished makes the shard dirty, and is settled before
// the next operation there.
func (s *Store) help(shard int) {
	if s.Levels == 0 {
		return
	}
	st := &s.shards[shard]
	level, cursor := growthOf(s.levels.words[shard])
	// Nothing is done without a share to take, or while the shard is not settled.
	if level == 0 || cursor >= s.ends(level) || st.dirty || st.flying != nil || len(st.leased) > 0 {
		return
	}
	_ = s.bounded(bound{s.left() / helpShare, s.until, s.pulse}).share(shard)
}

// share takes the next share of a table that grows, and divides those of its rows that are made
// and do not have the level yet. A crash after the FAA leaves the rows of the share undivided.
func (s *Store) share(shard int) error {
	b := s.ep.Batch()
	add := b.FetchAdd(s.growthAt(shard), 1)
	if err := s.do(stepShareGrowth, b); err != nil {
		s.keepFlying(shard, b)
		return err
	}
	level, share := growthOf(add.Result) // both of one moment: the share is of this level
	s.levels.learn(shard, add.Result+1)
	b.Release()
	if level == 0 || share >= s.ends(level) {
		return nil
	}
	from, to := s.shared(share)
	if from == to {
		return nil
	}
	s.want(shard)
	s.wantBand(from, to)
	for id := from; id < to; id++ {
		s.wantRow(id)
	}
	s.taken = ref{} // a row names the INSERT's extent by now: acquire must not write its value again
	if err := s.acquire(nil, nil); err != nil {
		return err
	}
	n := 0
	for id := from; id < to; id++ {
		if r := s.locks.row(id, s.rowBytes); s.valid(r, shard, id) && s.made(id, r) && s.level(r) < level {
			n += s.addDivision(n, id, r)
		}
	}
	if n == 0 {
		return s.retreat()
	}
	return s.divide(n)
}
