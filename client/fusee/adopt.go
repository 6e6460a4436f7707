package fusee

import (
	"cmp"
	"fmt"
	"math/bits"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A client that leaves marks all its free objects in the bitmaps of its blocks and passes the blocks to node.Left.
// Others adopt them. The CAS of the primary's table entry decides who; the leaver changes it last and the adopter first,
// so that the backups follow whoever owns the block on the primary. A crash in between leaves tables that differ in
// blocks of a dead client.

// errTables is how tables that disagree are reported.
var errTables = fmt.Errorf("block allocation tables disagree: %w", client.ErrDamaged)

const (
	tablesPerTrip = 64 // block allocation tables read in one trip
	candidates    = 64 // departed blocks whose bitmaps an adopter compares
	headsPerTrip  = 256
)

// adopt takes over the departed client's block of the class with the most free objects, if one has at least so many.
func (c *Client) adopt(class, atLeast int) (bool, error) {
	left, err := c.departed(func(e node.Entry) bool { return e.Class() == class })
	for err == nil && len(left) > 0 {
		best, most := -1, atLeast-1
		var free []int
		if free, err = c.countFree(left); err != nil {
			break
		}
		for i, n := range free {
			if n > most {
				best, most = i, n
			}
		}
		if best < 0 {
			return false, nil
		}
		var mine bool
		if mine, err = c.takeOver(left[best], class); err == nil && mine {
			if err = c.inherit(left[best]); err != nil || c.slabs[class].idle() >= atLeast {
				return err == nil, err
			}
		}
		left = append(left[:best], left[best+1:]...) // another client was faster
	}
	return false, err
}

// departed lists up to candidates blocks that were left.
func (c *Client) departed(fits func(node.Entry) bool) ([]*block, error) {
	return c.entries(func(e node.Entry) bool { return e.Owner() == node.Left && fits(e) })
}

// entries lists up to candidates blocks whose entries fit, beginning with a random region.
func (c *Client) entries(fits func(node.Entry) bool) ([]*block, error) {
	regions := len(c.space.Place)
	start := c.ep.Rand().IntN(regions)
	var list []*block
	for from := 0; from < regions && len(list) < candidates; from += tablesPerTrip {
		b := c.ep.Batch()
		n := min(tablesPerTrip, regions-from)
		for k := range n {
			b.Read(c.space.Table((start+from+k)%regions, 0), c.space.Blocks()*8)
		}
		if err := c.do(b); err != nil {
			b.Release()
			return nil, fmt.Errorf("read block allocation tables: %w", err)
		}
		for k := range n {
			for i := range c.space.Blocks() {
				e := node.Entry(le.Uint64(b.Op(k).Buf[8*i:]))
				if e.Class() < len(c.classes.units) && fits(e) && len(list) < candidates {
					list = append(list, &block{Block: node.Block{Region: (start + from + k) % regions, Index: i}, class: e.Class(), entry: e})
				}
			}
		}
		b.Release()
	}
	return list, nil
}

// countFree counts the bits in the blocks' bitmaps.
func (c *Client) countFree(blocks []*block) ([]int, error) {
	b := c.ep.Batch()
	defer b.Release()
	c.readBitmaps(b, blocks)
	if err := c.do(b); err != nil {
		return nil, fmt.Errorf("read free bitmaps: %w", err)
	}
	free := make([]int, len(blocks))
	for i := range blocks {
		for p := b.Op(i).Buf; len(p) > 0; p = p[8:] {
			free[i] += bits.OnesCount64(le.Uint64(p))
		}
	}
	return free, nil
}

// takeOver makes a departed client's block this client's, of the given class, if its entry is still the one that was read:
// so the block is as it was then, or has more free objects. It returns false when another client was faster.
func (c *Client) takeOver(blk *block, class int) (bool, error) {
	was := blk.entry
	mine := was.Next(c.id, class)
	b := c.ep.Batch()
	op := b.CompareSwap(c.space.Entry(blk.Block, 0), uint64(was), uint64(mine))
	err := c.do(b)
	swapped := op.Swapped()
	b.Release()
	if err != nil || !swapped {
		return false, err
	}
	blk.entry = mine
	b = c.ep.Batch()
	defer b.Release()
	for r := 1; r < c.space.Copies(blk.Region); r++ {
		b.CompareSwap(c.space.Entry(blk.Block, r), uint64(was), uint64(mine))
	}
	if err := c.do(b); err != nil {
		return false, fmt.Errorf("adopt block %v: %w", blk.Block, err)
	}
	for i := range b.Len() {
		if op := b.Op(i); !op.Swapped() {
			return false, fmt.Errorf("adopt block %v: replica %d has %v: %w", blk.Block, i+1, node.Entry(op.Result), errTables)
		}
	}
	return true, nil
}

// inherit learns how often each object of an adopted block was used, and takes its free ones.
func (c *Client) inherit(blk *block) error {
	at, class := blk.Block, blk.class
	blk.incarnations = make([]uint32, c.classes.objects[class])
	for from := 0; from < len(blk.incarnations); from += headsPerTrip {
		n := min(headsPerTrip, len(blk.incarnations)-from)
		b := c.ep.Batch()
		for i := range n {
			b.Read(c.space.UnitAt(c.unitOf(place{blk, from + i}), 0).Add(incarnationAt), 8)
		}
		if err := c.do(b); err != nil {
			b.Release()
			return fmt.Errorf("adopt block %v: %w", at, err)
		}
		for i := range n {
			blk.incarnations[from+i] = le.Uint32(b.Op(i).Buf)
		}
		b.Release()
	}
	c.own[at] = blk
	c.slabs[class].blocks = append(c.slabs[class].blocks, blk)
	c.stats.Adopted++
	return c.reclaimNow(class, []*block{blk})
}

// convert gives an empty block of another class to this one: one of the client's own, or a departed client's. Its
// objects begin anew, so their words come back; before that it waits until nobody remembers one.
func (c *Client) convert(class int) (bool, error) {
	blk, err := c.giveUpEmpty(class)
	if blk == nil && err == nil {
		blk, err = c.adoptEmpty(class)
	}
	if blk == nil || err != nil {
		return false, err
	}
	c.ep.Sleep(c.opt.Timeout)
	c.stats.Converted++
	c.carve(blk.Block, class, blk.entry)
	return true, nil
}

// giveUpEmpty takes an empty block out of another class of this client.
func (c *Client) giveUpEmpty(class int) (*block, error) {
	for other := range c.slabs {
		s := &c.slabs[other]
		if other == class || len(s.blocks) == 0 {
			continue
		}
		if err := c.reclaimAll(other); err != nil {
			return nil, err
		}
		idle := map[*block]int{}
		for _, p := range s.free[s.head:] {
			idle[p.block]++
		}
		for i, blk := range s.blocks {
			if idle[blk] < len(blk.incarnations) {
				continue
			}
			s.blocks = append(s.blocks[:i], s.blocks[i+1:]...)
			kept := s.free[:0]
			for _, p := range s.free[s.head:] {
				if p.block != blk {
					kept = append(kept, p)
				}
			}
			s.free, s.head, s.cursor = kept, 0, 0
			delete(c.own, blk.Block)
			was := blk.entry
			blk.entry = was.Next(c.id, class)
			return blk, c.setEntry(blk.Block, c.space.Copies(blk.Region)-1, was, blk.entry)
		}
	}
	return nil, nil
}

// adoptEmpty adopts an empty block of another class.
func (c *Client) adoptEmpty(class int) (*block, error) {
	left, err := c.departed(func(e node.Entry) bool { return e.Class() != class })
	if err != nil || len(left) == 0 {
		return nil, err
	}
	free, err := c.countFree(left)
	if err != nil {
		return nil, err
	}
	for i, blk := range left {
		if free[i] < c.classes.objects[blk.class] {
			continue
		}
		if mine, err := c.takeOver(blk, class); err != nil || !mine {
			if err != nil {
				return nil, err
			}
			continue
		}
		return blk, c.clearBits(blk)
	}
	return nil, nil
}

// clearBits empties the bitmap of an empty block.
func (c *Client) clearBits(blk *block) error {
	blk.incarnations = make([]uint32, c.classes.objects[blk.class])
	read, next := c.ep.Batch(), c.ep.Batch()
	defer read.Release()
	defer next.Release()
	c.readBitmaps(read, []*block{blk})
	if err := c.do(read); err != nil {
		return err
	}
	c.collect(next, read, []*block{blk}, nil)
	return c.do(next)
}

// shed leaves blocks to others when the pool is mostly handed out and this client holds more free objects than its share:
// there may be clients that have none.
func (c *Client) shed(class int) {
	s := &c.slabs[class]
	if s.idle() <= c.share(class) {
		return
	}
	var err error
	if c.reclaim.tight, err = c.isTight(); err != nil || !c.reclaim.tight {
		return // a node that does not answer is seen by the operation itself
	}
	if c.endScan() != nil {
		return
	}
	for s.idle() > c.share(class) && c.damage == nil {
		idle, most := map[*block]int{}, s.free[s.head].block
		for _, p := range s.free[s.head:] {
			if idle[p.block]++; idle[p.block] > idle[most] {
				most = p.block
			}
		}
		left := &slab{blocks: []*block{most}}
		for i, blk := range s.blocks {
			if blk == most {
				s.blocks = append(s.blocks[:i], s.blocks[i+1:]...)
				break
			}
		}
		kept := s.free[:0]
		for _, p := range s.free[s.head:] {
			if p.block == most {
				left.free = append(left.free, p)
			} else {
				kept = append(kept, p)
			}
		}
		s.free, s.head, s.cursor = kept, 0, 0
		if err := c.leave(left, class); err != nil {
			c.fault(err)
		}
	}
}

// isTight tells whether a region, chosen at random, has few free blocks left.
func (c *Client) isTight() (bool, error) {
	b := c.ep.Batch()
	defer b.Release()
	op := b.Read(c.space.Table(c.ep.Rand().IntN(len(c.space.Place)), 0), c.space.Blocks()*8)
	if err := c.do(b); err != nil {
		return false, err
	}
	free := 0
	for i := range c.space.Blocks() {
		if le.Uint64(op.Buf[8*i:]) == 0 {
			free++
		}
	}
	return free*4 < c.space.Blocks(), nil
}

// Close gives back what the client holds: it ends its background work, marks its free objects and leaves its blocks to
// others. The value of the last Get ends with it. Objects of writes with unknown outcome stay as they are. When Close
// fails the client still owns blocks: its identity must not be given back, so leave the endpoint open.
func (c *Client) Close() error {
	c.releaseHeld()
	if err := cmp.Or(c.drain(), c.damage); err != nil {
		return fmt.Errorf("close fusee: %w", err)
	}
	for class := range c.slabs {
		s := &c.slabs[class]
		if err := c.leave(s, class); err != nil {
			return fmt.Errorf("close fusee: leave blocks: %w", err)
		}
		*s = slab{}
	}
	return nil
}

// leave passes the blocks of a slab on, its free objects marked.
func (c *Client) leave(s *slab, class int) error {
	words := (c.classes.objects[class] + 63) / 64
	index := make(map[*block]int, len(s.blocks))
	for i, blk := range s.blocks {
		index[blk] = i
	}
	set := make([]uint64, words*len(s.blocks))
	for _, p := range s.free[s.head:] {
		set[index[p.block]*words+p.index/64] |= 1 << (p.index % 64)
	}
	for from := 0; from < len(s.blocks); from += syncBlocks {
		blocks := s.blocks[from:min(from+syncBlocks, len(s.blocks))]
		b := c.ep.Batch()
		for i, blk := range blocks {
			for w, bits := range set[(from+i)*words : (from+i+1)*words] {
				if bits != 0 {
					b.FetchAdd(c.space.Bitmap(blk.Block, 0).Add(uint64(w*8)), bits)
				}
			}
		}
		err := c.do(b)
		b.Release()
		if err == nil {
			err = c.passOn(blocks)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passOn changes the entries of blocks to node.Left, the backups' before the primaries'.
func (c *Client) passOn(blocks []*block) error {
	for _, primary := range []bool{false, true} {
		b := c.ep.Batch()
		for _, blk := range blocks {
			for r := range c.space.Copies(blk.Region) {
				if (r == 0) == primary {
					b.CompareSwap(c.space.Entry(blk.Block, r), uint64(blk.entry), uint64(blk.entry.Next(node.Left, blk.class)))
				}
			}
		}
		err := c.do(b)
		for i := range b.Len() {
			if op := b.Op(i); err == nil && !op.Swapped() {
				err = fmt.Errorf("block entry at %s is %v: %w", op.Addr, node.Entry(op.Result), errTables)
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	for _, blk := range blocks {
		delete(c.own, blk.Block)
	}
	return nil
}

// takeFromNode is node-centric allocation (FUSEE 6.3): every object costs a call to a memory node, which keeps
// the free bitmaps of its blocks. It shows what two-level management is worth.
func (c *Client) takeFromNode(class int) error {
	c.land(false)
	c.mature()
	regions := len(c.space.Place)
	start := c.ep.Rand().IntN(regions)
	var last error
	for k := range regions {
		g := (start + k) % regions
		first := node.Block{Region: g}
		q := rdma.Request{Proc: node.ProcObject, Arg: [6]uint64{c.space.Table(g, 0).Offset(), uint64(c.space.Blocks()),
			c.space.Bitmap(first, 0).Offset(), c.BlockBytes, uint64(class)<<32 | uint64(c.classes.objects[class]),
			c.space.BitmapBytes()<<32 | uint64(c.classes.units[class]*node.Unit)}}
		err := c.ep.Call(c.space.Table(g, 0).Node(), &q, c.opt.Timeout)
		if err == nil {
			blk := node.Block{Region: g, Index: int(q.Ret[0])}
			c.draft.object = object{unit: c.space.Object(blk, int(q.Ret[1]), c.classes.units[class]), class: class, incarnation: uint32(q.Ret[2]) + 1}
			return c.recordNodeBlock(blk, class)
		}
		last = err
	}
	return fmt.Errorf("take an object from a node: %w", last)
}

// recordNodeBlock makes sure that the backups know a block that a node hands objects out of.
func (c *Client) recordNodeBlock(blk node.Block, class int) error {
	if c.reclaim.known[blk] {
		return nil
	}
	mine := node.MakeEntry(node.OfNode, class)
	for r := 1; r < c.space.Copies(blk.Region); r++ {
		e, err := c.record(blk, r, mine)
		if err != nil {
			return fmt.Errorf("record block %v: %w", blk, err)
		}
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
