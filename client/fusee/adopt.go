package fusee

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/client"
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

// errTables is wrapped when the replicas of a table disagree as no crash leaves them.
var errTables = fmt.Errorf("block allocation tables disagree: %w", client.ErrDamaged)

const (
	tablesPerTrip = 64 // block allocation tables read in one trip
	candidates    = 64 // departed blocks whose bitmaps an adopter compares
	// manyCandidates are compared where the pool has no other room.
	manyCandidates = 1024
)

// adopt takes over a departed client's block of which, by its hints, at least so many objects are
// free: of the class, or else, if larger, of the smallest class above it. It prefers blocks with
// many free objects. It returns true when the free list of the block's class has got as many.
func (c *Client) adopt(class, atLeast, among int, larger bool) (bool, error) {
	left, err := c.departed(among, func(e node.Entry) bool {
		return e.Class() == class || larger && e.Class() > class
	})
	if err != nil || len(left) == 0 {
		return false, err
	}
	free, err := c.countFree(left)
	if err != nil {
		return false, err
	}
	left = slices.DeleteFunc(left, func(b *block) bool { return free[b] < atLeast })
	slices.SortFunc(left, func(a, b *block) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(free[b], free[a]))
	})
	// Hints only rank the blocks. One may turn out to have fewer free objects, or another client
	// may be faster: then the next one is tried.
	for _, blk := range left {
		had := c.slabs[blk.class].idle()
		mine, err := c.takeOver(blk, blk.class)
		if err == nil && mine {
			// The block stays this client's also if it has too few free objects.
			err = c.inherit(blk)
			c.reclaim.untidy = c.reclaim.untidy || err != nil
		}
		if err != nil || c.slabs[blk.class].idle() >= had+atLeast {
			return err == nil, err
		}
	}
	return false, nil
}

// departed lists up to limit blocks that were left, have objects, and fit.
func (c *Client) departed(limit int, fits func(node.Entry) bool) ([]*block, error) {
	return c.entries(limit, func(e node.Entry) bool { return e.Owner() == node.Left && fits(e) })
}

// entries lists up to limit blocks with entries that fit, beginning with a random region, so that
// clients do not all choose the same.
func (c *Client) entries(limit int, fits func(node.Entry) bool) ([]*block, error) {
	return c.listEntries(c.ep.Rand().IntN(max(1, len(c.regions))), limit, fits)
}

// listEntries lists up to limit blocks that have objects and entries that fit, beginning with
// region start. Unclean and vacant blocks are left out. It does so by their classes, which are
// above those of objects.
func (c *Client) listEntries(start, limit int, fits func(node.Entry) bool) ([]*block, error) {
	return c.listAll(start, limit, func(e node.Entry) bool { return e.Class() < len(c.classes.units) && fits(e) })
}

// listAll is listEntries for entries of any class. It reads the primaries' tables, a few a trip.
// The entries may have changed when it returns: a CAS finds that.
func (c *Client) listAll(start, limit int, fits func(node.Entry) bool) ([]*block, error) {
	regions := len(c.regions)
	var list []*block
	for from := 0; from < regions && len(list) < limit; from += tablesPerTrip {
		b := c.ep.Batch()
		n := min(tablesPerTrip, regions-from)
		for k := range n {
			b.Read(c.space.Table(c.regions[(start+from+k)%regions], 0), c.space.Blocks()*8)
		}
		if err := c.do(stepReadTables, b); err != nil {
			b.Release()
			return nil, fmt.Errorf("read block allocation tables: %w", err)
		}
		for k := range n {
			for i := range c.space.Blocks() {
				e := node.Entry(le.Uint64(b.Op(k).Buf[8*i:]))
				if fits(e) && len(list) < limit {
					list = append(list, &block{Block: node.Block{Region: c.regions[(start+from+k)%regions], Index: i},
						class: e.Class(), entry: e})
				}
			}
		}
		b.Release()
	}
	return list, nil
}

// countFree counts the bits in the blocks' bitmaps, in one trip: about as many objects are free.
// Hints of frees that are in flight are missing, and hints that carried are wrong.
func (c *Client) countFree(blocks []*block) (map[*block]int, error) {
	b := c.ep.Batch()
	defer b.Release()
	c.readBitmaps(b, blocks)
	if err := c.do(stepReadBits, b); err != nil {
		return nil, fmt.Errorf("read free bitmaps: %w", err)
	}
	free := make(map[*block]int, len(blocks))
	for i, blk := range blocks {
		for p := b.Op(i).Buf; len(p) > 0; p = p[8:] {
			free[blk] += bits.OnesCount64(le.Uint64(p))
		}
	}
	return free, nil
}

// takeOver makes a departed client's block this client's, of the given class, if its entry is
// still the one that was read. The block is as it was then, or has more free objects. It returns
// false when another client was faster. After an error the block may be this client's, and untidy
// says so. A crash leaves a primary's entry that the backups do not have yet: recovery brings it
// there.
func (c *Client) takeOver(blk *block, class int) (bool, error) {
	was := blk.entry
	mine := was.Next(c.id, class)
	// The primary's entry decides: of several clients one CAS succeeds.
	found, err := c.swap(stepTakeOver, c.space.Entry(blk.Block, 0), uint64(was), uint64(mine))
	if err == nil && node.Entry(found) != was {
		return false, nil
	}
	if err == nil {
		blk.entry, blk.class = mine, class
		// The backups follow. Until then entries differ, and the primary's counts.
		err = c.spread(blk)
	}
	if err != nil {
		// The CAS may have taken effect.
		c.reclaim.untidy = true
		return false, fmt.Errorf("adopt block %v: %w", blk.Block, err)
	}
	return true, nil
}

// spread gives the backups' entries of a block the primary's, which names this client: no other
// client changes them.
func (c *Client) spread(blk *block) error {
	n := c.space.Copies(blk.Region)
	if n == 1 {
		return nil
	}
	b := c.ep.Batch()
	defer b.Release()
	for r := 1; r < n; r++ {
		b.Read(c.space.Entry(blk.Block, r), 8)
	}
	if err := c.do(stepTakeOver, b); err != nil {
		return err
	}
	for r := 1; r < n; r++ {
		switch found := node.Entry(le.Uint64(b.Op(r - 1).Buf)); found {
		case blk.entry:
		case 0: // the allocation was cut off before the backup's node backed the block with memory
			if _, err := c.record(stepTakeOver, blk.Block, r, blk.entry); err != nil {
				return err
			}
		default:
			if err := c.setReplica(blk.Block, r, found, blk.entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit makes a block that this client has taken over one of its own. It learns how often each
// object was used, and takes the free ones. Hints are cleared first: an object that is freed
// later gets a hint of its own. When it fails the block is this client's without being among own,
// and the caller sets untidy.
func (c *Client) inherit(blk *block) error {
	if err := c.clearHints(blk); err != nil {
		return fmt.Errorf("adopt block %v: %w", blk.Block, err)
	}
	// Marks are read after the hints are cleared: a free in between leaves a new hint.
	heads, err := c.heads(blk.Block, blk.class, 0)
	if err != nil {
		return fmt.Errorf("adopt block %v: %w", blk.Block, err)
	}
	b := makeBlock(blk.Block, blk.class, blk.entry, len(heads))
	c.hold(b)
	for i, h := range heads {
		// An object that was never used continues at the block's floor, so that its incarnations
		// differ from those in old logs.
		if b.incarnations[i] = h.incarnation; h.incarnation == 0 {
			b.incarnations[i] = heads[0].incarnation // the block's floor, or more
		}
		// An object that is not free is in use, or a free of it is on its way, which a scan will
		// find.
		if h.free() {
			b.setIdle(i)
			c.slabs[b.class].push(place{b, i})
		}
	}
	c.stats.Adopted++
	return nil
}

// clearHints empties a block's bitmap. This client owns the block. It subtracts the bits that it
// has read, so that one that is set meanwhile stays.
func (c *Client) clearHints(blk *block) error {
	read, next := c.ep.Batch(), c.ep.Batch()
	defer read.Release()
	defer next.Release()
	c.readBitmaps(read, []*block{blk})
	if err := c.do(stepReadBits, read); err != nil {
		return err
	}
	for p, w := read.Op(0).Buf, 0; w < len(p); w += 8 {
		if set := le.Uint64(p[w:]); set != 0 {
			next.FetchAdd(c.space.Bitmap(blk.Block, 0).Add(uint64(w)), -set)
		}
	}
	return c.do(stepClearBits, next)
}
