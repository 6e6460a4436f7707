package fusee

import (
	"fmt"

	"github.com/farkv/farkv/node"
)

// release frees what the dead client held, and what it had replaced and not freed (FUSEE 5.3, "recover its batched free
// operations"), and passes its blocks on. Marks come first: whoever repeats this after a crash finds the blocks still the dead
// client's, or everything in them marked.
func (r *recovery) release() error {
	if err := r.freeOlds(); err != nil {
		return err
	}
	units := make([][]uint64, len(r.classes.units))
	shared := make([][]used, len(r.classes.units))
	for i := range r.lost {
		if o := &r.lost[i]; o.shared {
			shared[o.class] = append(shared[o.class], used{o.unit, o.inc})
		} else {
			units[o.class] = append(units[o.class], o.unit)
		}
	}
	for class, list := range units {
		if err := r.markFree(list, class); err != nil {
			return err
		}
		if err := r.markUsed(shared[class], class); err != nil {
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

// freeOlds frees what the dead client's writes replaced, where it is not free yet: its incarnation is the one that the log
// names, and its mark is not.
func (r *recovery) freeOlds() error {
	for from := 0; from < len(r.olds); from += headsPerTrip {
		list, err := r.inPlace(r.olds[from:min(from+headsPerTrip, len(r.olds))])
		if err != nil {
			return err
		}
		for class, some := range list {
			if err := r.markUsed(some, class); err != nil {
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
	if len(sound) == 0 {
		return list, nil
	}
	if err := r.do(stepReadTables, b); err != nil {
		return nil, err
	}
	for i, o := range sound {
		class := int(r.classes.of[o.word.Units()])
		if now := node.Entry(le.Uint64(b.Op(i).Buf)); now != 0 && now.Class() == class {
			list[class] = append(list[class], used{o.word.Unit(), o.inc})
		}
	}
	return list, nil
}
