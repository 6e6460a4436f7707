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
	flying  []*rdma.Batch // batches of frees in flight
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

const (
	tendEvery  = 64   // searches between two looks at what is left over from writes
	freeBatch  = 16   // frees a batch: as many as a doorbell carries well
	flushAfter = 4    // quarantines that a rested object waits for a batch to fill
	maxFlying  = 4    // batches of frees in flight; the fifth waits for the first
	scanBlocks = 16   // bitmaps a background scan reads
	syncBlocks = 64   // bitmaps a trip reads when an operation has to wait for them
	shedEvery  = 256  // writes after which a client looks whether it holds too much
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

// recycle puts the draft to rest, which no slot points at, or none any more. The paper clears the used bit of its log entry
// first, lest a recovery redo it. There is no need: an unfinished write is one whose word some replica holds.
func (c *Client) recycle() { c.lay(c.draft.unit, c.draft.object.class) }

// abandon gives back the draft of an operation that failed on its way to a slot: a failed batch may still be in flight,
// so its object is not used again.
func (c *Client) abandon(err error) {
	if errors.Is(err, errTired) {
		c.recycle()
		return
	}
	c.limbo = append(c.limbo, stray{object: c.draft.object})
}

// stray is an object of which it is not known whether some replica of a slot still holds its word. With word 0 its
// verbs may still be in flight.
type stray struct {
	object
	slot race.Slot
	word race.Word
}

// strand keeps the draft of a write whose outcome is unknown.
func (c *Client) strand(w *write, err error) {
	s := stray{object: c.draft.object}
	if errors.Is(err, errTired) {
		s.slot, s.word = w.slot, w.new
	}
	c.limbo = append(c.limbo, s)
}

// settle gives back the strays whose rounds have ended without them.
func (c *Client) settle() {
	kept := c.limbo[:0]
	for _, s := range c.limbo {
		if s.word == 0 || c.holdsWord(s) {
			kept = append(kept, s)
		} else {
			c.lay(s.unit, s.class)
		}
	}
	c.limbo = kept
}

// holdsWord tells whether some replica of a stray's slot still holds its word, or may.
func (c *Client) holdsWord(s stray) bool {
	for r := range c.index.Copies(s.slot) {
		if w, err := c.readSlot(s.slot, r); err != nil || w == s.word {
			return true
		}
	}
	return false
}

// tend moves what can be moved without waiting. Every operation that writes calls it once.
func (c *Client) tend(class int) {
	c.land(false)
	c.mature()
	c.tendScan()
	s := &c.slabs[class]
	if s.taken++; s.taken > s.gap && s.idle() < lowWater && c.reclaim.scan.phase == noScan && len(s.blocks) > 0 {
		s.taken = 0
		c.beginScan(class)
	}
}

// tendIdle moves what a client that only reads has left over from its writes. One that does nothing at all holds
// what rests and less than a batch of frees.
func (c *Client) tendIdle() {
	if r := &c.reclaim; len(r.resting) > r.head || len(r.out) > 0 || len(r.flying) > 0 {
		r.now = c.ep.Now()
		c.land(false)
		c.mature()
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
		if len(r.out) >= freeBatch {
			c.flush()
		}
	}
	if r.now-r.since > flushAfter*r.rest {
		c.flush()
	}
}

// flush posts the frees that have come together, in the background.
func (c *Client) flush() {
	r := &c.reclaim
	if len(r.out) == 0 {
		return
	}
	if len(r.flying) == maxFlying {
		if c.land(true); len(r.flying) == maxFlying {
			return // a node is slow: later
		}
	}
	b := c.ep.Batch()
	for _, f := range r.out {
		b.FetchAdd(f.word, f.bit)
	}
	r.out = r.out[:0]
	if err := c.ep.Post(b); err != nil {
		b.Release() // the endpoint is closed or fenced off: what it freed is for recovery
		return
	}
	r.flying = append(r.flying, b)
}

// land looks at the batches in flight, and waits for the oldest if told so. What does not land in time stays in flight.
func (c *Client) land(wait bool) {
	r := &c.reclaim
	for len(r.flying) > 0 {
		b := r.flying[0]
		if wait && !b.Finished() && c.ep.Wait(b, rdma.All, c.opt.Timeout) != nil || !b.Finished() {
			return
		}
		wait = false
		for i := range b.Len() {
			if op := b.Op(i); op.Err == nil && op.Result&op.Value != 0 {
				c.fault(fmt.Errorf("free an object at bitmap %s: bit %#x was set: %w", op.Addr, op.Value, client.ErrDamaged))
			}
		}
		b.Release()
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
func (c *Client) drain() error {
	c.settle()
	r := &c.reclaim
	if n := len(r.resting); n > r.head {
		if d := r.resting[n-1].ready - c.ep.Now(); d > 0 {
			c.ep.Sleep(d)
		}
	}
	r.now = c.ep.Now()
	c.mature()
	c.flush()
	for range len(r.flying) {
		c.land(true)
	}
	if len(r.flying)+len(r.out) > 0 {
		return errTimeout("free objects")
	}
	return c.endScan()
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
	if sc.batch.Err() != nil { // a node is down: what its bitmaps say is for recovery
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
	if c.ep.Post(next) != nil {
		next.Release()
		sc.phase = noScan
	}
}

// endScan waits for the scan in flight: READ, then FAA. Two scans must not see one bit.
func (c *Client) endScan() error {
	for sc := &c.reclaim.scan; sc.phase != noScan; c.tendScan() {
		if err := c.ep.Wait(sc.batch, rdma.All, c.opt.Timeout); err != nil {
			return fmt.Errorf("read free bitmaps: %w", err)
		}
	}
	return nil
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
	if err := c.endScan(); err != nil {
		return err
	}
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
