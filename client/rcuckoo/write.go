package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// write carries out changes of rows that are locked and were read, in their order, ends the use
// of an extent that they replace, if any, and releases the locks: all in one trip, behind the one
// to the backups. No two changes may be of one row. If it fails, the outcome is unknown: see
// settle.go of package recovery.
//
// What a crash leaves, by the last verb that has landed on the leader:
//
//	none, or a part of the redo    locks, and an intent that names them; repair frees the locks
//	the redo, or some rows         repair writes the rows that are missing, and does the rest
//	all rows                       repair ends the use of the extent, and frees the locks
//	the mark of the extent         repair frees the locks
//	some of the locks              repair frees the others: the intent still names all of them
//
// In the last four the change has taken effect; what is repeated has no effect a second time.
func (s *Store) write(o *session.Op, changes []table.Change, freed table.Ref) error {
	l := s.locks
	l.Sent = true // from here on the operation may have begun, on some copy
	if err := s.writeBackups(o, changes, freed); err != nil {
		return err
	}
	b := o.EP.Batch()
	s.addChanges(o, b, changes, freed, o.Table.Copies[l.Shard][:1])
	// The mark comes behind the rows: while a row names the use, the extent must not be claimed
	// again.
	if freed.Stamp != 0 {
		o.Table.AddMark(b, l.Shard, freed)
	}
	// The locks come last: a client that gets them finds whole rows.
	s.locks.AddReleases(o, b)
	if err := o.Do(steps.WriteRows, b); err != nil {
		return s.locks.Lost(o, b, fmt.Errorf("write %d rows of shard %d: %w", len(changes), l.Shard, err))
	}
	s.locks.EndReads()
	err := s.locks.Released(b)
	b.Release()
	if err != nil {
		return err
	}
	s.locks.Finish(o)
	if freed.Stamp != 0 {
		// A hint for the next claim: the extent is free for all clients.
		s.extents.Ended(l.Shard, freed)
	}
	return nil
}

// addChanges adds the redo and the rows of changes, a chain for each of some copies, so that on
// each copy they land in this order (C1):
//
//	redo | row of the first change | row of the second | ...
//
// The redo names the versions and the checksums that the rows will have, so all rows are made
// before the redo is encoded. The cache gets the new rows now. If the operation fails they may
// never land, but no INSERT relies on the cache.
func (s *Store) addChanges(
	o *session.Op, b *rdma.Batch, changes []table.Change, freed table.Ref, copies []node.Replica,
) {
	l := s.locks
	var rows [table.MaxSteps]table.Row
	p := b.Alloc(table.RedoHeader + len(changes)*(table.RedoStepBytes+o.Table.EntryBytes))
	clear(p[:table.RedoHeader])
	le.PutUint64(p, o.Shards[l.Shard].Seq)
	le.PutUint64(p[table.RedoSteps:], uint64(len(changes)))
	freed.Encode(p[table.RedoFreed:])
	for i, c := range changes {
		r := table.Row(b.Alloc(o.Table.RowBytes))
		s.changed(o, r, c)
		rows[i] = r
		s.cache.Put(l.Shard, c.Row, r)
		o.Table.EncodeStep(p[table.RedoHeader+i*(table.RedoStepBytes+o.Table.EntryBytes):], c, r)
	}
	le.PutUint64(p[table.RedoSum:], table.RedoSumOf(p, l.Shard, o.ID))
	// All copies share the encoded bytes, which belong to the batch.
	for _, at := range copies {
		b.Chain()
		b.Write(o.Table.RedoAt(at, o.ID), p)
		for i, c := range changes {
			b.Write(o.Table.RowAt(at, c.Row), rows[i])
		}
	}
}

// changed sets r to the row that results from a change. The rows that the change needs must be
// locked and read.
func (s *Store) changed(o *session.Op, r table.Row, c table.Change) {
	l := s.locks
	if c.Kind == table.Filling { // the new row goes on from its parent's version word, and gets the same level
		parent := l.Row(o.Table.Parent(c.Row), o.Table.RowBytes)
		o.Table.Redone(r, parent, l.Shard, c, o.Table.Version(parent)+table.Divided)
		return
	}
	copy(r, l.Row(c.Row, o.Table.RowBytes))
	behind := uint64(1) // how far the version advances
	if c.Kind == table.Leaving {
		behind = table.Divided
	}
	o.Table.Redone(r, nil, l.Shard, c, o.Table.Version(r)+behind)
}
