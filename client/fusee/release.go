package fusee

import (
	"slices"

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
	for class, list := range r.lostOf(func(*remains) bool { return true }) {
		if err := r.markUsed(list, class, false); err != nil {
			return err
		}
	}
	return r.passAll(true)
}

// freeOlds frees what writes have replaced, where it is not free yet: an object of which the
// incarnation is the one that the log names. Its block may have been carved anew since: see
// inPlace.
func (r *recovery) freeOlds() error {
	for some := range slices.Chunk(r.olds, headsPerTrip) {
		list, err := r.inPlace(some)
		if err != nil {
			return err
		}
		for class, some := range list {
			if err := r.markUsed(some, class, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// inPlace returns, by class, those of which the blocks still have objects of their class. Objects
// of lost regions are left out, and words that point into no block.
func (r *recovery) inPlace(olds []old) ([][]used, error) {
	list := make([][]used, len(r.classes.units))
	b := r.ep.Batch()
	defer b.Release()
	// sound has the words of the entries that are read, in their order.
	var sound []old
	for _, o := range olds {
		blk, off, ok := r.space.BlockOf(o.word.Unit())
		// The word of an old log may point into no block, or into a region that is lost.
		if ok && !r.isLost(r.space.Place[blk.Region]) && off+uint64(o.word.Units())*node.Unit <= r.space.BlockBytes {
			sound = append(sound, o)
			b.Read(r.space.Entry(blk, 0), 8)
		}
	}
	if err := r.do(stepReadTables, b); err != nil {
		return nil, err
	}
	for i, o := range sound {
		// A block of another class has no object of this word any more: the pair was free before.
		class := int(r.classes.of[o.word.Units()])
		if now := node.Entry(b.Op(i).Word(0)); now != 0 && entryClass(now) == class {
			list[class] = append(list[class], used{o.word.Unit(), o.inc})
		}
	}
	return list, nil
}
