package recovery

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// rollForward completes a client's operation. No verb of the operation may land any more, and the
// caller must have the leases of its lock words, so that no other client writes the rows. It does
// nothing for an operation that has not begun. It may be repeated, by any client, and changes
// nothing then.
func rollForward(o *session.Op, shard int, c rdma.ClientID, seq uint64) error {
	p, rows, begun, err := findRedo(o, shard, c, seq)
	if err != nil || !begun {
		return err
	}
	if err := carryForward(o, shard, c, p, rows); err != nil {
		return err
	}
	if freed := table.DecodeRef(p[table.RedoFreed:]); freed.Stamp != 0 {
		return markAgain(o, shard, freed)
	}
	return nil
}

// redoRows writes the rows of a redo that are not yet written on a copy, in the order in which
// the client would have written them. So an entry that moves is always in one of its rows, also
// for readers, which take no lock and go on meanwhile.
func redoRows(o *session.Op, shard int, at node.Replica, c rdma.ClientID, p []byte, rows int) error {
	for i := range rows {
		step := p[table.RedoHeader+i*(table.RedoStepBytes+o.Table.EntryBytes):]
		if err := RedoStep(o, shard, at, step[:table.RedoStepBytes+o.Table.EntryBytes]); err != nil {
			return fmt.Errorf("step %d of the redo of client %d: %w", i+1, c, err)
		}
	}
	return nil
}

// markAgain ends the use that a redo ends, unless it has ended. The CAS names the use, so it
// finds nothing to do if the extent is free or has another use by now.
func markAgain(o *session.Op, shard int, freed table.Ref) error {
	if !o.Table.Names(freed, 0) {
		return fmt.Errorf("a redo names extent %d: %w", freed.Extent, client.ErrDamaged)
	}
	b := o.EP.Batch()
	o.Table.AddMark(b, shard, freed)
	return o.Carry(steps.RollForward, shard, b, "mark extent %d of shard %d", freed.Extent, shard)
}

// ReadRedo reads a client's redo on a copy, into memory of its own. begun: it is whole, and of
// the operation with a sequence. A redo that was cut off stays torn, as no verb of its
// operation lands any more. Its sum shows that, and so that the operation has not begun.
func ReadRedo(o *session.Op, shard int, at node.Replica, c rdma.ClientID, seq uint64) (
	p []byte, rows int, begun bool, err error,
) {
	b := o.EP.Batch()
	op := b.Read(o.Table.RedoAt(at, c), int(o.Table.RedoBytes))
	if err := o.Do(steps.ReadRedo, b); err != nil {
		return nil, 0, false, o.Failed(shard, b,
			fmt.Errorf("read the redo of client %d in shard %d: %w", c, shard, err))
	}
	p = bytes.Clone(op.Buf)
	b.Release()
	rows, begun = o.Table.RedoOf(p, shard, c, seq)
	return p, rows, begun, nil
}

// RedoStep writes the row of a step on a copy, unless it was written there. What it does depends
// on the row that it reads:
//
//	a later version              nothing: the locks were free since, so all rows were written
//	whole, the redo's version    nothing: it was written
//	whole, an older version      it applies the change, and writes the row
//	torn                         it applies the change. If the result has the redo's sum it writes
//	                             the row. Else a later client tore it, whose own redo is whole.
//
// A torn row has words of the old and of the new row only, and the change sets the words in which
// these differ. So the result does not depend on how much of the row had landed. The error wraps
// client.ErrDamaged if the step, or a whole row, is one that no client can have written.
func RedoStep(o *session.Op, shard int, at node.Replica, p []byte) error {
	c, ok := o.Table.DecodeStep(p)
	version, sum := le.Uint64(p[table.RedoVersion:]), le.Uint64(p[table.RedoRowSum:])
	if !ok {
		return fmt.Errorf("it names slot %d of row %d: %w", le.Uint64(p[table.RedoSlot:]), le.Uint64(p),
			client.ErrDamaged)
	}
	b := o.EP.Batch()
	defer b.Release()
	read := b.Read(o.Table.RowAt(at, c.Row), o.Table.RowBytes)
	// A division's new row needs the old one, which comes later in the redo and is not yet written.
	var parent table.Row
	if c.Kind == table.Filling {
		parent = b.Read(o.Table.RowAt(at, o.Table.Parent(c.Row)), o.Table.RowBytes).Buf
	}
	if err := o.Do(steps.RollForward, b); err != nil {
		return fmt.Errorf("read row %d of shard %d: %w", c.Row, shard, err)
	}
	r := table.Row(read.Buf)
	whole := o.Table.Valid(r, shard, c.Row)
	// If this operation tore the row, it has the old version or the new one. If the version is
	// later, a later client tore the row. Then nothing may be written: other clients have changed
	// the row since.
	if v := o.Table.Version(r); v > version || whole && v == version {
		return nil
	}
	// A new row that is missing is made from the old one, which is not yet written then. If it
	// were, the result would not have the sum.
	o.Table.Redone(r, parent, shard, c, version)
	if o.Table.Sum(r) != sum {
		if whole {
			return fmt.Errorf("row %d of shard %d has version %d, which it does not follow on: %w",
				c.Row, shard, version, client.ErrDamaged)
		}
		return nil // another client, which got the locks later, tore the row: its own redo is whole, too
	}
	// If this WRITE is torn by a crash, the redo is still there for the next client. The WRITE
	// has a buffer of its own: it may land after the batch of the READ is released.
	w := o.EP.Batch()
	defer w.Release()
	w.WriteCopy(o.Table.RowAt(at, c.Row), r)
	if err := o.Do(steps.RollForward, w); err != nil {
		return fmt.Errorf("write row %d of shard %d: %w", c.Row, shard, err)
	}
	o.Stats.Rolled++
	return nil
}

// findRedo looks for a client's redo on all copies. begun: it is whole on one of them (C4). An
// error of any copy that is asked is returned, as that copy may have the only one. Any whole one
// will do: all copies were to get the same bytes.
func findRedo(o *session.Op, shard int, c rdma.ClientID, seq uint64) (p []byte, rows int, begun bool, err error) {
	for _, at := range o.Table.Copies[shard] {
		if p, rows, begun, err = ReadRedo(o, shard, at, c, seq); err != nil || begun {
			return p, rows, begun, err
		}
	}
	return nil, 0, false, nil
}

// carryForward completes an operation that has begun on all copies, on the leader last (C2, C4).
// A crash in between leaves copies that differ, and the redo on those that were written. The next
// client that repairs finds the redo there, and does all of it again: rows that have the redo's
// version are not written twice.
func carryForward(o *session.Op, shard int, c rdma.ClientID, p []byte, rows int) error {
	for _, at := range slices.Backward(o.Table.Copies[shard]) {
		// The copy's own redo first (C1): if this client dies, too, the next one finds it there.
		if o.Table.Replicas > 1 {
			if err := copyRedo(o, shard, at, c,
				p[:table.RedoHeader+rows*(table.RedoStepBytes+o.Table.EntryBytes)]); err != nil {
				return err
			}
		}
		if err := redoRows(o, shard, at, c, p, rows); err != nil {
			return err
		}
	}
	return nil
}

// copyRedo writes a client's redo to a copy where it may not have landed. No verb of the client
// may land any more.
//
// p ends with the last step. What lies behind it in the record is of an earlier redo, and the sum
// does not cover it.
func copyRedo(o *session.Op, shard int, at node.Replica, c rdma.ClientID, p []byte) error {
	b := o.EP.Batch()
	b.WriteCopy(o.Table.RedoAt(at, c), p)
	return o.Carry(steps.RollForward, shard, b, "write the redo of client %d in shard %d", c, shard)
}
