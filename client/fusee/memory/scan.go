package memory

import (
	"fmt"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node/rdma"
)

// scan looks for what others have freed, in the background or for an operation that waits. It reads
// bitmaps. Then it subtracts the bits that it saw and reads, in the same trip, the marks of their
// objects. A bit without its mark is dropped: it is of an object that was freed twice, or was
// carried from a neighbor's bit.
//
// What a crash leaves: bits that are gone while their objects are free by their marks. Whatever
// client owns the block next reads the marks.
//
// At most one scan is in flight, and a trip of it is awaited only where an operation needs what it
// finds (EndScan). Blocks may leave the client's hands meanwhile: taken looks at Own again.
type scan struct {
	phase scanPhase
	batch *rdma.Batch // the trip in flight, unless phase is noScan
	// paces is the slab of which the next background scan depends on what this one finds; nil: an
	// operation asked for the scan.
	paces  *Slab
	blocks []*Block
	// found are the objects of the bits, in the order of the READs of their marks.
	found []Place
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

// beginScan posts the READs of the next bitmaps of a class, in the background. When the view has
// changed it does nothing.
func (a *Allocator) beginScan(class int) {
	s, sc := &a.Holdings.Slabs[class], &a.scan
	sc.paces, sc.blocks = s, sc.blocks[:0]
	// Blocks take turns, scanBlocks at a time.
	for range min(scanBlocks, len(s.Blocks)) {
		s.cursor = (s.cursor + 1) % len(s.Blocks)
		sc.blocks = append(sc.blocks, s.Blocks[s.cursor])
	}
	_ = a.postScan()
}

// postScan posts the READs of the bitmaps of the scan's blocks. The last scan must have ended: a
// client has one at a time.
func (a *Allocator) postScan() error {
	b, sc := a.s.Batch(), &a.scan
	a.Tables.readBitmaps(b, sc.blocks)
	if err := a.s.Post(b.As(session.StepReadBits)); err != nil {
		b.Release()
		return err
	}
	sc.batch, sc.phase, sc.found = b, reading, sc.found[:0]
	return nil
}

// tendScan moves the scan on if its batch is complete. The error is the batch's, or says that the
// next one was not posted.
func (a *Allocator) tendScan() error {
	sc := &a.scan
	if sc.phase == noScan || !sc.batch.Finished() {
		return nil
	}
	b, phase := sc.batch, sc.phase
	defer b.Release()
	sc.phase = noScan
	if phase == clearing { // the bits are subtracted, and the marks are there
		sc.pace(a.taken(b, sc.blocks, sc.found))
	}
	// Where the first trip fails, as a node is down or the view has changed, no bit was subtracted.
	if err := b.Err(); phase == clearing || err != nil {
		return err
	}
	// The bits are known: subtract them and read the marks.
	next := a.s.Batch()
	sc.found = a.Tables.collect(next, b, sc.blocks, sc.found)
	if next.Len() == 0 {
		sc.pace(0)
		next.Release()
		return nil
	}
	if err := a.s.Post(next.As(session.StepClearBits)); err != nil {
		next.Release()
		return err
	}
	// From here on bits may be gone: the scan is completed, or its blocks are read anew.
	sc.batch, sc.phase = next, clearing
	return nil
}

// pace adapts the gap between background scans to what one has found: one that finds much is soon
// followed by another. In a workload in which clients replace their own pairs others free little,
// and a scan costs a READ for each block and finds nothing.
func (sc *scan) pace(found int) {
	switch s := sc.paces; {
	case s == nil:
	case found >= minGap/2:
		s.gap = minGap
	default:
		s.gap = min(max(minGap, 2*s.gap), maxGap)
	}
}

// EndScan waits for the scan in flight. Two scans must not see one bit: both would subtract it.
// When a node does not answer the scan stays in flight, and is ended later.
func (a *Allocator) EndScan() error {
	for a.scan.phase != noScan {
		err := a.s.Wait(a.scan.batch, rdma.All, a.s.OpTimeout)
		if err == nil {
			err = a.tendScan()
		}
		if err != nil {
			return fmt.Errorf("read free bitmaps: %w", err)
		}
	}
	return nil
}

// taken makes free those of the objects of which the marks, the last verbs of the batch, say so.
// It returns how many. This client knows the incarnations of its objects: no other client has
// used them. After an error the blocks are suspect: bits may be gone, and their objects not
// taken.
func (a *Allocator) taken(b *rdma.Batch, blocks []*Block, found []Place) int {
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
		if op.Err == nil && !p.Block.Idle(p.Index) &&
			layout.LE.Uint64(op.Buf) == uint64(p.Block.Incarnations[p.Index]) &&
			a.Holdings.Own(p.Block.Block) == p.Block {
			a.Reclaim.ripen(p)
			n++
		}
	}
	a.s.Stats.Reclaimed += uint64(n)
	return n
}

// ReclaimAll reads all bitmaps of a class now, and waits for frees on which ripe objects wait.
//
// Operations call it when a class has no free object left. It waits for the scan in flight first,
// since that may have subtracted the bits of the very objects that are needed.
func (a *Allocator) ReclaimAll(class int) error {
	if err := a.EndScan(); err != nil {
		return err
	}
	a.s.Clock = a.s.Now()
	a.Reclaim.land(0)
	a.Reclaim.mature()
	s := &a.Holdings.Slabs[class]
	for from := 0; from < len(s.Blocks) && a.s.Damage == nil; from += syncBlocks {
		a.scan.paces = nil
		a.scan.blocks = append(a.scan.blocks[:0], s.Blocks[from:min(from+syncBlocks, len(s.Blocks))]...)
		err := a.postScan()
		if err == nil {
			err = a.EndScan()
		}
		if err != nil {
			return fmt.Errorf("reclaim freed objects: %w", err)
		}
	}
	// Ripe objects wait for frees in flight.
	if a.Reclaim.ripe.Len() > 0 {
		if err := a.Reclaim.landAll(); err != nil {
			return err
		}
	}
	return a.s.Damage
}

// reread takes what is free by its mark and not in hand, in a block of which hints may be lost.
//
// It costs a READ for each object that is not free, where a scan costs one for each bit: so only
// blocks of which hints may be lost are read so.
func (a *Allocator) reread(blk *Block) error {
	var places []Place
	for from := 0; from < len(blk.Incarnations); from += layout.HeadsPerTrip {
		places = places[:0]
		for i := from; i < min(from+layout.HeadsPerTrip, len(blk.Incarnations)); i++ {
			// Objects in the free list are known to be free.
			if !blk.Idle(i) {
				places = append(places, Place{blk, i})
			}
		}
		b := a.s.Batch()
		a.Tables.readMarks(b, places)
		err := a.s.Do(session.StepReadHeads, b)
		if err == nil {
			a.taken(b, nil, places)
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
