package rcuckoo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// When the node of a shard's leader died, the next copy leads: the view says so to all. Before the
// view is idle again the pool's master makes that copy a leader. No other client does anything
// there, and nothing of earlier epochs lands. Its role is written last, so that another master does
// it again from the beginning, should this one come to an end in the midst; each step can be done
// again:
//
//	1. Operations that have begun (C4) are brought to their ends on all copies: of each client the redo with the highest sequence
//	   that some copy has whole. Those before it were whole on all copies when their client went on.
//	2. Intents: idle, with these sequences. So a client in the midst of an operation finds by its intent and its redo there
//	   whether it had begun, and its next sequence is above all that can be read. If it died, so is its successor's.
//	3. Locks, leases and hands were never used on this copy, as it never led: they are zero.
//	4. Marks, from the rows: an extent that a row names is used, with the ref's stamp, which has its unit's class. The unit's other
//	   extents are free, in that class. All other marks are zero.
//
//	5. The growth, from the rows: the level of the one that was divided most often; of that all is handed out where the others are
//	   of it, too, and else nothing.
//
// What clients had claimed, and no row names, is free by 4. They forget it when they learn that
// another copy leads, before they do anything there (see Store.applyView); the hands, from which
// others would free it, are empty.
//
// Marks that no row names begin anew, and so stamps may come again that were there under the former
// leader. No client takes the one use for the other: a ref is read in a row and followed in one
// epoch, as what fails with an epoch's end begins again at the rows; what is to be claimed is
// forgotten; CASes of earlier epochs do not land, and intents are idle, so that no redo of before
// ends a use again. A value is whole on all copies before a row names it, whatever its extent had
// before. An operation whose redo is whole nowhere never happened: no row of it was written on any
// copy that is left (C1), and none on the former leader (C2). A redo of an operation that ended long
// ago changes nothing: all rows that it names have its versions, or later ones, or are torn by an
// operation whose own redo is whole, too.

// takeOver makes the copy of a shard that leads in the view a leader.
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
	return s.makeLeader(s.ep, shard)
}

// unused makes sure of 3.
func (s *Store) unused(shard int) error {
	for from := 0; from < s.LockWords; from += walkBytes / 8 {
		n := min(walkBytes/8, s.LockWords-from)
		b := s.ep.Batch()
		locks, leases := b.Read(s.lockAt(shard, from), 8*n), b.Read(s.leaseAt(shard, from), 8*n)
		err := s.do(stepTakeOver, b)
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

// begun is a client's redo that some copy has whole; of none when seq is 0.
type begun struct {
	seq   uint64
	redo  []byte
	steps int
}

// finishBegun does 1 and 2.
func (s *Store) finishBegun(shard int) error {
	each := max(walkBytes/int(s.redo), 1)
	for from := 0; from < s.Clients; from += each {
		found := make([]begun, min(each, s.Clients-from))
		for _, at := range s.copies[shard] {
			if err := s.readRedos(shard, at, from, found); err != nil {
				return err
			}
		}
		for i, r := range found {
			if r.seq == 0 {
				continue
			}
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

// readRedos reads those of some clients on a copy, and keeps the latest ones that are whole.
func (s *Store) readRedos(shard int, at node.Replica, from int, found []begun) error {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(s.redoAt(at, rdma.ClientID(from+1)), len(found)*int(s.redo))
	if err := s.do(stepReadRedo, b); err != nil {
		return fmt.Errorf("read redos of shard %d: %w", shard, err)
	}
	for i := range found {
		p := op.Buf[i*int(s.redo):][:s.redo]
		seq := le.Uint64(p)
		if steps, whole := s.redoOf(p, shard, rdma.ClientID(from+i+1), seq); whole && seq > found[i].seq {
			found[i] = begun{seq, slices.Clone(p), steps}
		}
	}
	return nil
}

// resume does 2.
func (s *Store) resume(shard, from int, found []begun) error {
	b := s.ep.Batch()
	defer b.Release()
	for i, r := range found {
		if r.seq != 0 {
			b.WriteWord(s.intentAt(shard, rdma.ClientID(from+i+1)), r.seq<<1|idleBit)
		}
	}
	if err := s.do(stepTakeOver, b); err != nil {
		return fmt.Errorf("write intents of shard %d: %w", shard, err)
	}
	return nil
}

// remake does 4 and 5.
func (s *Store) remake(shard int) error {
	named, most, least := map[uint64]uint64{}, 0, MaxLevels // stamps; levels
	var torn error
	err := s.eachRow(s.ep, shard, s.leads[shard], func(n uint32, r row) {
		if !s.valid(r, shard, n) {
			torn = fmt.Errorf("row %d of shard %d is torn, and no redo has it: %w", n, shard, client.ErrDamaged)
			return
		}
		if s.made(n, r) {
			most, least = max(most, s.level(r)), min(least, s.level(r))
		}
		for slot := range s.entries {
			if e := s.entry(r, slot); s.sound(e) && e.meta.extent() && s.names(s.ref(e), e.meta.key()) {
				named[s.ref(e).extent] = s.ref(e).stamp
			}
		}
	})
	if err := errors.Join(err, torn); err != nil {
		return err
	}
	if s.Levels > 0 {
		if err := s.remakeGrowth(shard, most, least); err != nil {
			return err
		}
	}
	if !s.layout.extents() {
		return nil
	}
	for slab := range s.Slabs {
		if err := s.remark(shard, slab, named); err != nil {
			return err
		}
	}
	return nil
}

// remakeGrowth gives a table that may grow its level.
func (s *Store) remakeGrowth(shard, most, least int) error {
	now, err := s.readWord(s.growthAt(shard))
	if err != nil {
		return fmt.Errorf("read how far shard %d has grown: %w", shard, err)
	}
	word := uint64(most) << levelShift
	if most > 0 && least == most {
		word |= s.ends(most)
	}
	b := s.ep.Batch()
	defer b.Release()
	b.CompareSwap(s.growthAt(shard), now, word)
	if err := s.do(stepTakeOver, b); err != nil {
		return fmt.Errorf("tell how far shard %d has grown: %w", shard, err)
	}
	return nil
}

// remark gives the extents of a slab their marks, which are zero, or those of a master that did not
// come to the end.
func (s *Store) remark(shard, slab int, named map[uint64]uint64) error {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(s.slabAt(shard, slab), s.slabMarks()*markBytes)
	if err := s.do(stepTakeOver, b); err != nil {
		return fmt.Errorf("read marks of shard %d: %w", shard, err)
	}
	next := s.ep.Batch()
	defer next.Release()
	for i := range s.SlabExtents {
		unit := uint64(slab*s.SlabExtents + i)
		free, err := s.freeMark(unit, named)
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
		for place := range s.most() {
			extent, now, want := s.extentIn(unit, place), le.Uint64(op.Buf[(place*s.SlabExtents+i)*markBytes:]), uint64(0)
			if s.real(s.class(free>>1), place) {
				want = free
			}
			if stamp, ok := named[extent]; ok {
				want = mark(stamp, true)
			}
			if now != want {
				next.CompareSwap(s.markAt(shard, extent), now, want)
			}
		}
	}
	if next.Len() == 0 {
		return nil
	}
	if err := s.do(stepTakeOver, next); err != nil {
		return fmt.Errorf("mark extents of shard %d: %w", shard, err)
	}
	return nil
}

// freeMark is the mark of a free extent in a unit whose extents rows name: it has their class.
func (s *Store) freeMark(unit uint64, named map[uint64]uint64) (free uint64, err error) {
	class := -1
	for place := range s.most() {
		stamp, ok := named[s.extentIn(unit, place)]
		switch {
		case !ok:
		case class >= 0 && class != s.class(stamp):
			return 0, fmt.Errorf("rows name extents of two sizes in unit %d: %w", unit, client.ErrDamaged)
		default:
			class = s.class(stamp)
		}
	}
	return mark(withClass(0, max(class, 0)), false), nil
}
