package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// write carries out changes of rows that are locked and were read, in their order, ends the use
// of an extent that they replace, if any, and releases the locks: all in one trip, behind the one
// to the backups. No two changes may be of one row. If it fails, the outcome is unknown: see
// settle.
//
// What a crash leaves: before the redo is whole, nothing has begun. From then on repair completes
// the changes, marks the extent and frees the locks. All of these may have been done already.
func (s *Store) write(changes []table.Change, freed table.Ref) error {
	l := &s.locks
	l.sent = true // from here on the operation may have begun, on some copy
	if err := s.writeBackups(changes, freed); err != nil {
		return err
	}
	b := s.ep.Batch()
	s.addChanges(b, changes, freed, s.table.Copies[l.shard][:1])
	// The mark comes behind the rows: while a row names the use, the extent must not be claimed
	// again.
	if freed.Stamp != 0 {
		s.table.AddMark(b, l.shard, freed)
	}
	// The locks come last: a client that gets them finds whole rows.
	s.addReleases(b)
	if err := s.do(steps.WriteRows, b); err != nil {
		return s.lost(b, fmt.Errorf("write %d rows of shard %d: %w", len(changes), l.shard, err))
	}
	s.endReads()
	err := s.released(b)
	b.Release()
	if err != nil {
		return err
	}
	s.finish()
	if freed.Stamp != 0 {
		s.extents.Ended(l.shard, freed)
	}
	return nil
}

// addChanges adds the redo and the rows of changes, a chain for each of some copies, so that on
// each copy they land in this order (C1).
func (s *Store) addChanges(b *rdma.Batch, changes []table.Change, freed table.Ref, copies []node.Replica) {
	l := &s.locks
	var rows [table.MaxSteps]table.Row
	p := b.Alloc(table.RedoHeader + len(changes)*(table.RedoStepBytes+s.table.EntryBytes))
	clear(p[:table.RedoHeader])
	le.PutUint64(p, s.shards[l.shard].seq)
	le.PutUint64(p[table.RedoSteps:], uint64(len(changes)))
	freed.Encode(p[table.RedoFreed:])
	for i, c := range changes {
		r := table.Row(b.Alloc(s.table.RowBytes))
		s.changed(r, c)
		rows[i] = r
		s.cache.Put(l.shard, c.Row, r)
		s.table.EncodeStep(p[table.RedoHeader+i*(table.RedoStepBytes+s.table.EntryBytes):], c, r)
	}
	le.PutUint64(p[table.RedoSum:], table.RedoSumOf(p, l.shard, s.id))
	// All copies share the encoded bytes, which belong to the batch.
	for _, at := range copies {
		b.Chain()
		b.Write(s.table.RedoAt(at, s.id), p)
		for i, c := range changes {
			b.Write(s.table.RowAt(at, c.Row), rows[i])
		}
	}
}

// changed sets r to the row that results from a change. The rows that the change needs must be
// locked and read.
func (s *Store) changed(r table.Row, c table.Change) {
	l := &s.locks
	if c.Kind == table.Filling { // the new row goes on from its parent's version word, and gets the same level
		parent := l.row(s.table.Parent(c.Row), s.table.RowBytes)
		s.table.Redone(r, parent, l.shard, c, s.table.Version(parent)+table.Divided)
		return
	}
	copy(r, l.row(c.Row, s.table.RowBytes))
	behind := uint64(1) // how far the version advances
	if c.Kind == table.Leaving {
		behind = table.Divided
	}
	s.table.Redone(r, nil, l.shard, c, s.table.Version(r)+behind)
}
