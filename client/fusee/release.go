package fusee

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

const marksPerTrip = 64 // objects whose marks are read, or written, in one trip

// release frees what the dead client held, and what it had replaced and not freed (FUSEE 5.3, "recover its batched free
// operations"), and passes its blocks on. Marks come first: whoever repeats this after a crash finds the blocks still the dead
// client's, or everything in them marked.
func (r *recovery) release() error {
	r.step("mark free")
	for from := 0; from < len(r.lost); from += marksPerTrip {
		if err := r.markLost(r.lost[from:min(from+marksPerTrip, len(r.lost))]); err != nil {
			return err
		}
	}
	for from := 0; from < len(r.olds); from += marksPerTrip {
		if err := r.markOld(r.olds[from:min(from+marksPerTrip, len(r.olds))]); err != nil {
			return err
		}
	}
	r.step("pass on blocks")
	for _, blk := range r.list {
		if e := r.blocks[blk]; e.Owner() == r.dead {
			if err := r.passOnOf(blk, e); err != nil {
				return fmt.Errorf("pass on block %v: %w", blk, err)
			}
		}
	}
	return nil
}

// markLost marks objects that nothing points at. Each replica gets the mark of its own incarnation: a torn draft may have
// reached one of them and not the other.
func (r *recovery) markLost(lost []remains) error {
	heads := r.ep.Batch()
	defer heads.Release()
	for i := range lost {
		r.readHeads(heads, lost[i].unit)
	}
	if err := r.do(heads); err != nil {
		return err
	}
	marks := r.ep.Batch()
	defer marks.Release()
	k := 0
	for i := range lost {
		o := &lost[i]
		for c := range r.space.CopiesOf(o.unit) {
			h := heads.Op(k)
			k++
			inc, mark := le.Uint32(h.Buf[incarnationAt:]), le.Uint64(h.Buf[markAt:])
			if inc == 0 || mark == uint64(inc) {
				continue
			}
			r.writeMark(marks, h.Addr, inc)
			if c == 0 {
				r.hint(marks, o.unit, o.class)
				r.report.Freed++
			}
		}
	}
	if marks.Len() == 0 {
		return nil
	}
	return r.do(marks)
}

// markOld marks objects that the dead client replaced, where they are not free yet: their incarnation is the one that its log
// names, and their mark is not.
func (r *recovery) markOld(olds []old) error {
	heads := r.ep.Batch()
	defer heads.Release()
	var sound []old
	for _, o := range olds {
		if blk, off, ok := r.space.BlockOf(o.word.Unit()); ok && off+uint64(o.word.Units())*node.Unit <= r.space.BlockBytes && blk.Index >= 0 {
			sound = append(sound, o)
			r.readHeads(heads, o.word.Unit())
		}
	}
	if len(sound) == 0 {
		return nil
	}
	if err := r.do(heads); err != nil {
		return err
	}
	marks := r.ep.Batch()
	defer marks.Release()
	k := 0
	for _, o := range sound {
		for c := range r.space.CopiesOf(o.word.Unit()) {
			h := heads.Op(k)
			k++
			inc, mark := le.Uint32(h.Buf[incarnationAt:]), le.Uint64(h.Buf[markAt:])
			if inc != o.inc || mark == uint64(inc) {
				continue
			}
			r.writeMark(marks, h.Addr, inc)
			if c == 0 {
				r.hint(marks, o.word.Unit(), int(r.classes.of[o.word.Units()]))
				r.report.Freed++
			}
		}
	}
	if marks.Len() == 0 {
		return nil
	}
	return r.do(marks)
}

// readHeads adds the READs of an object's mark and incarnation on every replica.
func (r *recovery) readHeads(b *rdma.Batch, unit uint64) {
	for c := range r.space.CopiesOf(unit) {
		b.Read(r.space.UnitAt(unit, c), incarnationAt+8)
	}
}

func (r *recovery) writeMark(b *rdma.Batch, object rdma.Addr, inc uint32) {
	p := b.Alloc(8)
	le.PutUint64(p, uint64(inc))
	b.Write(object.Add(markAt), p)
}

// hint adds the FAA of an object's bit in the bitmap of its block, behind its mark. It may be set already: then the sum
// spoils a hint, which costs nobody but whoever looks for it.
func (r *recovery) hint(b *rdma.Batch, unit uint64, class int) {
	blk, off, _ := r.space.BlockOf(unit)
	i := int(off-r.space.BitmapBytes()) / (r.classes.units[class] * node.Unit)
	b.FetchAdd(r.space.Bitmap(blk, 0).Add(uint64(i/64*8)), 1<<(i%64))
}

// passOnOf changes a block's entry from the dead client's to node.Left, the backups' before the primary's. Entries that
// a predecessor changed already stay.
func (r *recovery) passOnOf(blk node.Block, e node.Entry) error {
	left := e.Next(node.Left, e.Class())
	for c := r.space.Copies(blk.Region) - 1; c >= 0; c-- {
		b := r.ep.Batch()
		op := b.CompareSwap(r.space.Entry(blk, c), uint64(e), uint64(left))
		err := r.do(b)
		found := node.Entry(op.Result)
		b.Release()
		if err != nil {
			return err
		}
		if found != e && found != left {
			return fmt.Errorf("replica %d has %v, not %v: %w", c, found, e, errTables)
		}
	}
	return nil
}
