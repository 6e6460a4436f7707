package memory

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
)

// A client that leaves marks all its free objects and passes its blocks to node.Left. Other
// clients adopt them. The CAS of the primary's table entry decides which client gets a block. The
// leaver changes that entry last, and the adopter changes it first. So the backups follow the
// client that owns the block on the primary. A crash in between leaves tables that differ in
// blocks of a dead client; its recovery makes them equal.
//
// Adopters choose by the bits of the bitmaps, which are a cache line a block, and rely on the
// marks.

// Adopt takes over a departed client's block of which, by its hints, at least so many objects are
// free: of the class, or else, if larger, of the smallest class above it. It prefers blocks with
// many free objects. It returns true when the free list of the block's class has got as many.
//
// It costs a trip for the tables, one for the bitmaps, two for the entries, and those of inherit,
// which read the heads of all objects of the block. So refill prefers blocks with many free
// objects.
func (a *Allocator) Adopt(class, atLeast int, larger bool) (bool, error) {
	among := candidates
	if atLeast == 1 { // the pool has no other room
		among = manyCandidates
	}
	left, err := a.Tables.departed(among, func(e node.Entry) bool {
		return a.Holdings.serves(e.Class(), class, larger)
	})
	if err != nil {
		return false, err
	}
	left = slices.DeleteFunc(left, func(b *Block) bool { return b.hinted < atLeast })
	slices.SortFunc(left, func(x, y *Block) int {
		return cmp.Or(cmp.Compare(x.Class, y.Class), cmp.Compare(y.hinted, x.hinted))
	})
	// Hints only rank the blocks. One may turn out to have fewer free objects, or another client
	// may be faster: then the next one is tried.
	for _, blk := range left {
		// The block stays this client's also if it has too few free objects.
		had := a.Holdings.Slabs[blk.Class].Idle()
		_, err := a.takeOver(blk, blk.Class)
		if err != nil || a.Holdings.Slabs[blk.Class].Idle() >= had+atLeast {
			return err == nil, err
		}
	}
	return false, nil
}

// takeOver makes a block that was left, or one that this client has emptied, one in which this
// client allocates, of the given class, if its entry is still the one that was read. The block is
// as it was then, or has more free objects. It returns false when another client was faster, or
// when a backup has no memory for the block. After an error the block may be this client's without
// being among Own, and Untidy says so. A crash leaves a primary's entry that the backups do not
// have yet: recovery brings it there.
func (a *Allocator) takeOver(blk *Block, class int) (bool, error) {
	was := blk.Entry
	mine := was.Next(a.s.ID, class)
	// The primary's entry decides: of several clients one CAS succeeds.
	found, err := a.s.Swap(session.StepTakeOver, a.s.Space.Entry(blk.Block, 0), uint64(was), uint64(mine))
	if err == nil && node.Entry(found) != was {
		return false, nil
	}
	if err == nil {
		blk.Entry, blk.Class = mine, class
		// The backups follow. Until then entries differ, and the primary's counts.
		err = a.Tables.spread(blk)
	}
	if err == nil && blk.Entry != 0 {
		err = a.inherit(blk)
	}
	if err != nil {
		// The CAS may have taken effect.
		a.Untidy = true
		return false, fmt.Errorf("adopt block %v: %w", blk.Block, err)
	}
	return blk.Entry != 0, nil
}

// inherit makes a block that this client has taken over one of its own. It learns how often each
// object was used, and takes the free ones. Hints are cleared first: an object that is freed
// later gets a hint of its own. When it fails the block is this client's without being among Own,
// and the caller sets Untidy.
func (a *Allocator) inherit(blk *Block) error {
	if err := a.Tables.clearHints(blk); err != nil {
		return fmt.Errorf("clear the hints of block %v: %w", blk.Block, err)
	}
	// Marks are read after the hints are cleared: a free in between leaves a new hint.
	heads, err := a.Tables.Heads(blk.Block, blk.Class, 0)
	if err != nil {
		return err
	}
	b := makeBlock(blk.Block, blk.Class, blk.Entry, len(heads))
	b.floor = heads[0].Incarnation // or more, if that object was used
	a.Holdings.hold(b)
	for i, h := range heads {
		b.Incarnations[i] = h.Incarnation
		// An object that is not free is in use, or a free of it is on its way, which a scan will
		// find.
		if h.Free() {
			b.setIdle(i)
			a.Holdings.Slabs[b.Class].Free.Push(Place{b, i})
		}
	}
	a.s.Stats.Adopted++
	return nil
}
