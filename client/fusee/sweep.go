package fusee

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Sweep frees the objects that no slot points at in blocks that clients left. A crash may leave
// some: a client that dies between the replacement of a pair and its log, or a client whose write a
// master completed. Only the writer of an object ever proposes its word, and the writer is gone. So
// nothing can come to point at the object, and no client has to stop.
//
// Others may adopt the blocks meanwhile, and use the objects again. So blocks count only if they
// are still left, in the same generation, when everything has been read; and a mark names the
// incarnation that was read then, which an adopter's use of the object is not.
func (m *Mender) Sweep(v rdma.View) error {
	m.view.Enter(v)
	if err := m.learnSize(); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	r := &recovery{Mender: m, ops: map[uint64]opcode{}, blocks: map[node.Block]node.Entry{}}
	for _, g := range r.regions {
		if m.NodeCentric && m.space.Copies(g) > 1 { // a block may be unrecorded by the client that took its first object
			if err := m.mendTable(g, func(e node.Entry) bool { return e.Owner() == node.OfNode }); err != nil {
				return fmt.Errorf("sweep: block allocation table of region %d: %w", g, err)
			}
		}
		if err := r.findBlocks(g); err != nil {
			return fmt.Errorf("sweep: block allocation table of region %d: %w", g, err)
		}
	}
	for _, step := range []func() error{r.traverse, r.requests, m.rest, r.forgetAdopted, r.markLost, r.hintFree} {
		if err := step(); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// hintFree hints at the free objects of the blocks. A client chooses a block to adopt by its hints,
// and hints die with the node of a block's primary. One too many does no harm.
func (r *recovery) hintFree() error {
	units := make([][]uint64, len(r.classes.units))
	for i := range r.objects {
		if o := &r.objects[i]; o.inc == 0 || o.mark == uint64(o.inc) {
			units[o.class] = append(units[o.class], o.unit)
		}
	}
	for class, list := range units {
		for some := range slices.Chunk(list, headsPerTrip) {
			if err := r.hint(some, class); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetAdopted drops the objects of blocks that are not what they were when the sweep began.
func (r *recovery) forgetAdopted() error {
	kept := r.lost[:0]
	for some := range slices.Chunk(r.lost, headsPerTrip) {
		b := r.ep.Batch()
		for i := range some {
			blk, _, _ := r.space.BlockOf(some[i].unit)
			b.Read(r.space.Entry(blk, 0), 8)
		}
		err := r.do(stepReadTables, b)
		for i := 0; err == nil && i < len(some); i++ {
			if blk, _, _ := r.space.BlockOf(some[i].unit); node.Entry(le.Uint64(b.Op(i).Buf)) == r.blocks[blk] {
				kept = append(kept, some[i])
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	r.lost = kept
	return nil
}

func (r *recovery) markLost() error {
	for class, list := range r.lostOf(func(*remains) bool { return true }) {
		if err := r.markUsed(list, class, false); err != nil {
			return err
		}
	}
	return nil
}

// lostOf returns those of the lost objects that belong to a part, by class.
func (r *recovery) lostOf(part func(o *remains) bool) [][]used {
	list := make([][]used, len(r.classes.units))
	for i := range r.lost {
		if o := &r.lost[i]; part(o) {
			list[o.class] = append(list[o.class], used{o.unit, o.inc})
		}
	}
	return list
}

// used is one use of an object.
type used struct {
	unit uint64
	inc  uint32
}

// markUsed frees objects of one class, which no client can come to need: those in the given use,
// while others may free or use the objects, too, as a mark of an incarnation that is over says
// nothing; or, if whatever is set, in whatever use they are, where no other client frees them at
// the same time. Each replica gets a mark of its own: a torn draft leaves replicas of different
// incarnations. It may be repeated. The primary's mark comes last, as a carrier's does.
func (r *recovery) markUsed(list []used, class int, whatever bool) error {
	for some := range slices.Chunk(list, headsPerTrip) {
		copies := 0
		for _, u := range some {
			copies = max(copies, r.space.CopiesOf(u.unit))
		}
		var marked []uint64
		for c := copies - 1; c >= 0; c-- {
			var err error
			if marked, err = r.markCopies(some, c, whatever); err != nil {
				return fmt.Errorf("mark %d objects on replica %d: %w", len(some), c, err)
			}
		}
		if err := r.hint(marked, class); err != nil {
			return err
		}
		if !whatever {
			r.report.Freed += len(marked)
		}
	}
	return nil
}

// markCopies marks the objects on one replica, where they are in that use, or in whatever one, and
// not marked, and returns which.
func (r *recovery) markCopies(list []used, replica int, whatever bool) (marked []uint64, err error) {
	read, write := r.ep.Batch(), r.ep.Batch()
	defer read.Release()
	defer write.Release()
	var there []used
	for _, u := range list {
		if replica < r.space.CopiesOf(u.unit) {
			read.Read(r.space.UnitAt(u.unit, replica), headAt)
			there = append(there, u)
		}
	}
	start := r.ep.Now()
	if err := r.do(stepMarkFree, read); err != nil {
		return nil, err
	}
	for i, u := range there {
		h := headOf(read.Op(i).Buf)
		if !whatever && h.incarnation != u.inc {
			continue
		}
		marked = append(marked, u.unit) // its hint may have been lost
		if !h.free() {
			write.WriteWord(read.Op(i).Addr.Add(markAt), uint64(h.incarnation))
		}
	}
	if !whatever && write.Len() > 0 && r.ep.Now()-start > r.Timeout/2 { // by now the block may have objects of another class
		return nil, errTimeout("mark objects that were read a while ago")
	}
	return marked, r.do(stepMarkFree, write)
}
