package fusee

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Freed objects come back in three steps, none of them on an operation's critical path (FUSEE 4.4).
//
//  1. The winner of a slot frees what was there before. The object rests first (layout.quarantine): readers may still be
//     on their way to it, and a tag must not come around while somebody remembers the word.
//  2. Then its owner takes it back. For a block of somebody else's that is an FAA of its bit in the block's free bitmap;
//     exactly one client frees an object, so no bit is added twice. A batch of them is posted and not waited for.
//  3. The owner reads the bitmaps of its blocks from time to time, and subtracts the bits that it saw. Only when that
//     has landed are the objects free: before, another free of the same object would carry into its neighbour's bit.
//
// Bitmaps are kept on the primary replica of a block only: what is lost with its node is found again by comparing
// the blocks with the index, which recovery must do in any case. What a crash of this client loses, objects that rest and
// objects in its free lists, is found in the same way.
type reclaim struct {
	rest    time.Duration
	resting []resting // in the order in which they become ready, from head on
	head    int
	out     []freed       // rested objects of other clients' blocks, for the next batch
	since   time.Duration // when the first of out had rested
	flying  []flight      // batches of frees in flight
	scan    scan          // of this client's own bitmaps
	now     time.Duration // when the current operation began
	writes  uint64
	tight   bool                // the region of the last allocation had few free blocks left
	known   map[node.Block]bool // node-centric: blocks whose backups are recorded
}

type resting struct {
	unit  uint64
	class int
	ready time.Duration
}

// freed is an object as its free bitmap knows it.
type freed struct {
	word rdma.Addr
	bit  uint64
}

type flight struct {
	batch *rdma.Batch
	n     int
	bits  [freeBatch]uint64
}

const (
	freeBatch  = 16   // frees a batch: as many as a doorbell carries well
	flushAfter = 4    // quarantines that a rested object waits for a batch to fill
	maxFlying  = 4    // batches of frees in flight; the fifth waits for the first
	scanBlocks = 16   // bitmaps a background scan reads
	syncBlocks = 64   // bitmaps a trip reads when an operation has to wait for them
	shedEvery  = 1024 // writes after which a client looks whether it holds too much
	lowWater   = 64   // free objects of a class below which a background scan begins
	minGap     = 64   // objects taken between two background scans: a verb for every four,
	maxGap     = 4096 // and fewer when scans find little, since then most frees are this client's own
)

// free gives up the pair that a won write replaced, once the primary shows the new word.
func (c *Client) free(w race.Word) {
	if w.Live() {
		c.lay(w.Unit(), int(c.classes.of[w.Units()]))
	}
}

// lay puts an object to rest.
func (c *Client) lay(unit uint64, class int) {
	r := &c.reclaim
	if r.head > 64 && r.head*2 > len(r.resting) {
		r.resting = r.resting[:copy(r.resting, r.resting[r.head:])]
		r.head = 0
	}
	r.resting = append(r.resting, resting{unit, class, c.ep.Now() + r.rest})
}

// recycle puts the draft to rest, which no slot points at, or none any more. A log entry that a recovery might redo is
// made invalid first: its used bit is cleared (FUSEE 4.5), in the background, since verbs of one client to one node are
// ordered and the object is this client's own until it has rested.
func (c *Client) recycle() {
	d := &c.draft
	if c.IndexReplicas > 1 {
		b := c.ep.Batch()
		p := b.Alloc(1)
		p[0] = byte(d.op)
		for r := range c.DataReplicas {
			b.Write(c.space.UnitAt(d.unit, r).Add(uint64(d.oldAt-1)), p)
		}
		c.fly(b, 0, nil)
	}
	c.lay(d.unit, d.object.class)
}

// abandon gives back the draft of an operation that failed on its way to a slot: a failed batch may still be in flight,
// so its object is not used again.
func (c *Client) abandon(err error) {
	if errors.Is(err, errTired) {
		c.recycle()
		return
	}
	c.limbo = append(c.limbo, c.draft.object)
}

// tend moves what can be moved without waiting. Every operation that writes calls it once.
func (c *Client) tend(class int) {
	c.land(false)
	c.mature()
	c.tendScan()
	s := &c.slabs[class]
	if c.reclaim.writes++; c.reclaim.writes%shedEvery == 0 {
		c.shed(class)
	}
	if s.taken++; s.taken > s.gap && s.idle() < lowWater && c.reclaim.scan.phase == noScan && len(s.blocks) > 0 {
		s.taken = 0
		c.beginScan(class)
	}
}

// mature takes rested objects: own ones into their free lists, others into batches of FAAs.
func (c *Client) mature() {
	r := &c.reclaim
	for r.head < len(r.resting) && r.resting[r.head].ready <= r.now {
		x := r.resting[r.head]
		r.head++
		blk, off, _ := c.space.BlockOf(x.unit)
		i := int(off-c.space.BitmapBytes()) / (c.classes.units[x.class] * node.Unit)
		if b := c.own[blk]; b != nil {
			c.slabs[x.class].push(place{b, i})
			continue
		}
		if len(r.out) == 0 {
			r.since = r.now
		}
		r.out = append(r.out, freed{c.space.Bitmap(blk, 0).Add(uint64(i / 64 * 8)), 1 << (i % 64)})
		if len(r.out) == freeBatch {
			c.flush()
		}
	}
	if r.now-r.since > flushAfter*r.rest {
		c.flush()
	}
}

// flush posts the frees that have come together.
func (c *Client) flush() {
	r := &c.reclaim
	if len(r.out) == 0 {
		return
	}
	b := c.ep.Batch()
	var set [freeBatch]uint64
	for i, f := range r.out {
		b.FetchAdd(f.word, f.bit)
		set[i] = f.bit
	}
	c.fly(b, len(r.out), &set)
	r.out = r.out[:0]
}

// fly posts a batch in the background. Its first n ops are frees of the given bits.
func (c *Client) fly(b *rdma.Batch, n int, set *[freeBatch]uint64) {
	r := &c.reclaim
	if len(r.flying) == maxFlying {
		c.land(true)
	}
	if err := c.ep.Post(b); err != nil {
		b.Release()
		return // the endpoint is closed or fenced off: what it freed is for recovery
	}
	f := flight{batch: b, n: n}
	if set != nil {
		f.bits = *set
	}
	r.flying = append(r.flying, f)
}

// land looks at the batches in flight, or waits for the oldest.
func (c *Client) land(wait bool) {
	r := &c.reclaim
	for len(r.flying) > 0 {
		f := &r.flying[0]
		if wait {
			wait = false
			if err := c.ep.Wait(f.batch, rdma.All, c.opt.Timeout); err != nil {
				c.fault(err)
			}
		} else if !f.batch.Finished() {
			return
		}
		for i := range f.n {
			if op := f.batch.Op(i); op.Err == nil && op.Result&f.bits[i] != 0 {
				c.fault(fmt.Errorf("free an object at bitmap %s: bit %#x was set: %w", op.Addr, f.bits[i], client.ErrDamaged))
			}
		}
		f.batch.Release()
		r.flying = append(r.flying[:0], r.flying[1:]...)
	}
}

// fault remembers the first thing that went wrong in the background; the next operation returns it.
func (c *Client) fault(err error) {
	if c.damage == nil {
		c.damage = err
	}
}

// drain ends all background work: it waits until everything has rested and landed.
func (c *Client) drain() {
	r := &c.reclaim
	if n := len(r.resting); n > r.head {
		if d := r.resting[n-1].ready - c.ep.Now(); d > 0 {
			c.ep.Sleep(d)
		}
	}
	r.now = c.ep.Now()
	c.mature()
	c.flush()
	for len(r.flying) > 0 && c.damage == nil {
		c.land(true)
	}
	c.endScan()
}

// scan reads bitmaps in the background: first they are read, then what was seen is subtracted.
type scan struct {
	phase  scanPhase
	class  int
	batch  *rdma.Batch
	n      int
	blocks [scanBlocks]*block
	found  []place
}

type scanPhase uint8

const (
	noScan scanPhase = iota
	reading
	clearing
)

func (c *Client) beginScan(class int) {
	s, sc := &c.slabs[class], &c.reclaim.scan
	sc.class, sc.n, sc.found = class, 0, sc.found[:0]
	for range min(scanBlocks, len(s.blocks)) {
		s.cursor = (s.cursor + 1) % len(s.blocks)
		sc.blocks[sc.n] = s.blocks[s.cursor]
		sc.n++
	}
	b := c.ep.Batch()
	c.readBitmaps(b, sc.blocks[:sc.n])
	if err := c.ep.Post(b); err != nil {
		b.Release()
		return
	}
	sc.batch, sc.phase = b, reading
}

// tendScan moves the scan on if its batch is complete.
func (c *Client) tendScan() {
	sc := &c.reclaim.scan
	if sc.phase == noScan || !sc.batch.Finished() {
		return
	}
	if err := sc.batch.Err(); err != nil {
		c.fault(err)
		sc.batch.Release()
		sc.phase = noScan
		return
	}
	if sc.phase == clearing {
		sc.batch.Release()
		c.take(sc.class, sc.found)
		sc.phase = noScan
		if s := &c.slabs[sc.class]; len(sc.found) >= minGap/2 {
			s.gap = minGap
		} else {
			s.gap = min(max(minGap, 2*s.gap), maxGap)
		}
		return
	}
	next := c.ep.Batch()
	sc.found = c.collect(next, sc.batch, sc.blocks[:sc.n], sc.found)
	sc.batch.Release()
	sc.batch, sc.phase = next, clearing
	if err := c.ep.Post(next); err != nil {
		c.fault(err)
		next.Release()
		sc.phase = noScan
	}
}

// endScan waits for the scan in flight: READ, then FAA.
func (c *Client) endScan() {
	for sc := &c.reclaim.scan; sc.phase != noScan; c.tendScan() {
		if err := c.ep.Wait(sc.batch, rdma.All, c.opt.Timeout); err != nil {
			c.fault(err)
			return
		}
	}
}

func (c *Client) readBitmaps(b *rdma.Batch, blocks []*block) {
	for _, blk := range blocks {
		b.Read(c.space.Bitmap(blk.Block, 0), (c.classes.objects[blk.class]+63)/64*8)
	}
}

// collect lists the objects whose bits are set and adds the FAAs that subtract them.
func (c *Client) collect(next, read *rdma.Batch, blocks []*block, found []place) []place {
	for i, blk := range blocks {
		for w, p := 0, read.Op(i).Buf; w*8 < len(p); w++ {
			set := le.Uint64(p[w*8:])
			if set == 0 {
				continue
			}
			next.FetchAdd(c.space.Bitmap(blk.Block, 0).Add(uint64(w*8)), -set)
			for ; set != 0; set &= set - 1 {
				if j := w*64 + bits.TrailingZeros64(set); j < len(blk.incarnations) {
					found = append(found, place{blk, j})
				} else {
					c.fault(fmt.Errorf("read free bitmap of block %v: object %d does not exist: %w", blk.Block, j, client.ErrDamaged))
				}
			}
		}
	}
	return found
}

// take makes reclaimed objects free.
func (c *Client) take(class int, found []place) {
	for _, p := range found {
		c.slabs[class].push(p)
	}
	c.stats.Reclaimed += uint64(len(found))
}

// reclaimAll reads all bitmaps of a class now.
func (c *Client) reclaimAll(class int) error {
	c.endScan()
	c.reclaim.now = c.ep.Now()
	c.mature()
	s := &c.slabs[class]
	for from := 0; from < len(s.blocks) && c.damage == nil; from += syncBlocks {
		if err := c.reclaimNow(class, s.blocks[from:min(from+syncBlocks, len(s.blocks))]); err != nil {
			return fmt.Errorf("reclaim freed objects: %w", err)
		}
	}
	return c.damage
}

func (c *Client) reclaimNow(class int, blocks []*block) error {
	read, next := c.ep.Batch(), c.ep.Batch()
	defer read.Release()
	defer next.Release()
	c.readBitmaps(read, blocks)
	if err := c.do(read); err != nil {
		return err
	}
	found := c.collect(next, read, blocks, nil)
	if len(found) == 0 {
		return nil
	}
	if err := c.do(next); err != nil {
		return err
	}
	c.take(class, found)
	return nil
}

// restingOwn counts the resting objects that will be this client's own again.
func (r *reclaim) restingOwn(c *Client, class int) int {
	n := 0
	for _, x := range r.resting[r.head:] {
		if blk, _, _ := c.space.BlockOf(x.unit); x.class == class && c.own[blk] != nil {
			n++
		}
	}
	return n
}

// awaitRest sleeps until the class has more free objects than the reserve, if enough rest.
func (c *Client) awaitRest(class, reserve int) bool {
	r := &c.reclaim
	for c.slabs[class].idle() <= reserve && r.restingOwn(c, class) > 0 {
		if d := r.resting[r.head].ready - c.ep.Now(); d > 0 {
			c.ep.Sleep(d)
		}
		r.now = c.ep.Now()
		c.mature()
	}
	return c.slabs[class].idle() > reserve
}

// awaitOthers waits until other clients, if any have blocks of the class, have freed objects of this client's blocks: their
// frees rest, and come in batches. It gives up after a part of an operation's time.
func (c *Client) awaitOthers(class, reserve int) (bool, error) {
	others, err := c.entries(func(e node.Entry) bool {
		return e.Class() == class && e.Owner() != 0 && e.Owner() != node.Left && e.Owner() != c.id
	})
	if err != nil || len(others) == 0 {
		return false, err
	}
	start := c.ep.Now()
	for attempt := 0; c.ep.Now()-start < c.opt.Timeout/4; attempt++ {
		c.pause(attempt)
		if err := c.reclaimAll(class); err != nil {
			return false, err
		}
		if attempt%8 == 7 {
			if ok, err := c.adopt(class, 1+reserve); ok || err != nil {
				return ok, err
			}
		}
		if c.slabs[class].idle() > reserve {
			return true, nil
		}
	}
	return false, nil
}
