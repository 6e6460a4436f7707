package fusee

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node"
)

// release frees what the dead client held, and what it had replaced and not freed (FUSEE 5.3,
// "recover its batched free operations"), and passes its blocks on. Marks come first: a master that
// repeats this after a crash finds the blocks still the dead client's, or everything in them
// marked.
func (r *recovery) release() error {
	if err := r.freeOlds(); err != nil {
		return err
	}
	shared := r.lostOf(func(o *remains) bool { return o.shared })
	for class, list := range r.lostOf(func(o *remains) bool { return !o.shared }) {
		if err := r.markUsed(list, class, true); err != nil {
			return err
		}
		if err := r.markUsed(shared[class], class, false); err != nil {
			return err
		}
	}
	for _, blk := range r.list {
		if e := r.blocks[blk]; e.Owner() == r.dead {
			if err := r.passOn([]*block{{Block: blk, class: e.Class(), entry: e}}); err != nil {
				return fmt.Errorf("pass on block %v: %w", blk, err)
			}
		}
	}
	return nil
}

// freeOlds frees what the dead client's writes replaced, where it is not free yet: its incarnation
// is the one that the log names, and its mark is not.
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

// inPlace returns, by class, those whose blocks have still objects of their class.
func (r *recovery) inPlace(olds []old) ([][]used, error) {
	list := make([][]used, len(r.classes.units))
	b := r.ep.Batch()
	defer b.Release()
	var sound []old
	for _, o := range olds {
		blk, off, ok := r.space.BlockOf(o.word.Unit())
		if ok && !r.isLost(r.space.Place[blk.Region]) && off+uint64(o.word.Units())*node.Unit <= r.space.BlockBytes {
			sound = append(sound, o)
			b.Read(r.space.Entry(blk, 0), 8)
		}
	}
	if err := r.do(stepReadTables, b); err != nil {
		return nil, err
	}
	for i, o := range sound {
		class := int(r.classes.of[o.word.Units()])
		if now := node.Entry(b.Op(i).Word(0)); now != 0 && now.Class() == class {
			list[class] = append(list[class], used{o.word.Unit(), o.inc})
		}
	}
	return list, nil
}
