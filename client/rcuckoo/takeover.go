package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
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
//  3. Locks, leases and hands are zero: this copy never led, so they were never used on it.
//  4. Marks follow from the rows. An extent that a row names is used, with the ref's stamp, which
//     has the unit's class. The other extents of the unit are free, in that class. All other
//     marks are zero.
//  5. The growth word follows from the rows: its level is that of the row that was divided most
//     often. If all rows are of that level, all shares are handed out, else none.
//
// Extents that clients had claimed, and that no row names, are free after 4. The clients forget
// them when they learn that another copy leads, before they do anything there (see
// Store.ApplyView). The hands, from which others would free the extents, are empty.
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

// takeOver makes the copy of a shard that leads in the view a leader. The role is the last WRITE,
// so a crash at any point leaves the copy without a role, and takeOver is repeated.
func (s *Store) takeOver(shard int) error {
	if err := s.unused(shard); err != nil {
		return err
	}
	if err := s.finishBegun(shard); err != nil {
		return err
	}
	if err := s.remake(shard); err != nil {
		return err
	}
	return makeLeader(s.table, s.ep, shard)
}

// unused checks 3. The error wraps client.ErrDamaged if a lock or lease is not zero.
func (s *Store) unused(shard int) error {
	for from := 0; from < s.table.LockWords; from += walkBytes / 8 {
		n := min(walkBytes/8, s.table.LockWords-from)
		b := s.ep.Batch()
		locks, leases := b.Read(s.table.LockAt(shard, from), 8*n), b.Read(s.table.LeaseAt(shard, from), 8*n)
		err := s.do(steps.TakeOver, b)
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
func (s *Store) finishBegun(shard int) error {
	each := max(walkBytes/int(s.table.RedoBytes), 1)
	for from := 0; from < s.table.Clients; from += each {
		found := make([]begun, min(each, s.table.Clients-from))
		for _, at := range s.table.Copies[shard] {
			if err := s.readRedos(shard, at, from, found); err != nil {
				return err
			}
		}
		for i, r := range found {
			if r.seq == 0 {
				continue
			}
			// The use that the redo ends needs no mark: remark sets all marks from the rows.
			if err := s.carryForward(shard, rdma.ClientID(from+i+1), r.redo, r.steps); err != nil {
				return err
			}
		}
		if err := s.resume(shard, from, found); err != nil {
			return err
		}
	}
	return nil
}

// readRedos reads the redos of some clients on a copy, and keeps in found the latest whole one of
// each.
func (s *Store) readRedos(shard int, at node.Replica, from int, found []begun) error {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(s.table.RedoAt(at, rdma.ClientID(from+1)), len(found)*int(s.table.RedoBytes))
	if err := s.do(steps.ReadRedo, b); err != nil {
		return fmt.Errorf("read redos of shard %d: %w", shard, err)
	}
	for i := range found {
		p := op.Buf[i*int(s.table.RedoBytes):][:s.table.RedoBytes]
		seq := le.Uint64(p)
		if rows, whole := s.table.RedoOf(p, shard, rdma.ClientID(from+i+1), seq); whole && seq > found[i].seq {
			found[i] = begun{seq, slices.Clone(p), rows}
		}
	}
	return nil
}

// resume does 2 for the clients that follow from.
func (s *Store) resume(shard, from int, found []begun) error {
	b := s.ep.Batch()
	defer b.Release()
	for i, r := range found {
		if r.seq != 0 {
			b.WriteWord(s.table.IntentAt(shard, rdma.ClientID(from+i+1)), r.seq<<1|table.IdleBit)
		}
	}
	if err := s.do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("write intents of shard %d: %w", shard, err)
	}
	return nil
}

// remake does 4 and 5. The error wraps client.ErrDamaged if a row is torn: all redos have been
// carried out.
func (s *Store) remake(shard int) error {
	// The stamps of the extents that rows name, and the highest and lowest level of rows that are
	// made.
	named, most, least := map[uint64]uint64{}, 0, table.MaxLevels
	var torn error
	err := eachRow(s.table, s.ep, shard, s.table.Leads[shard], func(n uint32, r table.Row) {
		if !s.table.Valid(r, shard, n) {
			torn = fmt.Errorf("row %d of shard %d is torn, and no redo has it: %w", n, shard, client.ErrDamaged)
			return
		}
		if s.table.Made(n, r) {
			most, least = max(most, s.table.Level(r)), min(least, s.table.Level(r))
		}
		for slot := range s.table.Slots {
			if e := s.table.Entry(r, slot); s.table.Sound(e) && e.Meta.Extent() && s.table.Names(s.table.Ref(e),
				e.Meta.Key()) {
				named[s.table.Ref(e).Extent] = s.table.Ref(e).Stamp
			}
		}
	})
	if err := errors.Join(err, torn); err != nil {
		return err
	}
	if s.table.Levels > 0 {
		if err := s.remakeGrowth(shard, most, least); err != nil {
			return err
		}
	}
	if !s.table.HasExtents() {
		return nil
	}
	for slab := range s.table.Slabs {
		if err := s.remark(shard, slab, named); err != nil {
			return err
		}
	}
	return nil
}

// remakeGrowth does 5: it sets the growth word of a table that may grow. Memory needs nothing:
// with replicas all of it was taken when the pool was made.
func (s *Store) remakeGrowth(shard, most, least int) error {
	now, err := s.readWord(s.table.GrowthAt(shard))
	if err != nil {
		return fmt.Errorf("read how far shard %d has grown: %w", shard, err)
	}
	word := uint64(most) << table.LevelShift
	if most > 0 && least == most {
		word |= s.table.Ends(most)
	}
	b := s.ep.Batch()
	defer b.Release()
	b.CompareSwap(s.table.GrowthAt(shard), now, word) // the word is changed by atomics only
	if err := s.do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("tell how far shard %d has grown: %w", shard, err)
	}
	return nil
}

// remark does 4 for a slab: it sets the marks. They are zero before, or were set by a master that
// did not complete the takeover.
func (s *Store) remark(shard, slab int, named map[uint64]uint64) error {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(s.table.SlabAt(shard, slab), s.table.SlabMarks()*table.MarkBytes)
	if err := s.do(steps.TakeOver, b); err != nil {
		return fmt.Errorf("read marks of shard %d: %w", shard, err)
	}
	// Marks are changed by CASes only, also here, and only those that are wrong.
	next := s.ep.Batch()
	defer next.Release()
	for i := range s.table.SlabExtents {
		unit := uint64(slab*s.table.SlabExtents + i)
		free, err := s.freeMark(unit, named)
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
		for place := range s.table.Most() {
			extent, now, want := s.table.ExtentIn(unit, place),
				le.Uint64(op.Buf[(place*s.table.SlabExtents+i)*table.MarkBytes:]), uint64(0)
			if s.table.Real(s.table.Class(free>>1), place) {
				want = free
			}
			if stamp, ok := named[extent]; ok {
				want = table.Mark(stamp, true)
			}
			if now != want {
				next.CompareSwap(s.table.MarkAt(shard, extent), now, want)
			}
		}
	}
	if next.Len() == 0 {
		return nil
	}
	if err := s.do(steps.TakeOver, next); err != nil {
		return fmt.Errorf("mark extents of shard %d: %w", shard, err)
	}
	return nil
}

// freeMark returns the mark of the free extents in a unit. It has the class of the extents that
// rows name, or class 0 if they name none. The error wraps client.ErrDamaged if they name extents
// of two classes.
func (s *Store) freeMark(unit uint64, named map[uint64]uint64) (free uint64, err error) {
	class := -1
	for place := range s.table.Most() {
		stamp, ok := named[s.table.ExtentIn(unit, place)]
		switch {
		case !ok:
		case class >= 0 && class != s.table.Class(stamp):
			return 0, fmt.Errorf("rows name extents of two sizes in unit %d: %w", unit, client.ErrDamaged)
		default:
			class = s.table.Class(stamp)
		}
	}
	return table.Mark(table.WithClass(0, max(class, 0)), false), nil
}
