package fusee

import (
	"slices"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// resync brings what this client knows of its memory up to a new view. The client has joined the
// view, which is idle, and placed its items by it. Until now its verbs may have failed, and none
// of them is in flight any more. moved reports of which regions the primary has changed: the
// bitmaps of their blocks, the hints, are lost.
//
// What the steps rely on, in their order:
//   - ground: what was in flight decides which objects are free, so it ends first.
//   - tidy: in an idle view the primary's entry decides which client owns a block.
//   - reread: marks are on the nodes, whatever became of hints. Only suspect blocks are read.
//   - settle: all replicas of slots are equal, and nothing is in flight, so unresolved writes can
//     be resolved.
//   - retry: stuck frees come last, as they post verbs that nothing waits for.
//
// When it fails it may be called again, in the same view or in the next: it goes on with the
// blocks that are left. It also fails at the operation's deadline, with errDeadline.
func (c *Client) resync(moved func(region int) bool) error {
	c.reclaim.untidy = true
	// Hints of blocks with a new primary are lost.
	for class := range c.slabs {
		for _, blk := range c.slabs[class].blocks {
			blk.suspect = blk.suspect || moved(blk.Region)
		}
	}
	for _, s := range c.reclaim.parting {
		for _, blk := range s.blocks {
			blk.suspect = blk.suspect || moved(blk.Region)
		}
	}
	// Blocks of moved regions are marked now. What is read of them here is not read again in
	// another try.
	c.oldSpace = nil
	// First what was in flight, then the blocks that are this client's, then what is free in
	// them.
	if err := c.ground(); err != nil {
		return err
	}
	if err := c.tidy(); err != nil {
		return err
	}
	for class := range c.slabs {
		for _, blk := range c.slabs[class].blocks {
			if !blk.suspect {
				continue
			}
			// What was read stays read: the next call goes on with the other blocks.
			if c.overdue() {
				return errDeadline
			}
			if err := c.reread(blk); err != nil {
				return err
			}
		}
	}
	// No verb of an earlier epoch can land any more.
	for i := range c.unresolved {
		c.unresolved[i].flying = false
	}
	c.settle()
	c.reclaim.now = c.ep.Now()
	// Stuck frees begin anew in this view.
	c.retry()
	c.harvest()
	return nil
}

// ground takes back what is in flight: it has failed, or landed. Frees that were not over begin
// again at retry. A scan that has subtracted bits is completed first, since their hints are gone.
func (c *Client) ground() error {
	r := &c.reclaim
	if sc := &r.scan; sc.phase != noScan {
		if err := c.ep.Wait(sc.batch, rdma.All, c.opt.Timeout); err != nil {
			return err
		}
		// Its bits were subtracted, so this is the last look at them.
		if sc.phase == clearing {
			c.take(sc.batch, sc.blocks[:sc.n], sc.found)
		}
		sc.batch.Release()
		sc.phase = noScan
	}
	for ; r.flying > 0; r.flying-- {
		k := &r.ring[r.first]
		if k.batch != nil {
			if err := c.ep.Wait(k.batch, rdma.All, c.opt.Timeout); err != nil {
				return err
			}
			k.batch.Release()
			k.batch = nil
			// Some of its marks may have landed: retry begins with reading the heads.
			r.stuck = append(r.stuck, k.frees...)
		}
		// Its frees are over, or stuck.
		r.landed = k.last
		r.first = (r.first + 1) % maxFlying
	}
	return nil
}

// tidy compares the blocks of this client with the block allocation tables. An allocation, an
// adoption, a clearing or a leaving may have been cut off, and the primary's entry says how it
// ended. Blocks that the tables give to this client and that it does not know are inherited;
// those that they do not are dropped. The backups' entries of a block that it takes in are made
// equal first. When tidy fails untidy stays set.
func (c *Client) tidy() error {
	list, err := c.listEntries(0, len(c.space.Place)*c.space.Blocks(),
		func(e node.Entry) bool { return e.Owner() == c.id })
	if err != nil {
		return err
	}
	mine := make(map[node.Block]*block, len(list))
	for _, blk := range list {
		mine[blk.Block] = blk
	}
	// Blocks that this client was leaving come first: they are in no slab.
	if err := c.returnParting(mine); err != nil {
		return err
	}
	// Blocks that the tables do not give to this client, or with another class, are dropped.
	for class := range c.slabs {
		s := &c.slabs[class]
		for _, blk := range slices.Clone(s.blocks) {
			if now := mine[blk.Block]; now != nil && now.class == class {
				blk.entry = now.entry
			} else {
				s.split(blk)
				delete(c.own, blk.Block)
			}
		}
	}
	// So are blocks on their way to be vacant.
	c.reclaim.emptied = slices.DeleteFunc(c.reclaim.emptied, func(e emptied) bool { return mine[e.Block] == nil })
	// Blocks of this client that it does not know are taken in as if they were adopted.
	for _, blk := range list {
		if c.own[blk.Block] != nil {
			continue
		}
		if c.overdue() {
			return errTimeout("take blocks back into use")
		}
		// The primary's entry names this client: the backups' entries follow it.
		if err := c.spread(blk); err != nil {
			return err
		}
		// The block was being emptied, and still is.
		if i := slices.IndexFunc(c.reclaim.emptied, func(e emptied) bool { return e.Block == blk.Block }); i >= 0 {
			c.reclaim.emptied[i].entry = blk.entry
			continue
		}
		if err := c.inherit(blk); err != nil {
			return err
		}
	}
	c.reclaim.untidy = false
	return nil
}

// returnParting takes blocks that this client was leaving back into use, as far as they are still
// its own. Their free objects are free again.
func (c *Client) returnParting(mine map[node.Block]*block) error {
	for r := &c.reclaim; len(r.parting) > 0; r.parting = r.parting[1:] {
		s := r.parting[0]
		// The backups' entries follow the primary's: some may name node.Left already.
		for _, blk := range s.blocks {
			if now := mine[blk.Block]; now != nil {
				if err := c.spread(now); err != nil {
					return err
				}
			}
		}
		for _, blk := range s.blocks {
			if mine[blk.Block] != nil {
				blk.parting, blk.entry = false, mine[blk.Block].entry
				c.hold(blk)
			} else {
				delete(c.own, blk.Block)
			}
		}
		for _, p := range s.free {
			if c.own[p.block.Block] == p.block {
				c.slabs[p.block.class].push(p)
			}
		}
	}
	return nil
}
