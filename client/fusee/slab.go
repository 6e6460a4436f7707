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

// block is a block that this client owns: no other client allocates in it. The primary's block
// allocation table names this client. What is here is lost with the client; marks on the nodes
// let others learn it again (inherit).
type block struct {
	node.Block
	class int
	// entry is the block's table entry, as this client read or wrote it. CASes expect it.
	entry node.Entry
	// incarnations of each object, by its last use. 0: it was never used. Only the owner uses
	// objects, so no other client advances them.
	incarnations []uint32
	// ready has a bit for each object, which is set while the object is in the free list or ripe.
	// A report that it was freed adds nothing then.
	ready []uint64
	// suspect: a scan of the block failed, or its primary moved. Hints may be lost, so marks have
	// to be read: see reread.
	suspect bool
	// parting: this client is leaving the block, and takes no objects of it.
	parting bool
}

// makeBlock returns a block of which no object was ever used.
func makeBlock(blk node.Block, class int, entry node.Entry, objects int) *block {
	return &block{
		Block: blk, class: class, entry: entry,
		incarnations: make([]uint32, objects), ready: make([]uint64, (objects+63)/64),
	}
}

// idle and setIdle read and set an object's bit in ready.
func (b *block) idle(i int) bool { return b.ready[i/64]>>(i%64)&1 != 0 }
func (b *block) setIdle(i int)   { b.ready[i/64] |= 1 << (i % 64) }

// use begins the next use of an object: it makes the next incarnation, and the object is not free
// any more. After 2^32 uses the incarnation is 1 again, as 0 is none.
func (b *block) use(i int) uint32 {
	b.ready[i/64] &^= 1 << (i % 64)
	b.incarnations[i]++
	if b.incarnations[i] == 0 {
		b.incarnations[i] = 1
	}
	return b.incarnations[i]
}

// slab holds a client's objects of one size class (FUSEE 4.4). Objects are taken in the order of
// the free list, so that each rests as long as possible.
type slab struct {
	blocks []*block
	// Free objects from head on. What is before head was taken.
	free []place
	head int
	// cursor is the block at which the next background scan begins.
	cursor int
	// taken counts the objects since the last scan, and gap is how many there should be.
	taken int
	gap   int
	// used is when an operation took an object last: reclaim.writes.
	used uint64
}

// place is a free object.
type place struct {
	block *block
	index int
}

// idle returns how many free objects the slab has.
func (s *slab) idle() int { return len(s.free) - s.head }

// push adds a free object. It moves the list to the front of its memory when more than half of
// that is behind head, so a steady state allocates nothing.
func (s *slab) push(p place) {
	if s.head > 64 && s.head*2 > len(s.free) {
		s.free = s.free[:copy(s.free, s.free[s.head:])]
		s.head = 0
	}
	s.free = append(s.free, p)
}

// split takes a block and its free objects out of the slab, and returns a slab of them. Both keep
// the order of the free list.
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

// unitOf returns where an object begins.
func (c *Client) unitOf(p place) uint64 {
	return c.space.Object(p.block.Block, p.index, c.classes.units[p.block.class])
}

// draft is an object with what it is to hold. The client has one, for its current operation.
type draft struct {
	object
	fields
	// units as a slot's word has them: those of the pair, or of the larger class of which it
	// borrows an object.
	units int
	// bytes of the pair with header and log entry, which are written.
	bytes int
}

// begin takes an object and a journal word for an operation, and prepares what is written into
// it. Nothing is written into the object yet: a crash leaves one that is free by its mark, or was
// never used. The error wraps client.ErrFull when there is no object, and then none was taken.
func (c *Client) begin(op opcode, key, value []byte) error {
	d := &c.draft
	*d = draft{bytes: objectBytes(len(key), len(value)), units: unitsFor(len(key), len(value))}
	class := int(c.classes.of[d.units])
	c.reclaim.deletes = max(c.reclaim.deletes, int(c.classes.of[unitsFor(len(key), 0)]))
	// This time is used for the operation's deadline and for its background work.
	c.reclaim.now = c.ep.Now()
	if c.deadline == unset {
		c.deadline = c.reclaim.now + c.opt.Timeout
	}
	if err := c.number(); err != nil { // it may write a ceiling, which takes a trip
		return err
	}
	d.fields = fields{writer: c.id, seq: c.numbers.seq, op: op, key: key, value: value}
	if c.overdue() {
		return errTimeout("take an object")
	}
	// Waiting for a journal word may take long, so no object is held meanwhile.
	word, err := c.journalWord()
	if err != nil {
		return err
	}
	if c.NodeCentric {
		return c.takeFromNode(class, word)
	}
	// shed comes before an object is taken: an adopter of the object's block reads how often the
	// object was used, and must not read that before the object is written.
	if c.reclaim.writes++; c.reclaim.writes%shedEvery == 0 {
		c.shed(class)
	}
	if class, err = c.classFor(class, op); err != nil {
		return err
	}
	// A borrowed object is as large as its class: the slot's word says so, and others find the
	// class of its block by the word.
	if class != int(c.classes.of[d.units]) {
		d.units = c.classes.units[class]
	}
	s := &c.slabs[class]
	p := s.free[s.head]
	s.head++
	s.used = c.reclaim.writes
	d.object = object{unit: c.unitOf(p), class: class, incarnation: p.block.use(p.index), journal: word}
	// Frees and scans in flight move on with each write.
	c.tend(class)
	return nil
}

// classFor makes sure that a class has a free object for the operation, and returns the class. It
// is that of the pair's size, or a larger one, of which the pair borrows an object where the pool
// has no block left. A client keeps one object for DELETEs, so that a client that has filled a pool
// can empty it.
//
// An operation waits for room once, and its deadline is moved by that wait. Within its own time
// no block could become vacant, since a client may remember a word for as long as an operation
// takes.
func (c *Client) classFor(class int, op opcode) (int, error) {
	reserve := 1
	if op == opDelete {
		reserve = 0
	}
	if c.slabs[class].idle() > reserve { // the common case
		return class, nil
	}
	// What it adopts below it needs: so this is not in the loop.
	if c.reclaim.full && op != opDelete {
		if err := c.lend(class); err != nil {
			return class, err
		}
	}
	for waited := false; ; {
		from, ok := c.borrow(class, reserve)
		// In a tight pool a pair borrows from a slightly larger class at once, and leaves blocks
		// to others. What a DELETE borrows comes back soon.
		if ok && (from == class || c.reclaim.tight &&
			(op == opDelete || c.classes.units[from] <= mostBorrowed*c.classes.units[class])) {
			if from != class && len(c.slabs[class].blocks) > 0 && c.reclaim.scan.phase == noScan {
				c.beginScan(class) // others may have freed some of its own
			}
			return from, nil
		}
		// Otherwise the class gets objects of its own, or the client a block of a larger class.
		err := c.refill(class, reserve)
		c.reclaim.now = c.ep.Now()
		if err != nil && !errors.Is(err, rdma.ErrFull) {
			return class, err
		}
		if from, ok := c.borrow(class, reserve); ok {
			return from, nil
		}
		// Each refill without an error adds an object at least: this one is the reserve, and the next
		// one suffices.
		if err == nil {
			continue
		}
		// It waits for room once: the second time the pool is full.
		if waited {
			return class, err
		}
		waited = true
		began := c.ep.Now()
		ok, e := c.await(class, reserve)
		c.reclaim.now = c.ep.Now()
		// The wait does not count as the operation's time.
		if c.until() != never {
			c.deadline += c.reclaim.now - began
		}
		if e != nil || !ok {
			return class, cmp.Or(e, err)
		}
	}
}

// mostBorrowed is how many times as large an object a pair borrows before it has a block of its
// own, in a pool that is mostly handed out.
const mostBorrowed = 2

// borrow returns the smallest class from the given one on of which the client has an idle object,
// if it keeps as many others as the reserve that are large enough for its DELETEs. So one idle
// object suffices for these, not one a class.
func (c *Client) borrow(class, reserve int) (from int, ok bool) {
	idle := 0
	for larger := len(c.slabs) - 1; larger >= min(class, c.reclaim.deletes); larger-- {
		n := c.slabs[larger].idle()
		if idle += n; n > 0 && larger >= class {
			from, ok = larger, true
		}
	}
	return from, ok && idle > reserve
}

// has reports whether a class has a free object, beside the reserve.
func (c *Client) has(class, reserve int) bool {
	from, ok := c.borrow(class, reserve)
	return ok && from == class
}

// write adds the WRITEs of the draft, pair and log entry together, to all data replicas (FUSEE
// 4.5), and those of its journal word to the same nodes. None of them is ordered behind another:
// no slot gets the draft's word before all of them are complete. The batch owns the buffer. A
// crash leaves any part of them; the checksum shows whether the object is complete.
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

// word returns the word by which a slot points at the draft.
func (d *draft) word(c *Client, hash uint64) race.Word {
	return race.Pack(race.Print(hash), d.units, d.unit, c.tag(d.object.incarnation))
}

// refill adds free objects to a class, which may be the reserve only. It tries, from cheap to dear:
// what others freed, what rests, a departed client's block with many free objects, a resting
// block of its own, a new block, a vacant block, a departed client's block with any. The error
// wraps client.ErrFull when there is none.
func (c *Client) refill(class, reserve int) error {
	if err := c.reclaimAll(class); err != nil {
		return err
	}
	// What rests comes back sooner than a block could, if it is enough.
	if c.has(class, reserve) || c.reclaim.restingOwn(c, class) >= c.enough(class) && c.awaitRest(class, reserve) {
		return nil
	}
	// A block of which an eighth is free is worth its take-over; where there is no other, any is.
	worth, among := max(2, c.classes.objects[class]/8), candidates
	if c.reclaim.full {
		worth, among = 1, manyCandidates
	}
	if ok, err := c.adopt(class, worth, among, false); ok || err != nil {
		return err
	}
	if c.takeBack(class) {
		return nil
	}
	err := c.newBlock(class)
	if !errors.Is(err, rdma.ErrFull) {
		return err
	}
	// No node has a free block: take a vacant one, or a departed client's with a few free
	// objects.
	full := err
	if ok, err := c.carveVacant(class); ok || err != nil {
		return err
	}
	if !c.reclaim.full {
		if err := c.lookAround(); err != nil {
			return err
		}
		c.reclaim.full = true
	}
	if ok, err := c.adopt(class, 1, manyCandidates, true); ok || err != nil {
		return err
	}
	return fmt.Errorf("find room for an object of %d bytes: %w", c.classes.units[class]*node.Unit, full)
}

// await waits for room where there is none: for objects that end their quarantine, for those that
// other clients will have freed in a while, for a departed client's larger objects, or for an
// empty block of another class. It returns false when nothing of that comes.
func (c *Client) await(class, reserve int) (bool, error) {
	if c.awaitRest(class, reserve) {
		return true, nil
	}
	for larger := class + 1; larger < len(c.slabs); larger++ {
		if c.awaitRest(larger, reserve) {
			return true, nil
		}
	}
	if ok, err := c.awaitOthers(class, reserve); ok || err != nil {
		return ok, err
	}
	return c.awaitVacant(class)
}

// enough returns how many resting objects make waiting for them better than another block: as
// many as a client uses while they rest, or what fills half a block, whichever is more. In a pool
// that is mostly handed out a client waits for less: its share.
func (c *Client) enough(class int) int {
	n := min(restObjects, restBytes/(c.classes.units[class]*node.Unit))
	if c.reclaim.tight {
		n = min(n, c.share(class))
	}
	return max(c.classes.objects[class]/2, n)
}

// share returns how many free objects of a class a client may hold in a pool that is mostly
// handed out: so few that a hundred clients leave room for each other, but at least a block's.
func (c *Client) share(class int) int {
	return max(c.classes.objects[class], len(c.space.Place)*c.space.Blocks()*c.classes.objects[class]/restShare)
}

const (
	restObjects = 512     // as many as a client uses in half a millisecond
	restBytes   = 1 << 20 // of large objects fewer
	restShare   = 256     // a client's share is this part of the pool's objects
)

// newBlock allocates a block from a memory node (FUSEE 4.4): a call to the primary's node, and
// one to each backup's, so that the allocation survives the primary. It asks the regions,
// beginning with a random one, and returns an error that wraps rdma.ErrFull when none has a
// block. A crash in between leaves a block that only the primary's table knows as this client's;
// nothing in it was used.
func (c *Client) newBlock(class int) error {
	regions := len(c.regions)
	// A random start spreads blocks over the nodes.
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
			// It may have been allocated: tidy finds out.
			c.reclaim.untidy = true
			return err
		}
		last = err
	}
	return last
}

// callAlloc allocates a block in a region. The primary's node takes a free entry by a CAS, which
// is the moment of the allocation, and says how many were free. The backups record it in order. A
// backup without memory refuses: then the entries before it are taken back. After any other
// failure the block may be this client's, and untidy says so.
func (c *Client) callAlloc(region, class int) (node.Block, error) {
	first := node.Block{Region: region}
	table := c.space.Table(region, 0)
	q := rdma.Request{Step: stepAllocate, Proc: node.ProcAlloc, Arg: [6]uint64{table.Offset(), uint64(c.space.Blocks()),
		c.space.Bitmap(first, 0).Offset(), c.BlockBytes, uint64(class), c.ep.Rand().Uint64N(uint64(c.space.Blocks()))}}
	if err := c.ep.Call(table.Node(), &q, c.opt.Timeout); err != nil {
		return node.Block{}, fmt.Errorf("allocate a block: %w", err)
	}
	blk := node.Block{Region: region, Index: int(q.Ret[0])}
	// Fewer than a quarter of the region's blocks were free.
	c.reclaim.tight, c.reclaim.full = q.Ret[2]*4 < uint64(c.space.Blocks()), false
	mine := node.MakeEntry(c.id, class)
	for r := 1; r < c.space.Copies(region); r++ {
		found, err := c.record(stepAllocate, blk, r, mine)
		if err == nil && found != 0 {
			err = fmt.Errorf("replica %d of block %v has %v: %w", r, blk, found, errTables)
		}
		switch {
		case errors.Is(err, rdma.ErrFull): // nothing was recorded there: the block goes back
			if e := c.setEntry(blk, r-1, mine, 0); e != nil {
				return blk, e // it may be this client's still
			}
			return blk, fmt.Errorf("allocate a block: %w", err)
		case err != nil: // it may have been recorded: the block is this client's, and tidy finds it
			return blk, fmt.Errorf("allocate a block: %w", err)
		}
	}
	return blk, nil
}

// record calls a backup's node to record an allocation, and returns the entry that was there. The
// node backs the block with memory first. Where the entry is not zero, it stays as it is.
func (c *Client) record(step rdma.Step, blk node.Block, replica int, e node.Entry) (node.Entry, error) {
	at := c.space.Entry(blk, replica)
	q := rdma.Request{Step: step, Proc: node.ProcRecord, Arg: [6]uint64{
		at.Offset(), 0, uint64(e), c.space.Bitmap(blk, replica).Offset(), c.BlockBytes}}
	err := c.ep.Call(at.Node(), &q, c.opt.Timeout)
	return node.Entry(q.Ret[0]), err
}

// setEntry CASes a block's entry on its replicas from the given one down to the primary. In this
// order no reader of the primary finds a state that a backup has not reached. A crash leaves
// backups that are ahead: Mend or recovery gives them the primary's entry again.
func (c *Client) setEntry(blk node.Block, from int, expect, value node.Entry) error {
	for r := from; r >= 0; r-- {
		if err := c.setReplica(blk, r, expect, value); err != nil {
			return err
		}
	}
	return nil
}

// setReplica CASes a block's entry on one replica. Another entry than the expected one is damage.
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
// The block is new: its memory is zero.
func (c *Client) carve(blk node.Block, class int, entry node.Entry) {
	c.takeUp(makeBlock(blk, class, entry, c.classes.objects[class]))
}

// hold makes a block one of this client's. It adds no free objects.
func (c *Client) hold(b *block) {
	c.own[b.Block] = b
	s := &c.slabs[b.class]
	s.blocks = append(s.blocks, b)
}
