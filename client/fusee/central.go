package fusee

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// takeFromNode is node-centric allocation (FUSEE 6.3): every object costs a call to a memory
// node, which keeps the free bitmaps of its blocks. The baseline shows what two-level management
// saves. The error wraps rdma.ErrFull when no node has an object.
func (c *Client) takeFromNode(class, word int) error {
	// Frees move on with each write, as in tend.
	c.land(0)
	c.mature()
	regions := len(c.regions)
	start := c.ep.Rand().IntN(max(1, regions))
	last := rdma.ErrFull
	for k := range regions {
		g := c.regions[(start+k)%regions]
		first := node.Block{Region: g}
		q := rdma.Request{Step: stepAllocate, Proc: node.ProcObject, Arg: [6]uint64{
			c.space.Table(g, 0).Offset(), uint64(c.space.Blocks()),
			c.space.Bitmap(first, 0).Offset(), c.BlockBytes, uint64(class)<<32 | uint64(c.classes.objects[class]),
			c.space.BitmapBytes()<<32 | uint64(c.classes.units[class]*node.Unit)}}
		err := c.ep.Call(c.space.Table(g, 0).Node(), &q, c.opt.Timeout)
		if err == nil {
			blk := node.Block{Region: g, Index: int(q.Ret[0])}
			c.draft.object = object{unit: c.space.Object(blk, int(q.Ret[1]), c.classes.units[class]),
				class: class, incarnation: uint32(q.Ret[2]) + 1, journal: word}
			return c.recordNodeBlock(blk, class)
		}
		// The node is full, or does not answer: the next region's may have an object.
		last = err
	}
	return fmt.Errorf("take an object from a node: %w", last)
}

// recordNodeBlock makes sure that the backups know a block of which a node hands out objects,
// before the first object of it is used. The client remembers it, so each block costs the calls
// once. When the primary's node dies, recovery finds the block in the tables of the backups.
func (c *Client) recordNodeBlock(blk node.Block, class int) error {
	if c.reclaim.known[blk] {
		return nil
	}
	mine := node.MakeEntry(node.OfNode, class)
	for r := 1; r < c.space.Copies(blk.Region); r++ {
		e, err := c.record(stepAllocate, blk, r, mine)
		if err != nil {
			return fmt.Errorf("record block %v: %w", blk, err)
		}
		// An entry that is there already was recorded by another client.
		if e != 0 && e != mine {
			return fmt.Errorf("record block %v: replica %d has %v: %w", blk, r, e, errTables)
		}
	}
	if c.reclaim.known == nil {
		c.reclaim.known = map[node.Block]bool{}
	}
	c.reclaim.known[blk] = true
	return nil
}
