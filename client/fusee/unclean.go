package fusee

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node"
)

// Recovery passes the blocks of a dead client on as unclean, without a look at what is in them.
// An unclean block is one that was left, with a bit more in its class, so that no client adopts
// it. Its objects may be neither marked nor pointed at. What the dead client had replaced and not
// freed lies in blocks of others, and only the logs in this block tell. Both are freed before an
// object of the block is used again: the master cleans such blocks, piece by piece, when nothing
// else is to be done (Sweep), and passes them on once more.
//
// Live clients read, replace and free the pairs of an unclean block as those of any other.
//
// What a crash leaves: a block that is unclean, of which some objects are marked, and which is
// cleaned from its beginning.
const unclean = 0x40

// isUnclean reports whether a block waits to be cleaned. The class of vacant blocks has the bit,
// too.
func isUnclean(e node.Entry) bool {
	return e.Owner() == node.Left && !isVacant(e) && e.Class()&unclean != 0
}

// entryClass returns the class of a block's objects, clean or not; vacant when it has none.
func entryClass(e node.Entry) int {
	if isVacant(e) {
		return vacant
	}
	return e.Class() &^ unclean
}

// clean frees the objects of unclean blocks that no slot points at, and what their logs replaced,
// where that is not free yet, and passes the blocks on. The rounds of the clients that left them
// are over, or other writers have won them. So nothing can come to point at an object that no
// replica of a slot points at.
//
// A log counts whichever client wrote it, and though its object is free by now: the object may have
// been replaced before its own writer freed what it had replaced.
func (r *recovery) clean() error {
	for _, step := range []func() error{r.traverse, r.requests, r.rest, r.freeOlds, r.markAll} {
		if err := step(); err != nil {
			return err
		}
	}
	return r.passAll(false)
}

// markAll marks the lost objects of blocks in which no client uses any.
func (r *recovery) markAll() error {
	for class, list := range r.lostOf(func(*remains) bool { return true }) {
		if err := r.markUsed(list, class, true); err != nil {
			return err
		}
	}
	return nil
}

// passedPerTrip is how many blocks are passed on at a time, in two trips.
const passedPerTrip = 128

// passAll passes all blocks of the recovery on, unclean or not, but for those that are nodes'.
func (r *recovery) passAll(asUnclean bool) error {
	var list []*block
	for _, blk := range r.list {
		e := r.blocks[blk]
		if e.Owner() == node.OfNode {
			continue
		}
		class := entryClass(e)
		if asUnclean {
			class |= unclean
		}
		list = append(list, &block{Block: blk, class: class, entry: e})
	}
	for some := range slices.Chunk(list, passedPerTrip) {
		if err := r.passOn(some); err != nil {
			return fmt.Errorf("pass on %d blocks: %w", len(some), err)
		}
	}
	return nil
}
