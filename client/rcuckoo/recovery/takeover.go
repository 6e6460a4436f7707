package recovery

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// When the node of a shard's leader dies, the next copy leads, as the view says. Before the view
// is idle again the pool's master makes that copy a leader. No other client changes anything in
// the shard meanwhile, and no verb of earlier epochs lands. The master writes the copy's role
// last. If the master dies before, another one begins again from the first step, as each step can
// be repeated:
//
//  1. Operations that have begun (C4) are completed on all copies: of each client the one that
//     has the redo with the highest sequence which is whole on some copy. Earlier redos of the
//     client were whole on all copies before it went on.
//  2. Intents become idle, with these sequences. So a client that was at work finds by its intent
//     and its redo whether its operation had begun, and its next sequence is above all that can
//     be read. If it died, so is that of the next holder of its identity.
//  3. Locks, leases and claim lists are zero: this copy never led, so they were never used on it.
//  4. Marks follow from the rows. An extent that a row names is used, with the ref's stamp, which
//     has the unit's class. The other extents of the unit are free, in that class. All other
//     marks are zero.
//  5. The growth word follows from the rows: its level is that of the row that was divided most
//     often. If all rows are of that level, all shares are handed out, else none.
//
// Extents that clients had claimed, and that no row names, are free after 4. The clients forget
// them when they learn that another copy leads, before they do anything there (see
// Store.applyView). The claim lists, from which others would free the extents, are empty.
//
// Marks that no row names start from zero, so stamps of the former leader may appear again. No
// client takes the one use for the other:
//
//   - A ref is read in a row and followed within one epoch: an operation that fails at the end of
//     an epoch begins again at the rows.
//   - What a client was about to claim is forgotten.
//   - CASes of earlier epochs do not land, and intents are idle, so no earlier redo ends a use
//     again.
//   - A value is whole on all copies before a row names it, whatever its extent contained before.
//
// If the redo of an operation is whole on no copy, the operation never took effect: none of its
// rows was written on the copies that are left (C1), nor on the former leader (C2). A redo of an
// operation that was completed long ago changes nothing: each row that it names has its version,
// or a later one, or is torn by an operation that has a whole redo of its own.

// TakeOver makes the copy of a shard that leads in the view a leader. The role is the last WRITE,
// so a crash at any point leaves the copy without a role, and TakeOver is repeated.
func TakeOver(o *session.Op, shard int) error {
	if err := unused(o, shard); err != nil {
		return err
	}
	// The rows first: what remake writes follows from them.
	if err := finishBegun(o, shard); err != nil {
		return err
	}
	if err := remake(o, shard); err != nil {
		return err
	}
	return MakeLeader(o.Table, o.EP, shard)
}

// unused checks 3. The error wraps client.ErrDamaged if a lock or lease is not zero.
func unused(o *session.Op, shard int) error {
	for from := 0; from < o.Table.LockWords; from += table.WalkBytes / 8 {
		n := min(table.WalkBytes/8, o.Table.LockWords-from)
		b := o.EP.Batch()
		locks, leases := b.Read(o.Table.LockAt(shard, from), 8*n), b.Read(o.Table.LeaseAt(shard, from), 8*n)
		err := o.Do(steps.TakeOver, b)
		used := err == nil && (slices.ContainsFunc(locks.Buf, nonzero) || slices.ContainsFunc(leases.Buf, nonzero))
		b.Release()
		switch {
		case err != nil:
			return fmt.Errorf("read the locks of shard %d: %w", shard, err)
		case used:
			return fmt.Errorf("a backup of shard %d has locks: %w", shard, client.ErrDamaged)
		}
	}
	return nil
}

func nonzero(b byte) bool { return b != 0 }

// begun is a client's latest redo that is whole on some copy. seq 0: there is none.
type begun struct {
	seq   uint64
	redo  []byte // a copy of its own
	steps int
}

// finishBegun does 1 and 2, for some clients at a time, so that a READ is not too large. All
// copies must answer: one that does not may have the only whole redo.
func finishBegun(o *session.Op, shard int) error {
	each := max(table.WalkBytes/int(o.Table.RedoBytes), 1)
	for from := 0; from < o.Table.Clients; from += each {
		found := make([]begun, min(each, o.Table.Clients-from))
		for _, at := range o.Table.Copies[shard] {
			if err := readRedos(o, shard, at, from, found); err != nil {
				return err
			}
		}
		for i, r := range found {
			if r.seq == 0 {
				continue
			}
			// The use that the redo ends needs no mark: remark sets all marks from the rows.
			if err := carryForward(o, shard, rdma.ClientID(from+i+1), r.redo, r.steps); err != nil {
				return err
			}
		}
		if err := resume(o, shard, from, found); err != nil {
			return err
		}
	}
	return nil
}

// readRedos reads the redos of some clients on a copy, and keeps in found the latest whole one of
// each.
func readRedos(o *session.Op, shard int, at node.Replica, from int, found []begun) error {
	b := o.EP.Batch()
	defer b.Release()
	op := b.Read(o.Table.RedoAt(at, rdma.ClientID(from+1)), len(found)*int(o.Table.RedoBytes))
	if err := o.Do(steps.ReadRedo, b); err != nil {
		return fmt.Errorf("read redos of shard %d: %w", shard, err)
	}
	for i := range found {
		p := op.Buf[i*int(o.Table.RedoBytes):][:o.Table.RedoBytes]
		// Intents were at the former leader, so a redo goes by its own sequence.
		seq := le.Uint64(p)
		if rows, whole := o.Table.RedoOf(p, shard, rdma.ClientID(from+i+1), seq); whole && seq > found[i].seq {
			found[i] = begun{seq, slices.Clone(p), rows}
		}
	}
	return nil
}

// resume does 2 for the clients that follow from. The intents of clients without a redo are zero,
// which is idle, as this copy never led.
func resume(o *session.Op, shard, from int, found []begun) error {
	b := o.EP.Batch()
	defer b.Release()
	for i, r := range found {
		if r.seq != 0 {
			b.WriteWord(o.Table.IntentAt(shard, rdma.ClientID(from+i+1)), r.seq<<1|table.IdleBit)
		}
	}
	if err := o.Do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("write intents of shard %d: %w", shard, err)
	}
	return nil
}

// remake does 4 and 5. The error wraps client.ErrDamaged if a row is torn: all redos have been
// carried out.
func remake(o *session.Op, shard int) error {
	// The stamps of the extents that rows name, and the highest and lowest level of rows that are
	// made.
	named, most, least := map[uint64]uint64{}, 0, table.MaxLevels
	var torn error
	// The leader alone is read: finishBegun has made the rows of all copies equal.
	err := table.EachRow(o.Table, o.EP, shard, o.Table.Leads[shard], func(n uint32, r table.Row) {
		if !o.Table.Valid(r, shard, n) {
			torn = fmt.Errorf("row %d of shard %d is torn, and no redo has it: %w", n, shard, client.ErrDamaged)
			return
		}
		if o.Table.Made(n, r) {
			most, least = max(most, o.Table.Level(r)), min(least, o.Table.Level(r))
		}
		for slot := range o.Table.Slots {
			e := o.Table.Entry(r, slot)
			if o.Table.Sound(e) && e.Meta.Extent() && o.Table.Names(o.Table.Ref(e), e.Meta.Key()) {
				named[o.Table.Ref(e).Extent] = o.Table.Ref(e).Stamp
			}
		}
	})
	if err := errors.Join(err, torn); err != nil {
		return err
	}
	if o.Table.Levels > 0 {
		if err := remakeGrowth(o, shard, most, least); err != nil {
			return err
		}
	}
	if !o.Table.HasExtents() {
		return nil
	}
	for slab := range o.Table.Slabs {
		if err := remark(o, shard, slab, named); err != nil {
			return err
		}
	}
	return nil
}

// remakeGrowth does 5: it sets the growth word of a table that may grow. Memory needs nothing:
// with replicas all of it was taken when the pool was made.
func remakeGrowth(o *session.Op, shard, most, least int) error {
	now, err := o.ReadWord(o.Table.GrowthAt(shard))
	if err != nil {
		return fmt.Errorf("read how far shard %d has grown: %w", shard, err)
	}
	// The level may be less than the former leader had, if it was begun and no row had been
	// divided: then it is begun again.
	word := uint64(most) << table.LevelShift
	if most > 0 && least == most {
		word |= o.Table.Ends(most)
	}
	b := o.EP.Batch()
	defer b.Release()
	b.CompareSwap(o.Table.GrowthAt(shard), now, word) // the word is changed by atomics only
	if err := o.Do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("tell how far shard %d has grown: %w", shard, err)
	}
	return nil
}

// remark does 4 for a slab: it sets the marks. They are zero before, or were set by a master that
// did not complete the takeover.
func remark(o *session.Op, shard, slab int, named map[uint64]uint64) error {
	b := o.EP.Batch()
	defer b.Release()
	op := b.Read(o.Table.SlabAt(shard, slab), o.Table.SlabMarks()*table.MarkBytes)
	if err := o.Do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("read marks of shard %d: %w", shard, err)
	}
	// Marks are changed by CASes only, also here, and only those that are wrong.
	next := o.EP.Batch()
	defer next.Release()
	for i := range o.Table.SlabExtents {
		unit := uint64(slab*o.Table.SlabExtents + i)
		free, err := freeMark(o, unit, named)
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
		for place := range o.Table.Most() {
			extent, now, want := o.Table.ExtentIn(unit, place),
				le.Uint64(op.Buf[(place*o.Table.SlabExtents+i)*table.MarkBytes:]), uint64(0)
			if o.Table.Real(o.Table.Class(free>>1), place) {
				want = free
			}
			if stamp, ok := named[extent]; ok {
				want = table.Mark(stamp, true)
			}
			// A mark that an interrupted takeover has set is right already.
			if now != want {
				next.CompareSwap(o.Table.MarkAt(shard, extent), now, want)
			}
		}
	}
	if next.Len() == 0 {
		return nil
	}
	if err := o.Do(steps.TakeOver, next); err != nil {
		return fmt.Errorf("mark extents of shard %d: %w", shard, err)
	}
	return nil
}

// freeMark returns the mark of the free extents in a unit. It has the class of the extents that
// rows name, or class 0 if they name none. The error wraps client.ErrDamaged if they name extents
// of two classes. A change of class that was at work is forgotten: no row names an extent of a
// class that the unit did not have.
func freeMark(o *session.Op, unit uint64, named map[uint64]uint64) (free uint64, err error) {
	class := -1
	for place := range o.Table.Most() {
		stamp, ok := named[o.Table.ExtentIn(unit, place)]
		switch {
		case !ok:
		case class >= 0 && class != o.Table.Class(stamp):
			return 0, fmt.Errorf("rows name extents of two sizes in unit %d: %w", unit, client.ErrDamaged)
		default:
			class = o.Table.Class(stamp)
		}
	}
	return table.Mark(table.WithClass(0, max(class, 0)), false), nil
}

// MakeLeader writes the role of the copy that leads in the view, in a new pool or at the end of a
// takeover.
func MakeLeader(l *table.Layout, ep rdma.Endpoint, shard int) error {
	b := ep.Batch()
	defer b.Release()
	b.WriteWord(l.RoleAt(shard), table.Leading)
	if err := rdma.Do(ep, b.As(steps.TakeOver), l.Timeout); err != nil {
		return fmt.Errorf("make a leader of shard %d: %w", shard, err)
	}
	return nil
}
