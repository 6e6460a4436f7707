package recovery

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
)

// release frees what the master's own CASes have replaced, and passes the dead client's blocks
// on. Where nodes hand out objects, it frees those that the client held or had replaced. A crash
// before the end leaves blocks of the dead client: the next recovery finds them.
func (r *recovery) release() error {
	if err := r.freeOlds(); err != nil {
		return err
	}
	// Only in node-centric pools: objects of the client's own blocks are judged when these are
	// cleaned.
	if err := r.markLost(); err != nil {
		return err
	}
	return r.passAll(true)
}

// freeOlds frees what writes have replaced, where it is not free yet: an object of which the
// incarnation is the one that the log names. Its block may have been carved anew since: see
// inPlace.
func (r *recovery) freeOlds() error {
	for some := range slices.Chunk(r.rounds.olds, layout.HeadsPerTrip) {
		list, err := r.inPlace(some)
		if err == nil {
			err = r.markUsed(list, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inPlace returns those of which the blocks still have objects of their class. Objects of lost
// regions are left out, and words that point into no block.
//
// An entry that changes behind this look does no harm: markUsed compares the incarnation with the
// head, and incarnations go on in a block that is carved anew.
func (r *recovery) inPlace(olds []old) (list []layout.Object, err error) {
	b := r.s.Batch()
	defer b.Release()
	// sound has the words of the entries that are read, in their order.
	var sound []old
	for _, o := range olds {
		blk, off, ok := r.s.Space.BlockOf(o.word.Unit())
		// The word of an old log may point into no block, or into a region that is lost.
		if ok && !r.s.IsLost(r.s.Space.Place[blk.Region]) &&
			off+uint64(o.word.Units())*node.Unit <= r.s.Space.BlockBytes {
			sound = append(sound, o)
			b.Read(r.s.Space.Entry(blk, 0), 8)
		}
	}
	if err := r.s.Do(session.StepReadTables, b); err != nil {
		return nil, err
	}
	for i, o := range sound {
		// A block of another class has no object of this word any more: the pair was free before.
		class := int(r.s.Classes.Of[o.word.Units()])
		if now := node.Entry(b.Op(i).Word(0)); now != 0 && layout.EntryClass(now) == class {
			list = append(list, layout.Object{Unit: o.word.Unit(), Class: class, Incarnation: o.inc})
		}
	}
	return list, nil
}

// clean frees the objects of unclean blocks that no slot points at, and what their logs replaced,
// where that is not free yet, and passes the blocks on. The rounds of the clients that left them
// are over, or other writers have won them. So nothing can come to point at an object that no
// replica of a slot points at.
//
// A log counts whichever client wrote it, and though its object is free by now: the object may have
// been replaced before its own writer freed what it had replaced.
//
// No client adopts an unclean block, so no object of it is used while it is cleaned: a mark may be
// written whatever the incarnation on a replica is (markLost).
func (r *recovery) clean() error {
	for _, step := range []func() error{r.traverse, r.requests, r.rest, r.freeOlds, r.markLost} {
		if err := step(); err != nil {
			return err
		}
	}
	return r.passAll(false)
}

// passedPerTrip is how many blocks are passed on at a time, in two trips.
const passedPerTrip = 128

// passAll passes all blocks of the recovery on, unclean or not, but for those that are nodes'.
//
// It comes last: until an entry changes, the next master finds the block by its owner, and begins
// again.
func (r *recovery) passAll(asUnclean bool) error {
	list := slices.DeleteFunc(r.list, func(b *memory.Block) bool { return b.Entry.Owner() == node.OfNode })
	for _, b := range list {
		if asUnclean {
			b.Class |= layout.Unclean
		}
	}
	for some := range slices.Chunk(list, passedPerTrip) {
		if err := r.t.PassOn(some); err != nil {
			return fmt.Errorf("pass on %d blocks: %w", len(some), err)
		}
	}
	return nil
}
