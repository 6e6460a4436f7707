package rcuckoo

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/session"
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
//
// Rows are divided and made under their lock, so what the rows say of their levels holds until
// the lock is released.
func (s *Store) descend(o *session.Op, at *table.Place) error {
	if o.Table.Levels == 0 {
		return nil
	}
	l := s.locks
	for range 2*o.Table.Levels + 3 { // a guess, and the way up or down, with a READ for each step
		first, second := l.Row(at.First, o.Table.RowBytes), l.Row(at.Second, o.Table.RowBytes)
		// After a wrong guess the place names rows to which the last ones led, and which are not
		// read yet.
		if first == nil || second == nil {
			s.locks.ReadPlace(o, *at)
			if err := s.readHeld(o); err != nil {
				return err
			}
			continue
		}
		if !o.Table.Valid(first, l.Shard, at.First) || !o.Table.Valid(second, l.Shard, at.Second) ||
			o.Table.Follow(at, first, second) {
			return nil
		}
		// The next READ of rows brings the growth word along, for better guesses.
		s.levels.Doubts[l.Shard] = true
	}
	err := fmt.Errorf("rows %d and %d of shard %d lead nowhere: %w", at.First, at.Second, l.Shard, client.ErrDamaged)
	return errors.Join(err, s.locks.Release(o))
}

// readHeld reads all bands again, under the locks that are held. It needs no fence: the locks
// have been taken in an earlier trip, so no other client writes these rows.
func (s *Store) readHeld(o *session.Op) error {
	s.locks.EndReads()
	b := o.EP.Batch()
	s.locks.AddReads(o, b, false)
	growth := s.addGrowth(o, b, s.locks.Shard)
	if err := o.Do(steps.ReadRows, b); err != nil {
		return s.locks.Lost(o, b, fmt.Errorf("read rows of shard %d: %w", s.locks.Shard, err))
	}
	s.learned(s.locks.Shard, growth)
	s.locks.Keep(b)
	return nil
}

// makeRoom is for an INSERT that has locked and read its key's rows, and found no path anywhere.
// It divides those of the two rows that do not have the table's level yet, or begins the next
// level. It releases the locks, and the INSERT looks again. The error wraps client.ErrFull if
// both rows have the last level.
func (s *Store) makeRoom(o *session.Op, at table.Place) error {
	shard := s.locks.Shard
	level, last, n := 0, true, 0
	if o.Table.Levels > 0 {
		level, _ = table.GrowthOf(s.levels.Words[shard])
	}
	// The two rows may be the same one, which is divided once.
	for i, id := range [2]uint32{at.First, at.Second} {
		r := s.locks.Row(id, o.Table.RowBytes)
		last = last && o.Table.Level(r) >= o.Table.Levels
		if o.Table.Level(r) < level && (i == 0 || id != at.First) {
			n += s.addDivision(o, n, id, r)
		}
	}
	if n > 0 {
		return s.divide(o, n)
	}
	// Both rows have the level. raise needs no lock: of several clients that begin a level, the
	// CAS lets one.
	if err := s.locks.Release(o); err != nil {
		return err
	}
	if last {
		return errFull
	}
	return s.raise(o, shard, level)
}

// addDivision notes the changes that divide a row, behind n other changes, and returns how many
// they are. The new row comes first: see levels.go of package table. The redo has the slots that
// move, so a repair moves the same entries, without a look at their keys.
func (s *Store) addDivision(o *session.Op, n int, id uint32, r table.Row) int {
	level := o.Table.Level(r)
	// The level of the row is the number of the segment bit that is looked at next.
	moving := uint64(0)
	for slot := range o.Table.Slots {
		e := o.Table.Entry(r, slot)
		if e.Meta.Used() && o.Table.Sound(e) && o.Table.Place(o.Table.Key(e)).Bits>>level&1 != 0 {
			moving |= 1 << slot
		}
	}
	s.changes[n] = table.Change{Kind: table.Filling, Row: o.Table.Child(id, level), Slots: moving}
	s.changes[n+1] = table.Change{Kind: table.Leaving, Row: id, Slots: moving}
	return 2
}

// divide carries out n changes that divide rows, and releases the locks. The operation's own
// change is not among them, so a failure leaves no doubt about the operation: sent is false. What
// a crash leaves is the same as in any other change: see write. Repair completes the division,
// and the INSERT that began it has not begun.
func (s *Store) divide(o *session.Op, n int) error {
	err := s.write(o, s.changes[:n], table.Ref{})
	s.locks.Sent = false
	if err == nil {
		o.Stats.Divided += uint64(n / 2)
	}
	return err
}

// raise begins the level after the one that a table has, unless another client has begun it. The
// memory comes first: rows of the new level can be reached once the word is set. The order is
// relied on by all that read rows by their ids: no client is led to a row without memory.
func (s *Store) raise(o *session.Op, shard, level int) error {
	if err := s.backLevel(o, shard, level+1); err != nil {
		return err
	}
	b := o.EP.Batch()
	// The CAS compares the level alone: the cursor grows by FAAs of other clients meanwhile, and
	// is zero after it.
	next := uint64(level+1) << table.LevelShift
	cas := b.MaskedCompareSwap(o.Table.GrowthAt(shard), uint64(level)<<table.LevelShift, levelMask, next, ^uint64(0))
	if err := o.Do(steps.RaiseLevel, b); err != nil {
		// The CAS may still land, and the level begin then: its memory is there. The shard owns
		// the batch until it has landed.
		o.KeepFlying(shard, b)
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
// when there is not enough. A crash between two calls leaves some of them without memory, and the
// level not begun; the next INSERT that needs the level goes on.
func (s *Store) backLevel(o *session.Op, shard, level int) error {
	if o.Table.Replicas > 1 {
		return nil // all segments have had memory since the pool was made
	}
	// The node itself counts the segments and refuses more than segments, so any client may ask
	// at any time. The first segment has had memory from the beginning, and is not counted.
	home, index := o.Table.Leads[shard].Node, o.Table.Leads[shard].Index
	segment, segments := uint64(o.Table.Rows)*uint64(o.Table.RowBytes), uint64(1)<<level-1
	for {
		r := rdma.Request{Step: steps.AskForASegment, Proc: node.ProcGrow}
		r.Arg = [6]uint64{o.Table.Areas.Growths.Of(index) + table.GrowthSegments,
			o.Table.Areas.Rows.Of(index) + segment,
			segment, segments, max(1, backAtOnce/segment)}
		err := o.EP.Call(home, &r, o.Each)
		switch {
		case errors.Is(err, rdma.ErrFull): // there is no memory, or other clients have asked for all segments
			// The count decides which. If it cannot be read, the table is not known to be full.
			have, unread := o.ReadWord(o.Table.GrowthAt(shard).Add(table.GrowthSegments))
			if unread == nil && have >= segments {
				return nil
			}
			return fmt.Errorf("grow shard %d to level %d: %w", shard, level, cmp.Or(unread, err))
		case err != nil:
			return fmt.Errorf("ask node %d for memory of shard %d: %w", home, shard, err)
		case r.Ret[0]+r.Ret[1] >= segments:
			return nil
		case o.Left() == 0: // the next INSERT goes on: the node counts what it gave
			return fmt.Errorf("grow shard %d to level %d: %d of its %d segments have memory: %w",
				shard, level, r.Ret[0]+r.Ret[1], segments, extents.ErrNoTime)
		}
	}
}

// help divides some rows of a table that grows. It runs after an INSERT that has succeeded, so
// its error is dropped: what it leaves unfinished makes the shard dirty, and is settled before
// the next operation there.
func (s *Store) help(o *session.Op, shard int) {
	if o.Table.Levels == 0 {
		return
	}
	st := &o.Shards[shard]
	level, cursor := table.GrowthOf(s.levels.Words[shard])
	// Nothing is done without a share to take, or while the shard is not settled.
	if level == 0 || cursor >= o.Table.Ends(level) || st.Dirty || len(st.Flying) > 0 || len(st.Leased) > 0 {
		return
	}
	// An op of its own: its batches have less time, and the heartbeat that its locks set ends with
	// it.
	_ = s.share(o.Bounded(o.Left()/helpShare, o.Until, o.Heartbeat), shard)
}

// share takes the next share of a table that grows, and divides those of its rows that are made
// and do not have the level yet. A crash after the FAA leaves the rows of the share undivided.
func (s *Store) share(o *session.Op, shard int) error {
	b := o.EP.Batch()
	add := b.FetchAdd(o.Table.GrowthAt(shard), 1)
	if err := o.Do(steps.ShareGrowth, b); err != nil {
		o.KeepFlying(shard, b)
		return err
	}
	level, share := table.GrowthOf(add.Result) // both of one moment: the share is of this level
	s.levels.Learn(shard, add.Result+1)
	b.Release()
	// Clients that have not learned of the end add to the cursor all the same.
	if level == 0 || share >= o.Table.Ends(level) {
		return nil
	}
	from, to := o.Table.Shared(share)
	if from == to {
		return nil
	}
	s.locks.Start(shard)
	s.locks.ReadRange(o, from, to)
	for id := from; id < to; id++ {
		s.locks.LockRow(o, id)
	}
	if err := s.acquire(o, table.Ref{}, nil, nil); err != nil {
		return err
	}
	n := 0
	for id := from; id < to; id++ {
		// An INSERT that found the row full may have divided it since the share was taken. A torn
		// row is left to the clients that read it.
		if r := s.locks.Row(id, o.Table.RowBytes); o.Table.Valid(r, shard, id) && o.Table.Made(id, r) &&
			o.Table.Level(r) < level {
			n += s.addDivision(o, n, id, r)
		}
	}
	if n == 0 {
		return s.locks.Release(o)
	}
	return s.divide(o, n)
}

// where returns the place of a key, with the rows that are guessed. No trip is spent on the
// guess; the levels of the rows correct it: see descend, and answer.
func (s *Store) where(key []byte) table.Place {
	at := s.session.Table.Place(key)
	if s.session.Table.Levels > 0 {
		at.First, at.Second = s.levels.Guess(at.Shard, at.First, at.Bits), s.levels.Guess(at.Shard, at.Second, at.Bits)
	}
	return at
}

// addGrowth adds a READ of the growth word to a batch if a guess was wrong; else it returns nil.
// So a table that does not grow pays nothing.
func (s *Store) addGrowth(o *session.Op, b *rdma.Batch, shard int) *rdma.Op {
	if o.Table.Levels == 0 || !s.levels.Doubts[shard] {
		return nil
	}
	return b.Read(o.Table.GrowthAt(shard), 8)
}

// learned notes what addGrowth has read, before the batch is released.
func (s *Store) learned(shard int, read *rdma.Op) {
	if read != nil {
		s.levels.Learn(shard, le.Uint64(read.Buf))
	}
}

// readGrowths reads the growth words of all shards but those on nodes that are down. It looks at
// each op by itself, as a node that is down must not fail the others.
func (s *Store) readGrowths(o *session.Op) error {
	if o.Table.Levels == 0 {
		return nil
	}
	b := o.EP.Batch()
	defer b.Release()
	for shard := range o.Table.Shards {
		b.Read(o.Table.GrowthAt(shard), 8)
	}
	if err := o.EP.Post(b.As(steps.ReadGrowth)); err != nil {
		return err
	}
	if err := o.EP.Wait(b, rdma.All, o.Each); err != nil {
		return err
	}
	for shard := range o.Table.Shards {
		if op := b.Op(shard); op.Err == nil { // of a node that is down nothing is needed now
			s.levels.Learn(shard, le.Uint64(op.Buf))
		}
	}
	return nil
}
