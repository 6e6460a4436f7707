package fusee

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// block is a block that this client owns: no other client allocates in it.
type block struct {
	node.Block
	class        int
	entry        node.Entry // as this client read or wrote it
	incarnations []uint32   // of each object, by its last use
	ready        []uint64   // a bit an object: it is in the free list, or ripe; another report adds nothing
	suspect      bool       // a scan of it failed: hints may be lost
	parting      bool       // this client is leaving it, and takes no objects of it
}

func makeBlock(blk node.Block, class int, entry node.Entry, objects int) *block {
	return &block{Block: blk, class: class, entry: entry, incarnations: make([]uint32, objects), ready: make([]uint64, (objects+63)/64)}
}

func (b *block) idle(i int) bool { return b.ready[i/64]>>(i%64)&1 != 0 }
func (b *block) setIdle(i int)   { b.ready[i/64] |= 1 << (i % 64) }

// use makes the next incarnation of an object, which is not free any more. 0 is no incarnation.
func (b *block) use(i int) uint32 {
	b.ready[i/64] &^= 1 << (i % 64)
	b.incarnations[i]++
	if b.incarnations[i] == 0 {
		b.incarnations[i] = 1
	}
	return b.incarnations[i]
}

// slab holds a client's objects of one size class (FUSEE 4.4). Objects are taken in the order of the
// free list.
type slab struct {
	blocks []*block
	free   []place // from head on
	head   int
	cursor int // block at which the next background scan begins
	taken  int // objects since the last one
	gap    int // and how many there should be
}

// place is a free object.
type place struct {
	block *block
	index int
}

func (s *slab) idle() int { return len(s.free) - s.head }

func (s *slab) push(p place) {
	if s.head > 64 && s.head*2 > len(s.free) {
		s.free = s.free[:copy(s.free, s.free[s.head:])]
		s.head = 0
	}
	s.free = append(s.free, p)
}

// split takes a block out of the slab and returns a slab of it and its free objects.
func (s *slab) split(blk *block) *slab {
	part := &slab{blocks: []*block{blk}}
	s.blocks = slices.DeleteFunc(s.blocks, func(b *block) bool { return b == blk })
	kept := s.free[:0]
	for _, p := range s.free[s.head:] {
		if p.block == blk {
			part.free = append(part.free, p)
		} else {
			kept = append(kept, p)
		}
	}
	s.free, s.head, s.cursor = kept, 0, 0
	return part
}

func (c *Client) unitOf(p place) uint64 {
	return c.space.Object(p.block.Block, p.index, c.classes.units[p.block.class])
}

// draft is an object with what it is to hold.
type draft struct {
	object
	fields
	units int // as a slot's word has them: those of the pair, or of a larger class that it borrows an object of
	bytes int
}

// begin takes an object for an operation and prepares what is written into it.
func (c *Client) begin(op opcode, key, value []byte) error {
	d := &c.draft
	*d = draft{bytes: objectBytes(len(key), len(value)), units: unitsFor(len(key), len(value))}
	class := int(c.classes.of[d.units])
	c.reclaim.now = c.ep.Now()
	if c.deadline == unset {
		c.deadline = c.reclaim.now + c.opt.Timeout
	}
	if err := c.number(); err != nil { // it may write a ceiling
		return err
	}
	d.fields = fields{writer: c.id, seq: c.numbers.seq, op: op, key: key, value: value}
	if c.overdue() {
		return errTimeout("take an object")
	}
	word, err := c.journalWord()
	if err != nil {
		return err
	}
	if c.NodeCentric {
		return c.takeFromNode(class, word)
	}
	// shed comes before an object is taken: an adopter of the object's block reads how often the
	// object was used, and must not read it before the object is written.
	if c.reclaim.writes++; c.reclaim.writes%shedEvery == 0 {
		c.shed(class)
	}
	if class, err = c.classFor(class, op); err != nil {
		return err
	}
	if class != int(c.classes.of[d.units]) {
		d.units = c.classes.units[class]
	}
	s := &c.slabs[class]
	p := s.free[s.head]
	s.head++
	d.object = object{unit: c.unitOf(p), class: class, incarnation: p.block.use(p.index), journal: word}
	c.tend(class)
	return nil
}

// classFor makes sure that a class has a free object for the operation, and returns it: that of the
// pair's size, or a larger one, which the pair borrows an object of where the pool has no block
// left. A client's last object of a class is kept for DELETEs: a client that has filled a pool can
// empty it. An operation waits for room once, and has as much more time: within its own no block
// could become vacant, since a word may be remembered for as long as an operation takes.
func (c *Client) classFor(class int, op opcode) (int, error) {
	reserve := 1
	if op == opDelete {
		reserve = 0
	}
	for waited := false; c.slabs[class].idle() <= reserve; { // what refill adds may be one object
		larger, ok := c.borrow(class, reserve)
		if ok && c.reclaim.tight && c.classes.units[larger] <= mostBorrowed*c.classes.units[class] {
			if len(c.slabs[class].blocks) > 0 && c.reclaim.scan.phase == noScan {
				c.beginScan(class) // others may have freed some of its own
			}
			return larger, nil
		}
		err := c.refill(class, reserve)
		c.reclaim.now = c.ep.Now()
		if larger, ok := c.borrow(class, reserve); ok && err == nil && c.slabs[class].idle() <= reserve {
			return larger, nil // there is a block of a larger class now
		}
		if !errors.Is(err, rdma.ErrFull) {
			if err != nil {
				return class, err
			}
			continue
		}
		if larger, ok := c.borrow(class, reserve); ok {
			return larger, nil
		}
		if waited {
			return class, err
		}
		waited = true
		began := c.ep.Now()
		ok, e := c.await(class, reserve)
		c.reclaim.now = c.ep.Now()
		if c.until() != never {
			c.deadline += c.reclaim.now - began
		}
		if e != nil || !ok {
			return class, cmp.Or(e, err)
		}
	}
	return class, nil
}

// mostBorrowed is how many times as large an object a pair borrows before it has a block of its
// own, in a pool that is mostly handed out.
const mostBorrowed = 2

// borrow returns the next larger class of which the client has more objects than the reserve.
func (c *Client) borrow(class, reserve int) (larger int, ok bool) {
	for larger = class + 1; larger < len(c.slabs); larger++ {
		if c.slabs[larger].idle() > reserve {
			return larger, true
		}
	}
	return class, false
}

// write adds the WRITEs of the draft, pair and log entry together, to all data replicas (FUSEE
// 4.5), and those of its journal word to the same nodes. None of them is ordered behind another: no
// slot gets the draft's word before all of them are complete.
func (d *draft) write(c *Client, b *rdma.Batch) {
	d.fields.incarnation = d.object.incarnation
	d.oldAt = logAt(len(d.key), len(d.value)) + opBytes
	p := b.Alloc(d.bytes)
	d.encode(p)
	for r := range c.space.CopiesOf(d.unit) {
		at := c.space.UnitAt(d.unit, r)
		b.Write(at, p)
		b.WriteWord(c.journal(c.id, at.Node()).Add(uint64(d.object.journal)*8), journaled(d.unit, d.seq))
	}
}

// word returns what a slot holds that points at the draft.
func (d *draft) word(c *Client, hash uint64) race.Word {
	return race.Pack(race.Print(hash), d.units, d.unit, c.tag(d.object.incarnation))
}

// refill makes the free list of a class longer than its reserve: with what others freed, with a
// departed client's block, or with a new one. The error wraps client.ErrFull when there is none.
func (c *Client) refill(class, reserve int) error {
	s := &c.slabs[class]
	if err := c.reclaimAll(class); err != nil {
		return err
	}
	if s.idle() > reserve || c.reclaim.restingOwn(c, class) >= c.enough(class) && c.awaitRest(class, reserve) {
		return nil
	}
	if ok, err := c.adopt(class, max(2, c.classes.objects[class]/8)); ok || err != nil {
		return err
	}
	if c.takeBack(class) {
		return nil
	}
	fresh := c.classOfNew(class)
	err := c.newBlock(fresh)
	if !errors.Is(err, rdma.ErrFull) {
		return err
	}
	full := err
	if ok, err := c.carveVacant(fresh); ok || err != nil {
		return err
	}
	if ok, err := c.adopt(class, 1+reserve); ok || err != nil {
		return err
	}
	return fmt.Errorf("find room for an object of %d bytes: %w", c.classes.units[class]*node.Unit, full)
}

// await waits for room where there is none: for what ends its quarantine, for what other clients
// will have freed in a while, for a departed client's larger objects, or for a block of another
// class that is empty.
func (c *Client) await(class, reserve int) (bool, error) {
	if c.awaitRest(class, reserve) {
		return true, nil
	}
	for larger := class + 1; larger < len(c.slabs); larger++ {
		if c.awaitRest(larger, reserve) {
			return true, nil
		}
	}
	for larger := class + 1; larger < len(c.slabs); larger++ {
		if ok, err := c.adopt(larger, 1+reserve); ok || err != nil {
			return ok, err
		}
	}
	if ok, err := c.awaitOthers(class, reserve); ok || err != nil {
		return ok, err
	}
	return c.awaitVacant(c.classOfNew(class))
}

// finely is how many classes a client has blocks of in a pool that is mostly handed out, before it
// takes those of coarse classes. Pairs of one size waste nothing, and those of all sizes share a
// few blocks.
const finely = 4

// classOfNew returns the class of a new block for pairs of a class.
func (c *Client) classOfNew(class int) int {
	if !c.reclaim.tight || len(c.slabs[class].blocks) > 0 {
		return class
	}
	classes := 0
	for i := range c.slabs {
		if len(c.slabs[i].blocks) > 0 {
			classes++
		}
	}
	if classes < finely {
		return class
	}
	return c.classes.coarse(class)
}

// enough is how many resting objects make waiting for them better than another block: as many as a
// client uses while they rest, or what fills half a block. In a pool that is mostly handed out a
// client is content with a small share of it.
func (c *Client) enough(class int) int {
	n := min(restObjects, restBytes/(c.classes.units[class]*node.Unit))
	if c.reclaim.tight {
		n = min(n, c.share(class))
	}
	return max(c.classes.objects[class]/2, n)
}

// share is how many free objects of a class a client may hold in a pool that is mostly handed out:
// few enough that a hundred clients leave room for each other, or a block's.
func (c *Client) share(class int) int {
	return max(c.classes.objects[class], len(c.space.Place)*c.space.Blocks()*c.classes.objects[class]/restShare)
}

const (
	restObjects = 512     // in half a millisecond
	restBytes   = 1 << 20 // of large objects fewer
	restShare   = 256     // of the pool's objects
)

// newBlock allocates a block from a memory node (FUSEE 4.4): a call to the primary's node, and one
// to each backup's so that the allocation survives it. A crash in between leaves a block that only
// the primary's table knows as this client's; nothing in it was used.
func (c *Client) newBlock(class int) error {
	regions := len(c.regions)
	start := c.ep.Rand().IntN(max(1, regions))
	last := rdma.ErrFull
	for k := range regions {
		g := c.regions[(start+k)%regions]
		blk, err := c.callAlloc(g, class)
		if err == nil {
			c.stats.Blocks++
			c.carve(blk, class, node.MakeEntry(c.id, class))
			return nil
		}
		if !errors.Is(err, rdma.ErrFull) {
			c.reclaim.untidy = true
			return err
		}
		last = err
	}
	return last
}

func (c *Client) callAlloc(region, class int) (node.Block, error) {
	first := node.Block{Region: region}
	table := c.space.Table(region, 0)
	q := rdma.Request{Step: stepAllocate, Proc: node.ProcAlloc, Arg: [6]uint64{table.Offset(), uint64(c.space.Blocks()),
		c.space.Bitmap(first, 0).Offset(), c.BlockBytes, uint64(class), c.ep.Rand().Uint64N(uint64(c.space.Blocks()))}}
	if err := c.ep.Call(table.Node(), &q, c.opt.Timeout); err != nil {
		return node.Block{}, fmt.Errorf("allocate a block: %w", err)
	}
	blk := node.Block{Region: region, Index: int(q.Ret[0])}
	c.reclaim.tight = q.Ret[2]*4 < uint64(c.space.Blocks())
	mine := node.MakeEntry(c.id, class)
	for r := 1; r < c.space.Copies(region); r++ {
		found, err := c.record(stepAllocate, blk, r, mine)
		if err == nil && found != 0 {
			err = fmt.Errorf("replica %d of block %v has %v: %w", r, blk, found, errTables)
		}
		switch {
		case errors.Is(err, rdma.ErrFull): // it has not recorded it: the block goes back
			return blk, errors.Join(fmt.Errorf("allocate a block: %w", err), c.setEntry(blk, r-1, mine, 0))
		case err != nil: // perhaps it has: the block is this client's, and what tidies finds it
			return blk, fmt.Errorf("allocate a block: %w", err)
		}
	}
	return blk, nil
}

// record calls a backup's node to record an allocation, and returns the entry that was there.
func (c *Client) record(step rdma.Step, blk node.Block, replica int, e node.Entry) (node.Entry, error) {
	at := c.space.Entry(blk, replica)
	q := rdma.Request{Step: step, Proc: node.ProcRecord, Arg: [6]uint64{at.Offset(), 0, uint64(e), c.space.Bitmap(blk, replica).Offset(), c.BlockBytes}}
	err := c.ep.Call(at.Node(), &q, c.opt.Timeout)
	return node.Entry(q.Ret[0]), err
}

// setEntry CASes a block's entry on its replicas from the given one down to the primary, in this
// order, so that no reader of the primary finds a state that a backup has not reached.
func (c *Client) setEntry(blk node.Block, from int, expect, value node.Entry) error {
	for r := from; r >= 0; r-- {
		if err := c.setReplica(blk, r, expect, value); err != nil {
			return err
		}
	}
	return nil
}

// setReplica CASes a block's entry on one replica.
func (c *Client) setReplica(blk node.Block, replica int, expect, value node.Entry) error {
	found, err := c.swap(stepAllocate, c.space.Entry(blk, replica), uint64(expect), uint64(value))
	if err == nil && node.Entry(found) != expect {
		err = fmt.Errorf("replica %d has %v, not %v: %w", replica, node.Entry(found), expect, errTables)
	}
	if err != nil {
		return fmt.Errorf("change the owner of block %v: %w", blk, err)
	}
	return nil
}

// carve makes a block's objects this client's own, all of them free and none of them ever used.
func (c *Client) carve(blk node.Block, class int, entry node.Entry) {
	c.takeUp(makeBlock(blk, class, entry, c.classes.objects[class]))
}

// hold makes a block one of this client's.
func (c *Client) hold(b *block) {
	c.own[b.Block] = b
	s := &c.slabs[b.class]
	s.blocks = append(s.blocks, b)
}
