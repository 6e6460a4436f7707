package rcuckoo

import (
	"bytes"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// rollForward completes a client's operation. No verb of the operation may land any more, and the
// caller must have the leases of its lock words, so that no other client writes the rows. It does
// nothing for an operation that has not begun. It may be repeated, by any client, and changes
// nothing then.
func (s *Store) rollForward(shard int, c rdma.ClientID, seq uint64) error {
	p, rows, begun, err := s.findRedo(shard, c, seq)
	if err != nil || !begun {
		return err
	}
	if err := s.carryForward(shard, c, p, rows); err != nil {
		return err
	}
	if freed := table.DecodeRef(p[table.RedoFreed:]); freed.Stamp != 0 {
		return s.markAgain(shard, freed)
	}
	return nil
}

// redoRows writes the rows of a redo that are not yet written on a copy, in the order in which
// the client would have written them.
func (s *Store) redoRows(shard int, at node.Replica, c rdma.ClientID, p []byte, rows int) error {
	for i := range rows {
		step := p[table.RedoHeader+i*(table.RedoStepBytes+s.table.EntryBytes):]
		if err := s.redoStep(shard, at, step[:table.RedoStepBytes+s.table.EntryBytes]); err != nil {
			return fmt.Errorf("step %d of the redo of client %d: %w", i+1, c, err)
		}
	}
	return nil
}

// markAgain ends the use that a redo ends, unless it has ended.
func (s *Store) markAgain(shard int, freed table.Ref) error {
	if !s.table.Names(freed, 0) {
		return fmt.Errorf("a redo names extent %d: %w", freed.Extent, client.ErrDamaged)
	}
	b := s.ep.Batch()
	s.table.AddMark(b, shard, freed)
	return s.carry(steps.RollForward, shard, b, "mark extent %d of shard %d", freed.Extent, shard)
}

// readRedo reads a client's redo on a copy, into memory of its own. begun: it is whole, and of
// the operation with a sequence.
func (s *Store) readRedo(shard int, at node.Replica, c rdma.ClientID, seq uint64) (
	p []byte, rows int, begun bool, err error,
) {
	b := s.ep.Batch()
	op := b.Read(s.table.RedoAt(at, c), int(s.table.RedoBytes))
	if err := s.do(steps.ReadRedo, b); err != nil {
		return nil, 0, false, s.unread(shard, b,
			fmt.Errorf("read the redo of client %d in shard %d: %w", c, shard, err))
	}
	p = bytes.Clone(op.Buf)
	b.Release()
	rows, begun = s.table.RedoOf(p, shard, c, seq)
	return p, rows, begun, nil
}

// RedoStepBytes writes the row of a step on a copy, unless it was written there. The error wraps
// client.ErrDamaged if the step, or a whole row, is one that no client can have written.
func (s *Store) redoStep(shard int, at node.Replica, p []byte) error {
	c, ok := s.table.DecodeStep(p)
	version, sum := le.Uint64(p[table.RedoVersion:]), le.Uint64(p[table.RedoRowSum:])
	if !ok {
		return fmt.Errorf("it names slot %d of row %d: %w", le.Uint64(p[table.RedoSlot:]), le.Uint64(p),
			client.ErrDamaged)
	}
	b := s.ep.Batch()
	defer b.Release()
	read := b.Read(s.table.RowAt(at, c.Row), s.table.RowBytes)
	// A division's new row needs the old one, which comes later in the redo and is not yet written.
	var parent table.Row
	if c.Kind == table.Filling {
		parent = b.Read(s.table.RowAt(at, s.table.Parent(c.Row)), s.table.RowBytes).Buf
	}
	if err := s.do(steps.RollForward, b); err != nil {
		return fmt.Errorf("read row %d of shard %d: %w", c.Row, shard, err)
	}
	r := table.Row(read.Buf)
	whole := s.table.Valid(r, shard, c.Row)
	// If this operation tore the row, it has the old version or the new one. If the version is
	// later, a later client tore the row. Then nothing may be written: other clients have changed
	// the row since.
	if v := s.table.Version(r); v > version || whole && v == version {
		return nil
	}
	// A new row that is missing is made from the old one, which is not yet written then. If it
	// were, the result would not have the sum.
	s.table.Redone(r, parent, shard, c, version)
	if s.table.Sum(r) != sum {
		if whole {
			return fmt.Errorf("row %d of shard %d has version %d, which it does not follow on: %w",
				c.Row, shard, version, client.ErrDamaged)
		}
		return nil // another client, which got the locks later, tore the row: its own redo is whole, too
	}
	// If this WRITE is torn by a crash, the redo is still there for the next client.
	w := s.ep.Batch()
	defer w.Release()
	w.WriteCopy(s.table.RowAt(at, c.Row), r)
	if err := s.do(steps.RollForward, w); err != nil {
		return fmt.Errorf("write row %d of shard %d: %w", c.Row, shard, err)
	}
	s.stats.Rolled++
	return nil
}
