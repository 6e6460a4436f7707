package fusee

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// shed leaves blocks to others when the pool is mostly handed out: those of a class of which this
// client holds more free objects than its share, and then those that are empty. Other clients may
// have none. It fails silently, but for damage: the client just keeps its blocks. Operations wait
// for its trips, but only one in shedEvery does, and only while the pool is tight or the client
// holds much.
func (c *Client) shed(class int) {
	s, r := &c.slabs[class], &c.reclaim
	if len(c.unresolved) > 0 { // their verbs may be in flight, into blocks that others would sweep
		return
	}
	// The common case, without a trip: the pool is not known to be tight, and the client does not
	// hold much.
	if !r.tight && s.idle() <= c.share(class) {
		return
	}
	var err error
	if err = c.lookAround(); err != nil || !r.tight {
		return // a node that does not answer is seen by the operation itself
	}
	// A scan in flight may have subtracted bits of the blocks: it has to end first.
	if c.endScan() != nil {
		return
	}
	// One block at a time: the one with the most free objects.
	for s.idle() > c.share(class) && len(r.parting) == 0 {
		idle, most := map[*block]int{}, s.free[s.head].block
		for _, p := range s.free[s.head:] {
			if idle[p.block]++; idle[p.block] > idle[most] {
				most = p.block
			}
		}
		// A block that cannot be left now stays out of use: resync takes it back, or the next try
		// leaves it.
		c.part(s.split(most))
		if err := c.leaveParting(); errors.Is(err, client.ErrDamaged) {
			c.fault(err)
		}
	}
	if r.full {
		if err := c.lend(class); errors.Is(err, client.ErrDamaged) {
			c.fault(err)
		}
	}
	// Empty blocks begin to rest, and those that have rested become vacant.
	c.vacate(false)
	if err := c.clear(); errors.Is(err, client.ErrDamaged) {
		c.fault(err)
	}
}

// lend leaves blocks to others, in a full pool, as far as the client has more than its share: not
// those of the given class, and first those of the classes that it has not used for longest. So
// any client finds the free objects of any class, and pays trips to adopt their blocks. A block
// stays of which an object is free, or will be, for the client's DELETEs. All blocks stay while
// writes are unresolved, since their verbs may be in flight.
func (c *Client) lend(class int) error {
	r := &c.reclaim
	if len(c.unresolved) > 0 || len(r.parting) > 0 {
		return nil
	}
	c.land(0)
	c.mature()
	var keep *block
	if least, ok := c.borrow(r.deletes, 0); ok {
		s := &c.slabs[least]
		keep = s.free[s.head].block
	} else if rests := c.inHand(); len(rests) > 0 {
		keep = slices.MaxFunc(rests, func(a, b place) int { return cmp.Compare(a.block.class, b.block.class) }).block
	}
	var others []*block
	for i := range c.slabs {
		for _, b := range c.slabs[i].blocks {
			if i != class && b != keep {
				others = append(others, b)
			}
		}
	}
	if len(others) <= r.fair {
		return nil
	}
	slices.SortStableFunc(others, func(a, b *block) int {
		return cmp.Compare(c.slabs[b.class].used, c.slabs[a.class].used)
	})
	// A scan in flight may have subtracted bits of the blocks: it has to end first.
	if err := c.endScan(); err != nil {
		return err
	}
	for _, b := range others[r.fair:] {
		c.part(c.slabs[b.class].split(b))
		c.stats.Lent++
	}
	return c.leaveParting()
}

// lookAround learns how full the pool is from the table of a region that it chooses at random:
// whether fewer blocks than a quarter are free or vacant, or none, and how many others have blocks.
func (c *Client) lookAround() error {
	r := &c.reclaim
	// Without a region nothing can be allocated.
	if len(c.regions) == 0 {
		r.tight, r.full = true, true
		return nil
	}
	table, err := c.read(stepReadTables, c.space.Table(c.regions[c.ep.Rand().IntN(len(c.regions))], 0),
		c.space.Blocks()*8)
	if err != nil {
		return err
	}
	free, others := 0, map[rdma.ClientID]bool{}
	for i := range c.space.Blocks() {
		switch e := node.Entry(le.Uint64(table[8*i:])); {
		case e == 0 || isVacant(e):
			free++
		case e.Owner() != node.Left && e.Owner() != c.id:
			others[e.Owner()] = true
		}
	}
	r.tight, r.full = free*4 < c.space.Blocks(), free == 0
	r.fair = len(c.regions) * c.space.Blocks()
	if len(others) > 0 {
		r.fair /= fairShare * len(others)
	}
	return nil
}

// fairShare: in a full pool the clients may hold one in so many of its blocks, beside those of the
// class that each uses. The others can be adopted.
const fairShare = 6

// mostCuts bounds how often Close begins again where it was cut off. Close handles the client's
// blocks one after the other. So on a bad network it is cut off many times and still gets on. Its
// timeout bounds each wait for the pool.
const mostCuts = 256

// Close gives back what the client holds: it ends its background work, marks its free objects and
// leaves its blocks to others. The value of the last Get ends with it. A client with a write that
// may still go either way cannot leave: others may be waiting for it. The error wraps
// client.ErrUncertain then.
//
// When Close fails the client still owns blocks, and may be closed again. Its identity must not
// be given back (client.Leave), so that it is recovered as a dead one when its process ends. A
// crash leaves the same.
func (c *Client) Close() error {
	c.releaseHeld()
	c.deadline = never
	err := c.shut()
	// Each attempt goes on where the last one was cut off.
	for cut := 0; err != nil && interrupted(err) && cut < mostCuts; err, cut = c.shut(), cut+1 {
		if _, e := c.settled(err); e != nil {
			err = e
			break
		}
	}
	if err != nil {
		return fmt.Errorf("close fusee: %w", err)
	}
	return nil
}

// shut is Close within one view. Background work ends before blocks are left: no recovery uses
// the logs in blocks that were left.
func (c *Client) shut() error {
	if err := c.keepUp(); err != nil {
		return err
	}
	// All frees and scans end, and rested objects become free.
	if err := cmp.Or(c.drain(), c.damage); err != nil {
		return err
	}
	// An unresolved write keeps its object and its journal word: recovery has to find them.
	if n := len(c.unresolved); n > 0 {
		return fmt.Errorf("of %d writes: %w", n, client.ErrUncertain)
	}
	// Tables may give this client blocks that it does not know. Those have to be left, too.
	if c.reclaim.untidy {
		if err := c.tidy(); err != nil {
			return err
		}
	}
	// Emptied blocks are left like the others: their objects are free.
	for _, e := range c.reclaim.emptied {
		c.takeUp(e.block)
	}
	c.reclaim.emptied = nil
	for class := range c.slabs {
		if s := c.slabs[class]; len(s.blocks) > 0 {
			c.part(&slab{blocks: s.blocks, free: s.free[s.head:]})
		}
		c.slabs[class] = slab{}
	}
	return c.leaveParting()
}

// part takes a slab out of use. Its blocks stay this client's until they are passed on. Meanwhile
// frees of their objects are sent like those of another client's block.
func (c *Client) part(s *slab) {
	for _, blk := range s.blocks {
		blk.parting = true
	}
	c.reclaim.parting = append(c.reclaim.parting, s)
}

// leaveParting leaves the blocks that are out of use. Blocks that it does not reach, because a
// node died or the view changed, stay out of use: resync decides, or the next try.
func (c *Client) leaveParting() error {
	for r := &c.reclaim; len(r.parting) > 0; r.parting = r.parting[1:] {
		for s := r.parting[0]; len(s.blocks) > 0; {
			// A batch has the entries of so many blocks at most.
			some := s.blocks[:min(syncBlocks, len(s.blocks))]
			if err := c.leave(some, s.free); err != nil {
				return fmt.Errorf("leave blocks: %w", err)
			}
			// They are left: the next attempt begins behind them.
			s.blocks = s.blocks[len(some):]
		}
	}
	return nil
}

// leave passes blocks on to node.Left. Before that it marks those objects that are free. It
// unmarks those that are not free but may look so: objects that rest, and those of unresolved
// writes, some of which were never written. Their WRITEs that are still in flight land before
// this one, by the order of a node's queue. It may be repeated.
//
// An adopter relies on the marks (inherit). So they are complete, on all replicas, before any
// entry changes. Hints come after the marks and before the entries, so that adopters see how much
// of a block is free. A crash leaves blocks of a dead client, of which some objects are marked.
func (c *Client) leave(blocks []*block, free []place) error {
	parting := make(map[*block]bool, len(blocks))
	for _, blk := range blocks {
		parting[blk] = true
	}
	stays := func(p place) bool { return !parting[p.block] }
	// First the objects that must not look free, then those that are free.
	list := slices.DeleteFunc(c.inHand(), stays)
	if err := c.writeHeads(list, false); err != nil {
		return err
	}
	list = slices.DeleteFunc(slices.Clone(free), stays)
	if err := c.writeHeads(list, true); err != nil {
		return err
	}
	// Hints come after marks: an owner that finds a hint finds the mark.
	if err := c.setHints(blocks, list); err != nil {
		return err
	}
	// From here on other clients may adopt the blocks.
	return c.passOn(blocks)
}

// inHand lists the objects of this client's blocks that it uses or may use, and to which no slot
// may point: those that rest, are ripe, or are of unresolved writes. One that was taken and then
// not written everywhere looks free by its old mark.
func (c *Client) inHand() []place {
	var list []place
	r := &c.reclaim
	for _, x := range r.resting[r.head:] {
		if p, own := c.placeOf(x.unit, int(x.class)); own {
			list = append(list, p)
		}
	}
	for _, x := range r.ripe[r.ripeAt:] {
		list = append(list, x.place)
	}
	for _, x := range c.unresolved {
		if p, own := c.placeOf(x.unit, x.class); own {
			list = append(list, p)
		}
	}
	return list
}

// writeHeads writes objects' marks on all replicas: free, or in use. In use is a mark of 0. A
// free object's incarnation goes with its mark, since the object may have been taken and never
// been written. Objects that were never used need no mark.
func (c *Client) writeHeads(places []place, free bool) error {
	for some := range slices.Chunk(places, headsPerTrip) {
		b := c.ep.Batch()
		for _, p := range some {
			// A free object gets its mark and its incarnation, another one only a mark of 0.
			n := sumAt
			if free {
				n = writerAt
			}
			// It was never used: its memory is zero, which is free.
			if free && p.block.incarnations[p.index] == 0 {
				continue
			}
			// The batch owns the buffer.
			buf := b.Alloc(n)
			clear(buf)
			if free {
				le.PutUint64(buf[markAt:], uint64(p.block.incarnations[p.index]))
				le.PutUint32(buf[incarnationAt:], p.block.incarnations[p.index])
			}
			for r := range c.space.Copies(p.block.Region) {
				b.Write(c.space.UnitAt(c.unitOf(p), r), buf)
			}
		}
		err := c.do(stepMarkFree, b)
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// setHints sets the bits of free objects of the blocks. A bit that is set already carries: that
// makes hints wrong, and no more.
func (c *Client) setHints(blocks []*block, free []place) error {
	words := make(map[*block][]uint64, len(blocks))
	for _, blk := range blocks {
		words[blk] = make([]uint64, len(blk.ready))
	}
	for _, p := range free {
		words[p.block][p.index/64] |= 1 << (p.index % 64)
	}
	b := c.ep.Batch()
	defer b.Release()
	// One FAA sets all bits of a word.
	for _, blk := range blocks {
		for w, bits := range words[blk] {
			if bits != 0 {
				b.FetchAdd(c.space.Bitmap(blk.Block, 0).Add(uint64(w*8)), bits)
			}
		}
	}
	return c.do(stepSetBits, b)
}

// passOn changes the entries of blocks to node.Left, the backups' before the primaries': a client
// that finds the primary's changed finds all. Their owner does it, or its recovery. It may be
// repeated after a crash in between.
func (c *Client) passOn(blocks []*block) error {
	var backups, primaries []passing
	for _, blk := range blocks {
		for r := range c.space.Copies(blk.Region) {
			p := passing{blk, r, blk.entry, blk.entry.Next(node.Left, blk.class)}
			if r == 0 {
				primaries = append(primaries, p)
			} else {
				backups = append(backups, p)
			}
		}
	}
	// The backups in one trip, the primaries in the next.
	if err := c.pass(backups); err != nil {
		return err
	}
	if err := c.pass(primaries); err != nil {
		return err
	}
	// They are no longer this client's.
	for _, blk := range blocks {
		delete(c.own, blk.Block)
	}
	return nil
}

// passing is an entry on one replica on its way to node.Left.
type passing struct {
	blk     *block
	replica int
	// Entry that is expected, and the one that replaces it.
	from, left node.Entry
}

// passRounds bounds the rounds of pass: an entry is as expected, or older, or another recovery
// has changed it meanwhile.
const passRounds = 4

// pass changes entries in one trip where they are as expected. A backup that is behind is tried
// again in the next trip, with its own entry expected. An entry of a later generation is another
// recovery's work. The error wraps errTables when an entry fits nothing of that.
func (c *Client) pass(list []passing) error {
	for round := 0; len(list) > 0; round++ {
		b := c.ep.Batch()
		for _, p := range list {
			b.CompareSwap(c.space.Entry(p.blk.Block, p.replica), uint64(p.from), uint64(p.left))
		}
		err := c.do(stepPassOn, b)
		again := list[:0]
		for i := 0; err == nil && i < b.Len(); i++ {
			p, found := list[i], node.Entry(b.Op(i).Result)
			switch {
			// It is done, by this client or by another recovery.
			case found == p.from, found == p.left, found.Generation() > p.left.Generation():
			case round == passRounds || p.replica == 0 || found.Generation() == p.left.Generation():
				err = fmt.Errorf("pass block %v on: replica %d has %v, not %v: %w",
					p.blk.Block, p.replica, found, p.from, errTables)
			case found == 0: // the allocation was cut off before the node backed the block with memory
				_, err = c.record(stepPassOn, p.blk.Block, p.replica, p.left)
			// A backup is behind: expect what it has.
			default:
				p.from = found
				again = append(again, p)
			}
		}
		b.Release()
		if err != nil {
			return err
		}
		list = again
	}
	return nil
}
