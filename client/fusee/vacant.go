package fusee

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node"
)

// A block keeps its size class while it has pairs. In a pool that is mostly handed out, a client
// takes blocks that are empty out of use, so that others can carve them anew. The objects of
// another class begin in the middle of the old ones, and their words come back. So an emptied
// block rests until no client remembers a word that points into it, and no mark of an old object
// is on its way. Then it is wiped, on all replicas, and becomes vacant.
//
// Logs remember for longer which incarnations were replaced, and recovery frees these. So
// incarnations go on: those of a block that is carved anew are above all that it had. The block's
// floor, below them, is the incarnation of its first object. It is written before the others are
// wiped. An object that was never used begins there.
//
// What a crash leaves: a block of a dead client, of which the objects are free or never used; or
// one that is vacant on backups only, which its owner's recovery passes on.

// vacant is the class of a block that has no objects. Its owner is node.Left. All of it behind
// the bitmap is zero but the head of the first object, which is free.
const vacant = 0xff

// isVacant reports whether a block waits to be carved.
func isVacant(e node.Entry) bool { return e.Owner() == node.Left && e.Class() == vacant }

// emptied is a block on its way to be vacant. Its entry names this client, and it is not among
// own: no object of it is taken.
type emptied struct {
	*block
	at time.Duration // since when no slot points into it
}

const (
	// mostEmptied is how many blocks rest at a time: the others stay in use until the next look.
	mostEmptied = 64
	// mostTaken is how many of departed clients' empty blocks a client takes over at a time.
	mostTaken = 8
	// wipeBytes are wiped in one trip, on all replicas.
	wipeBytes = 64 << 10
)

// vacate takes the client's empty blocks out of use, all of them, or as long as it keeps a free
// object that is large enough for its DELETEs: without one it cannot DELETE in a full pool.
func (c *Client) vacate(all bool) {
	for class := range c.slabs {
		s := &c.slabs[class]
		idle := map[*block]int{}
		for _, p := range s.free[s.head:] {
			idle[p.block]++
		}
		// A block is empty if all its objects are in the free list.
		for _, b := range slices.Clone(s.blocks) {
			if idle[b] < len(b.incarnations) || len(c.reclaim.emptied) >= mostEmptied {
				continue
			}
			s.split(b)
			if _, ok := c.borrow(c.reclaim.deletes, 0); !ok && !all {
				c.takeUp(b)
				continue
			}
			delete(c.own, b.Block)
			c.reclaim.emptied = append(c.reclaim.emptied, emptied{b, c.ep.Now()})
		}
	}
}

// takeBack takes a resting block of the class, or of the next larger one, back into use. Its
// objects are free still.
func (c *Client) takeBack(class int) bool {
	best := -1
	for i, e := range c.reclaim.emptied {
		if e.class >= class && (best < 0 || e.class < c.reclaim.emptied[best].class) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	c.takeUp(c.reclaim.emptied[best].block)
	c.reclaim.emptied = slices.Delete(c.reclaim.emptied, best, best+1)
	return true
}

// takeUp makes an empty block of this client's one in which it allocates.
func (c *Client) takeUp(b *block) {
	c.hold(b)
	for i := range b.incarnations {
		b.setIdle(i)
		c.slabs[b.class].push(place{b, i})
	}
}

// clear makes the emptied blocks vacant that have rested for the pool's timeout. Where wiping
// fails the block is still this client's, and is taken back into use. Where the change of its
// entry fails the block's owner is not known: tidy reads it.
func (c *Client) clear() error {
	r := &c.reclaim
	// They are in the order in which they became empty: the first has rested longest.
	for len(r.emptied) > 0 && r.emptied[0].at+c.Timeout <= c.ep.Now() {
		b := r.emptied[0].block
		// From here on the block is in no list: it is taken up again, or becomes vacant, or tidy
		// finds it.
		r.emptied = slices.Delete(r.emptied, 0, 1)
		// The hints go first: one that is left would be another object's in the block's next use.
		err := c.clearHints(b)
		if err == nil {
			err = c.wipe(b.Block, slices.Max(b.incarnations))
		}
		if err != nil {
			c.takeUp(b) // it is this client's still
			return fmt.Errorf("clear block %v: %w", b.Block, err)
		}
		if err := c.setEntry(b.Block, c.space.Copies(b.Region)-1, b.entry,
			b.entry.Next(node.Left, vacant)); err != nil {
			r.untidy = true
			return fmt.Errorf("clear block %v: %w", b.Block, err)
		}
	}
	return nil
}

// wipe makes a block as if it had never been used, on all replicas, but for its floor. The caller
// has cleared its bitmap. A crash leaves objects that are free by their marks or never used, in
// part.
func (c *Client) wipe(blk node.Block, floor uint32) error {
	// The first object's head gets the floor before anything is wiped: no crash loses it.
	b := c.ep.Batch()
	p := b.Alloc(keyAt)
	clear(p)
	le.PutUint64(p[markAt:], uint64(floor))
	le.PutUint32(p[incarnationAt:], floor)
	skip := c.space.BitmapBytes()
	for r := range c.space.Copies(blk.Region) {
		b.Write(c.space.Bitmap(blk, r).Add(skip), p)
	}
	err := c.do(stepWipe, b)
	b.Release()
	zero := make([]byte, min(wipeBytes, c.BlockBytes-skip-keyAt))
	for off := skip + keyAt; err == nil && off < c.BlockBytes; off += wipeBytes {
		b := c.ep.Batch()
		for r := range c.space.Copies(blk.Region) {
			b.Write(c.space.Bitmap(blk, r).Add(off), zero[:min(wipeBytes, c.BlockBytes-off)])
		}
		err = c.do(stepWipe, b)
		b.Release()
	}
	if err != nil {
		return fmt.Errorf("wipe block %v: %w", blk, err)
	}
	return nil
}

// carveVacant takes a vacant block, and makes it one of a class. It returns false when there is
// none. A vacant block is inherited rather than carved, so that its objects begin above the
// floor.
func (c *Client) carveVacant(class int) (bool, error) {
	list, err := c.listAll(c.ep.Rand().IntN(max(1, len(c.regions))), candidates, isVacant)
	for _, b := range list {
		if mine, err := c.takeOver(b, class); err != nil {
			return false, err
		} else if mine {
			c.stats.Converted++
			err := c.inherit(b)
			c.reclaim.untidy = c.reclaim.untidy || err != nil
			return err == nil, err
		}
	}
	return false, err
}

// takeEmpty takes over departed clients' blocks that are empty by their hints, and takes them out
// of use.
func (c *Client) takeEmpty() error {
	left, err := c.departed(candidates, func(node.Entry) bool { return true })
	if err != nil || len(left) == 0 {
		return err
	}
	bits, err := c.countFree(left)
	if err != nil {
		return err
	}
	taken := 0
	for _, b := range left {
		// Hints may say too much: vacate goes by the marks that inherit reads.
		if bits[b] < c.classes.objects[b.class] || taken == mostTaken {
			continue
		}
		mine, err := c.takeOver(b, b.class)
		if mine && err == nil {
			err = c.inherit(b)
		}
		if err != nil {
			c.reclaim.untidy = true
			return err
		}
		taken++
	}
	c.vacate(true)
	return nil
}

// gather makes all objects idle that are free in the client's blocks of any class: those that rest,
// and those that others have freed. Only then it is known which blocks are empty.
func (c *Client) gather() error {
	r := &c.reclaim
	if n := len(r.resting); n > r.head {
		if d := r.resting[n-1].ready - c.ep.Now(); d > 0 {
			c.ep.Sleep(d)
		}
	}
	r.now = c.ep.Now()
	c.mature()
	if err := c.landAll(); err != nil {
		return err
	}
	for class := range c.slabs {
		if err := c.reclaimAll(class); err != nil {
			return err
		}
	}
	return nil
}

// awaitVacant waits until an emptied block is vacant, and carves it. It returns false when there
// is none.
func (c *Client) awaitVacant(class int) (bool, error) {
	if err := c.gather(); err != nil {
		return false, err
	}
	c.vacate(true)
	if err := c.takeEmpty(); err != nil {
		return false, err
	}
	// Nothing rests, but another client may have left a vacant block.
	if len(c.reclaim.emptied) == 0 {
		return c.carveVacant(class)
	}
	if wait := c.reclaim.emptied[0].at + c.Timeout - c.ep.Now(); wait > 0 {
		c.ep.Sleep(wait)
	}
	if err := c.clear(); err != nil {
		return false, err
	}
	return c.carveVacant(class)
}
