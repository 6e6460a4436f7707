package recovery

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
)

// freeOlds frees what writes have replaced, where it is not free yet: an object of which the
// incarnation is the one that the log names. Its block may have been carved anew since: one of
// another class has no such object any more. Objects of lost regions are left out, and words of old
// logs that point into no block.
//
// An entry that changes behind this look does no harm: markUsed compares the incarnation with the
// head, and incarnations go on in a block that is carved anew.
func (r *recovery) freeOlds() error {
	r.rounds.olds = slices.DeleteFunc(r.rounds.olds, func(o layout.Object) bool {
		blk, off, ok := r.s.Space.BlockOf(o.Unit)
		return !ok || r.s.IsLost(r.s.Space.Place[blk.Region]) ||
			off+uint64(r.s.Classes.Units[o.Class])*node.Unit > r.s.Space.BlockBytes
	})
	for some := range slices.Chunk(r.rounds.olds, layout.HeadsPerTrip) {
		list, err := r.where(some, func(o layout.Object, now node.Entry) bool {
			return now != 0 && layout.EntryClass(now) == o.Class
		})
		if err == nil {
			err = r.markUsed(list, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// where returns those of the objects of which the entries of their blocks fit now.
func (r *recovery) where(list []layout.Object, fits func(o layout.Object, now node.Entry) bool) (
	kept []layout.Object, err error) {
	for some := range slices.Chunk(list, layout.HeadsPerTrip) {
		b := r.s.Batch()
		for _, o := range some {
			blk, _, _ := r.s.Space.BlockOf(o.Unit)
			b.Read(r.s.Space.Entry(blk, 0), 8)
		}
		err := r.s.Do(session.StepReadTables, b)
		for i := 0; err == nil && i < len(some); i++ {
			if fits(some[i], node.Entry(b.Op(i).Word(0))) {
				kept = append(kept, some[i])
			}
		}
		b.Release()
		if err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// passedPerTrip is how many blocks are passed on at a time, in two trips.
const passedPerTrip = 128

// passAll passes all blocks of the recovery on, but for those that are nodes': unclean, unless they
// were unclean already and are clean now.
//
// It comes last: until an entry changes, the next master finds the block by its owner, or as
// unclean, and begins again.
func (r *recovery) passAll() error {
	list := slices.DeleteFunc(r.list, func(b *memory.Block) bool { return b.Entry.Owner() == node.OfNode })
	for _, b := range list {
		if !r.unclean {
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
