package fusee

import (
	"fmt"
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
)

// scan looks in the background for what others have freed. It reads bitmaps. Then it subtracts
// the bits that it saw and reads, in the same trip, the marks of their objects. A bit without its
// mark is dropped: it is of an object that was freed twice, or was carried from a neighbor's bit.
//
// What a crash leaves: bits that are gone while their objects are free by their marks. Whatever
// client owns the block next reads the marks.
type scan struct {
	phase scanPhase
	class int
	batch *rdma.Batch // the trip in flight, unless phase is noScan
	// The first n blocks are scanned.
	n      int
	blocks [scanBlocks]*block
	// found are the objects of the bits, in the order of the READs of their marks.
	found []place
}

// scanPhase is which trip of a scan is in flight.
type scanPhase uint8

const (
	noScan   scanPhase = iota
	reading            // the bitmaps
	clearing           // the bits, and reading the marks
)

const (
	scanBlocks = 16 // bitmaps a background scan reads
	syncBlocks = 64 // bitmaps a trip reads when an operation has to wait for them
)

// beginScan posts the READs of the next bitmaps of a class. When the view has changed it does
// nothing. The last scan must have ended: a client has one at a time.
func (c *Client) beginScan(class int) {
	s, sc := &c.slabs[class], &c.reclaim.scan
	sc.class, sc.n, sc.found = class, 0, sc.found[:0]
	// Blocks take turns, scanBlocks at a time.
	for range min(scanBlocks, len(s.blocks)) {
		s.cursor = (s.cursor + 1) % len(s.blocks)
		sc.blocks[sc.n] = s.blocks[s.cursor]
		sc.n++
	}
	b := c.ep.Batch()
	c.readBitmaps(b, sc.blocks[:sc.n])
	if err := c.ep.Post(b.As(stepReadBits)); err != nil {
		b.Release()
		return
	}
	sc.batch, sc.phase = b, reading
}

// tendScan moves the scan on if its batch is complete. How many objects a scan has found decides
// when the next one begins.
func (c *Client) tendScan() {
	sc := &c.reclaim.scan
	if sc.phase == noScan || !sc.batch.Finished() {
		return
	}
	// The bits are subtracted, and the marks are there.
	if sc.phase == clearing {
		sc.phase = noScan
		found := c.take(sc.batch, sc.blocks[:sc.n], sc.found)
		sc.batch.Release()
		// A scan that finds much is soon followed by another one.
		if s := &c.slabs[sc.class]; found >= minGap/2 {
			s.gap = minGap
		} else {
			s.gap = min(max(minGap, 2*s.gap), maxGap)
		}
		return
	}
	if sc.batch.Err() != nil { // a node is down, or the view has changed: no bit was subtracted yet
		sc.batch.Release()
		sc.phase = noScan
		return
	}
	// The bits are known: subtract them and read the marks.
	next := c.ep.Batch()
	sc.found = c.collect(next, sc.batch, sc.blocks[:sc.n], sc.found)
	sc.batch.Release()
	// From here on bits may be gone: the scan is completed, or its blocks are read anew.
	sc.batch, sc.phase = next, clearing
	if c.ep.Post(next.As(stepClearBits)) != nil {
		next.Release()
		sc.phase = noScan
	}
}

// endScan waits for the scan in flight. Two scans must not see one bit: both would subtract it.
// When a node does not answer the scan stays in flight, and is ended later.
func (c *Client) endScan() error {
	for sc := &c.reclaim.scan; sc.phase != noScan; c.tendScan() {
		if err := c.ep.Wait(sc.batch, rdma.All, c.opt.Timeout); err != nil {
			return fmt.Errorf("read free bitmaps: %w", err)
		}
	}
	return nil
}

// readBitmaps adds the READ of each block's bitmap, on the primary, in their order.
func (c *Client) readBitmaps(b *rdma.Batch, blocks []*block) {
	for _, blk := range blocks {
		b.Read(c.space.Bitmap(blk.Block, 0), (c.classes.objects[blk.class]+63)/64*8)
	}
}

// collect adds the FAAs that subtract the bits that were read, and behind them the READs of the
// marks of the objects that it lists. Bits that belong to no object come from carries, and are
// subtracted, too.
func (c *Client) collect(next, read *rdma.Batch, blocks []*block, found []place) []place {
	for i, blk := range blocks {
		for w, p := 0, read.Op(i).Buf; w*8 < len(p); w++ {
			set := le.Uint64(p[w*8:])
			if set == 0 {
				continue
			}
			// One FAA subtracts exactly the bits of the word that were read.
			next.FetchAdd(c.space.Bitmap(blk.Block, 0).Add(uint64(w*8)), -set)
			for ; set != 0; set &= set - 1 {
				// An object that is in the free list already was freed twice.
				if j := w*64 + bits.TrailingZeros64(set); j < len(blk.incarnations) && !blk.idle(j) {
					found = append(found, place{blk, j})
				}
			}
		}
	}
	c.readMarks(next, found)
	return found
}

// readMarks adds the READs of objects' marks, on the primary.
func (c *Client) readMarks(b *rdma.Batch, places []place) {
	for _, p := range places {
		b.Read(c.space.UnitAt(c.unitOf(p), 0).Add(markAt), 8)
	}
}

// take makes free those of the objects of which the marks, the last verbs of the batch, say so.
// It returns how many. This client knows the incarnations of its objects: no other client has
// used them. After an error the blocks are suspect: bits may be gone, and their objects not
// taken.
func (c *Client) take(b *rdma.Batch, blocks []*block, found []place) int {
	n, first := 0, b.Len()-len(found)
	if b.Err() != nil {
		for _, blk := range blocks {
			blk.suspect = true
		}
	}
	for i, p := range found {
		// It is free only if the mark has the incarnation of its last use, and if it was not
		// taken meanwhile.
		op := b.Op(first + i)
		if op.Err == nil && !p.block.idle(p.index) &&
			le.Uint64(op.Buf) == uint64(p.block.incarnations[p.index]) && c.own[p.block.Block] == p.block {
			c.ripen(p)
			n++
		}
	}
	c.stats.Reclaimed += uint64(n)
	return n
}

// reclaimAll reads all bitmaps of a class now, and waits for frees on which ripe objects wait.
func (c *Client) reclaimAll(class int) error {
	if err := c.endScan(); err != nil {
		return err
	}
	c.reclaim.now = c.ep.Now()
	c.mature()
	s := &c.slabs[class]
	for from := 0; from < len(s.blocks) && c.damage == nil; from += syncBlocks {
		if err := c.reclaimNow(s.blocks[from:min(from+syncBlocks, len(s.blocks))]); err != nil {
			return fmt.Errorf("reclaim freed objects: %w", err)
		}
	}
	// Ripe objects wait for frees in flight.
	if r := &c.reclaim; len(r.ripe) > r.ripeAt {
		if err := c.landAll(); err != nil {
			return err
		}
	}
	return c.damage
}

// reclaimNow is a scan of some blocks for which the operation waits. No other scan is in flight.
// After an error that comes behind the READs bits may be gone: the blocks are suspect then.
func (c *Client) reclaimNow(blocks []*block) error {
	read, next := c.ep.Batch(), c.ep.Batch()
	defer read.Release()
	defer next.Release()
	c.readBitmaps(read, blocks)
	if err := c.do(stepReadBits, read); err != nil {
		return err
	}
	found := c.collect(next, read, blocks, nil)
	if next.Len() == 0 {
		return nil
	}
	if err := c.ep.Post(next.As(stepClearBits)); err != nil {
		return err
	}
	if err := c.ep.Wait(next, rdma.All, c.opt.Timeout); err != nil {
		// Bits may be gone, and their objects not taken: marks have to be read.
		for _, blk := range blocks {
			blk.suspect = true
		}
		return err
	}
	c.take(next, blocks, found)
	return next.Err()
}

// reread takes what is free by its mark and not in hand, in a block of which hints may be lost.
func (c *Client) reread(blk *block) error {
	var places []place
	for from := 0; from < len(blk.incarnations); from += headsPerTrip {
		places = places[:0]
		for i := from; i < min(from+headsPerTrip, len(blk.incarnations)); i++ {
			// Objects in the free list are known to be free.
			if !blk.idle(i) {
				places = append(places, place{blk, i})
			}
		}
		b := c.ep.Batch()
		c.readMarks(b, places)
		err := c.do(stepReadHeads, b)
		if err == nil {
			c.take(b, nil, places)
		}
		b.Release()
		if err != nil {
			return fmt.Errorf("read the marks of block %v: %w", blk.Block, err)
		}
	}
	// All marks were read: hints that were lost do not matter any more.
	blk.suspect = false
	return nil
}
