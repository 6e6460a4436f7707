package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
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

// backAtOnce is about how many bytes a node backs in one call, so that no call takes long.
const backAtOnce = 16 << 20

// levelMask has the bits of the level in a growth word.
const levelMask = ^uint64(table.LevelOne - 1)

// helpShare is the part of an INSERT's remaining time that one batch of its share may take. A
// share takes fewer batches, so it does not use up the INSERT's time.
const helpShare = 16

// descend makes sure that the rows of a place are the key's by their own levels, under the locks
// that are held. A wrong guess costs a trip for each step towards the right row; the locks do not
// depend on levels. Torn rows are left to the caller. The error wraps client.ErrDamaged if rows
// lead to each other without end.
func (s *Store) descend(at *table.Place) error {
	if s.table.Levels == 0 {
		return nil
	}
	l := &s.locks
	for range 2*s.table.Levels + 3 { // a guess, and the way up or down, with a READ for each step
		first, second := l.row(at.First, s.table.RowBytes), l.row(at.Second, s.table.RowBytes)
		if first == nil || second == nil {
			s.wantRows(*at)
			if err := s.readHeld(); err != nil {
				return err
			}
			continue
		}
		if !s.table.Valid(first, l.shard, at.First) || !s.table.Valid(second, l.shard, at.Second) ||
			s.table.Follow(at, first, second) {
			return nil
		}
		s.levels.Doubts[l.shard] = true
	}
	err := fmt.Errorf("rows %d and %d of shard %d lead nowhere: %w", at.First, at.Second, l.shard, client.ErrDamaged)
	return errors.Join(err, s.retreat())
}

// readHeld reads all bands again, under the locks that are held.
func (s *Store) readHeld() error {
	s.endReads()
	b := s.ep.Batch()
	s.addReads(b, false)
	growth := s.addGrowth(b, s.locks.shard)
	if err := s.do(steps.ReadRows, b); err != nil {
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
func (s *Store) makeRoom(at table.Place) error {
	shard := s.locks.shard
	level, last, n := 0, true, 0
	if s.table.Levels > 0 {
		level, _ = table.GrowthOf(s.levels.Words[shard])
	}
	for i, id := range [2]uint32{at.First, at.Second} {
		r := s.locks.row(id, s.table.RowBytes)
		last = last && s.table.Level(r) >= s.table.Levels
		if s.table.Level(r) < level && (i == 0 || id != at.First) {
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
func (s *Store) addDivision(n int, id uint32, r table.Row) int {
	level := s.table.Level(r)
	moving := uint64(0)
	for slot := range s.table.Slots {
		e := s.table.Entry(r, slot)
		if e.Meta.Used() && s.table.Sound(e) && s.table.Place(s.table.Key(e)).Bits>>level&1 != 0 {
			moving |= 1 << slot
		}
	}
	s.changes[n] = table.Change{Kind: table.Filling, Row: s.table.Child(id, level), Slots: moving}
	s.changes[n+1] = table.Change{Kind: table.Leaving, Row: id, Slots: moving}
	return 2
}

// divide carries out n changes that divide rows, and releases the locks. The operation's own
// change is not among them, so a failure leaves no doubt about the operation: sent is false.
func (s *Store) divide(n int) error {
	err := s.write(s.changes[:n], table.Ref{})
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
	next := uint64(level+1) << table.LevelShift
	cas := b.MaskedCompareSwap(s.table.GrowthAt(shard), uint64(level)<<table.LevelShift, levelMask, next, ^uint64(0))
	if err := s.do(steps.RaiseLevel, b); err != nil {
		s.keepFlying(shard, b)
		return fmt.Errorf("begin level %d of shard %d: %w", level+1, shard, err)
	}
	if cas.Swapped() {
		s.levels.Learn(shard, next)
	} else {
		s.levels.Learn(shard, cas.Result)
	}
	b.Release()
	return nil
}

// backLevel has the node give memory to all segments of a level. The error wraps client.ErrFull
// when there is not enough.
func (s *Store) backLevel(shard, level int) error {
	if s.table.Replicas > 1 {
		return nil // all segments have had memory since the pool was made
	}
	// The node itself counts the segments and refuses more than segments, so any client may ask
	// at any time.
	home, index := s.table.Leads[shard].Node, s.table.Leads[shard].Index
	segment, segments := uint64(s.table.Rows)*uint64(s.table.RowBytes), uint64(1)<<level-1
	for {
		r := rdma.Request{Step: steps.AskForASegment, Proc: node.ProcGrow}
		r.Arg = [6]uint64{s.table.Areas.Growths.Of(index) + table.GrowthSegments,
			s.table.Areas.Rows.Of(index) + segment,
			segment, segments, max(1, backAtOnce/segment)}
		err := s.ep.Call(home, &r, s.each)
		switch {
		case errors.Is(err, rdma.ErrFull): // there is no memory, or other clients have asked for all segments
			have, unread := s.readWord(s.table.GrowthAt(shard).Add(table.GrowthSegments))
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
				shard, level, r.Ret[0]+r.Ret[1], segments, extents.ErrNoTime)
		}
	}
}

// help divides some rows of a table that grows. It runs after an INSERT that has succeeded, so
// its error is dropped: what it leaves unfinished makes the shard dirty, and is settled before
// the next operation there.
func (s *Store) help(shard int) {
	if s.table.Levels == 0 {
		return
	}
	st := &s.shards[shard]
	level, cursor := table.GrowthOf(s.levels.Words[shard])
	// Nothing is done without a share to take, or while the shard is not settled.
	if level == 0 || cursor >= s.table.Ends(level) || st.dirty || st.flying != nil || len(st.leased) > 0 {
		return
	}
	_ = s.bounded(bound{s.left() / helpShare, s.until, s.pulse}).share(shard)
}

// share takes the next share of a table that grows, and divides those of its rows that are made
// and do not have the level yet. A crash after the FAA leaves the rows of the share undivided.
func (s *Store) share(shard int) error {
	b := s.ep.Batch()
	add := b.FetchAdd(s.table.GrowthAt(shard), 1)
	if err := s.do(steps.ShareGrowth, b); err != nil {
		s.keepFlying(shard, b)
		return err
	}
	level, share := table.GrowthOf(add.Result) // both of one moment: the share is of this level
	s.levels.Learn(shard, add.Result+1)
	b.Release()
	if level == 0 || share >= s.table.Ends(level) {
		return nil
	}
	from, to := s.table.Shared(share)
	if from == to {
		return nil
	}
	s.want(shard)
	s.wantBand(from, to)
	for id := from; id < to; id++ {
		s.wantRow(id)
	}
	s.taken = table.Ref{} // a row names the INSERT's extent by now: acquire must not write its value again
	if err := s.acquire(nil, nil); err != nil {
		return err
	}
	n := 0
	for id := from; id < to; id++ {
		if r := s.locks.row(id, s.table.RowBytes); s.table.Valid(r, shard, id) && s.table.Made(id, r) &&
			s.table.Level(r) < level {
			n += s.addDivision(n, id, r)
		}
	}
	if n == 0 {
		return s.retreat()
	}
	return s.divide(n)
}
