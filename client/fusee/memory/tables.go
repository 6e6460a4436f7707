package memory

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Tables reads and changes what the nodes know of the memory: the block allocation tables, the
// bitmaps of hints and the heads of objects. It keeps nothing itself.
//
// What a table's entry says about a block (node.Entry): its owner, its class, and a generation,
// which Next raises. So a CAS that expects an entry finds whether the block had another owner
// meanwhile, even if the same client owns it again. An entry of 0 is a free block: then the node
// need not have backed it with memory.
//
// A table has as many replicas as its region. The primary's entry decides which client owns a
// block. Replicas are changed in two orders:
//   - An allocation and a take-over change the primary first: the CAS decides between clients. The
//     backups follow (Record, spread).
//   - A departure, and a block that becomes vacant, change the primary last (PassOn): until then
//     the owner may begin again.
//
// A crash between two replicas leaves entries that differ. Mend or the client's recovery gives the
// backups the primary's entry, or undoes an allocation (Complete).
type Tables struct {
	s *session.Session
}

// NewTables returns the tables of a pool as the session's view places them.
func NewTables(s *session.Session) *Tables { return &Tables{s} }

// UnitOf returns where an object begins.
func (t *Tables) UnitOf(p Place) uint64 {
	return t.s.Space.Object(p.Block.Block, p.Index, t.s.Classes.Units[p.Block.Class])
}

// Record calls a backup's node to record an allocation, and returns the entry that was there. The
// node backs the block with memory first. Where the entry is not zero, it stays as it is.
func (t *Tables) Record(step rdma.Step, blk node.Block, replica int, e node.Entry) (node.Entry, error) {
	at := t.s.Space.Entry(blk, replica)
	q := rdma.Request{Step: step, Proc: node.ProcRecord, Arg: [6]uint64{
		at.Offset(), 0, uint64(e), t.s.Space.Bitmap(blk, replica).Offset(), t.s.BlockBytes}}
	err := t.s.Call(at.Node(), &q, t.s.OpTimeout)
	return node.Entry(q.Ret[0]), err
}

// Complete records an allocation on a backup: a new one, or one that was cut off before the
// backup's node backed the block with memory. Where the node has none the allocation is undone:
// every replica's entry is 0 then, and kept is false. Nothing in the block was used, since a client
// uses it when all backups have recorded it. A block of which a node hands out objects stays as it
// is: clients record it before they use one.
//
// The primary is changed last, so a crash leaves an allocation that the next call ends or undoes.
// The caller owns the block, or recovers its owner, or mends the pool.
func (t *Tables) Complete(step rdma.Step, blk node.Block, replica int, e node.Entry) (kept bool, err error) {
	found, err := t.Record(step, blk, replica, e)
	if err == nil && found != 0 && found != e {
		err = disagree(replica, found, e)
	}
	if !errors.Is(err, rdma.ErrFull) {
		return true, err
	}
	if e.Owner() == node.OfNode {
		return true, nil
	}
	for r := t.s.Space.Copies(blk.Region) - 1; r >= 0; r-- {
		found, err := t.s.Swap(step, t.s.Space.Entry(blk, r), uint64(e), 0)
		if err == nil && node.Entry(found) != e && found != 0 {
			err = disagree(r, node.Entry(found), e)
		}
		if err != nil {
			return true, fmt.Errorf("undo the allocation of block %v: %w", blk, err)
		}
	}
	return false, nil
}

// departed lists up to limit blocks that were left, have objects, and fit. It counts the bits in
// their bitmaps, in one trip: about as many objects are free. Hints of frees that are in flight are
// missing, and hints that carried are wrong.
func (t *Tables) departed(limit int, fits func(node.Entry) bool) ([]*Block, error) {
	left, err := t.entries(limit, func(e node.Entry) bool { return e.Owner() == node.Left && fits(e) })
	if err != nil {
		return nil, err
	}
	b := t.s.Batch()
	defer b.Release()
	t.readBitmaps(b, left)
	if err := t.s.Do(session.StepReadBits, b); err != nil {
		return nil, fmt.Errorf("read free bitmaps: %w", err)
	}
	for i, blk := range left {
		for p := b.Op(i).Buf; len(p) > 0; p = p[8:] {
			blk.hinted += bits.OnesCount64(layout.LE.Uint64(p))
		}
	}
	return left, nil
}

// others reports whether another client that has not left has a block that fits.
func (t *Tables) others(fits func(node.Entry) bool) (bool, error) {
	list, err := t.entries(1, func(e node.Entry) bool {
		return e.Owner() != 0 && e.Owner() != node.Left && e.Owner() != t.s.ID && fits(e)
	})
	return len(list) > 0, err
}

// entries lists up to limit blocks with entries that fit, beginning anywhere.
func (t *Tables) entries(limit int, fits func(node.Entry) bool) ([]*Block, error) {
	return t.ListEntries(t.anywhere(), limit, fits)
}

// anywhere returns a random block's number, for a list to begin there: so clients do not all choose
// the same ones.
func (t *Tables) anywhere() int {
	return t.s.Rand().IntN(max(1, len(t.s.LiveRegions)*t.s.Space.Blocks()))
}

// ListEntries lists up to limit blocks that have objects and entries that fit, beginning with
// that of number start, counted over the live regions. Unclean and vacant blocks are left out. It
// does so by their classes, which are above those of objects.
func (t *Tables) ListEntries(start, limit int, fits func(node.Entry) bool) ([]*Block, error) {
	return t.ListAll(start, limit, func(e node.Entry) bool { return e.Class() < len(t.s.Classes.Units) && fits(e) })
}

// ListAll is ListEntries for entries of any class. It reads the primaries' tables, a few a trip.
// The entries may have changed when it returns: a CAS finds that.
//
// The blocks that it returns have no objects: they are what was read, for the caller to choose from
// and to take over.
func (t *Tables) ListAll(start, limit int, fits func(node.Entry) bool) ([]*Block, error) {
	regions, blocks := len(t.s.LiveRegions), t.s.Space.Blocks()
	var list []*Block
	for from := 0; from < regions && len(list) < limit; from += TablesPerTrip {
		b := t.s.Batch()
		n := min(TablesPerTrip, regions-from)
		region := func(k int) int { return t.s.LiveRegions[(start/blocks+from+k)%regions] }
		for k := range n {
			b.Read(t.s.Space.Table(region(k), 0), blocks*8)
		}
		if err := t.s.Do(session.StepReadTables, b); err != nil {
			b.Release()
			return nil, fmt.Errorf("read block allocation tables: %w", err)
		}
		for k := range n {
			for j := 0; j < blocks && len(list) < limit; j++ {
				i := (start + j) % blocks
				if e := node.Entry(layout.LE.Uint64(b.Op(k).Buf[8*i:])); fits(e) {
					blk := node.Block{Region: region(k), Index: i}
					list = append(list, &Block{Block: blk, Class: e.Class(), Entry: e})
				}
			}
		}
		b.Release()
	}
	return list, nil
}

// spread gives the backups' entries of a block the primary's, which names this client: no other
// client changes them. Where it undoes an allocation instead (Complete), it sets blk.Entry to 0.
//
// A backup may hold an entry of an earlier generation of any owner, since earlier changes may have
// been cut off, too. So the CAS expects what was read there and not a certain entry.
func (t *Tables) spread(blk *Block) error {
	n := t.s.Space.Copies(blk.Region)
	if n == 1 {
		return nil
	}
	b := t.s.Batch()
	defer b.Release()
	for r := 1; r < n; r++ {
		b.Read(t.s.Space.Entry(blk.Block, r), 8)
	}
	if err := t.s.Do(session.StepTakeOver, b); err != nil {
		return err
	}
	for r := 1; r < n; r++ {
		switch found := node.Entry(layout.LE.Uint64(b.Op(r - 1).Buf)); found {
		case blk.Entry:
		case 0: // the allocation was cut off before the backup's node backed the block with memory
			kept, err := t.Complete(session.StepTakeOver, blk.Block, r, blk.Entry)
			if err != nil {
				return err
			}
			if !kept {
				blk.Entry = 0
				return nil
			}
		default:
			was, err := t.s.Swap(session.StepTakeOver, t.s.Space.Entry(blk.Block, r), uint64(found), uint64(blk.Entry))
			if err == nil && node.Entry(was) != found {
				err = disagree(r, node.Entry(was), found)
			}
			if err != nil {
				return fmt.Errorf("change the owner of block %v: %w", blk.Block, err)
			}
		}
	}
	return nil
}

// clearHints empties a block's bitmap. This client owns the block. It subtracts the bits that it
// has read, so that one that is set meanwhile stays.
func (t *Tables) clearHints(blk *Block) error {
	read, next := t.s.Batch(), t.s.Batch()
	defer read.Release()
	defer next.Release()
	t.readBitmaps(read, []*Block{blk})
	if err := t.s.Do(session.StepReadBits, read); err != nil {
		return err
	}
	t.collect(next, read, []*Block{blk}, nil) // no object of the block is looked for
	return t.s.Do(session.StepClearBits, next)
}

// readBitmaps adds the READ of each block's bitmap, on the primary, in their order.
func (t *Tables) readBitmaps(b *rdma.Batch, blocks []*Block) {
	for _, blk := range blocks {
		b.Read(t.s.Space.Bitmap(blk.Block, 0), (t.s.Classes.Objects[blk.Class]+63)/64*8)
	}
}

// collect adds the FAAs that subtract the bits that were read, and behind them the READs of the
// marks of the objects that it lists. Bits that belong to no object come from carries, and are
// subtracted, too.
//
// The bits were read a trip before. The marks of the frees that set them have landed then, since a
// mark lands before its bit (Reclaim.addFree): so the order of this trip's verbs does not matter. A
// free that lands later sets its bit again, and is found by the next scan.
func (t *Tables) collect(next, read *rdma.Batch, blocks []*Block, found []Place) []Place {
	for i, blk := range blocks {
		for w, p := 0, read.Op(i).Buf; w*8 < len(p); w++ {
			set := layout.LE.Uint64(p[w*8:])
			if set == 0 {
				continue
			}
			// One FAA subtracts exactly the bits of the word that were read.
			next.FetchAdd(t.s.Space.Bitmap(blk.Block, 0).Add(uint64(w*8)), -set)
			for ; set != 0; set &= set - 1 {
				// An object that is in the free list already was freed twice.
				if j := w*64 + bits.TrailingZeros64(set); j < len(blk.Incarnations) && !blk.Idle(j) {
					found = append(found, Place{blk, j})
				}
			}
		}
	}
	t.readMarks(next, found)
	return found
}

// readMarks adds the READs of objects' marks, on the primary.
func (t *Tables) readMarks(b *rdma.Batch, places []Place) {
	for _, p := range places {
		b.Read(t.s.Space.UnitAt(t.UnitOf(p), 0).Add(layout.MarkAt), 8)
	}
}

// wipe makes a block as if it had never been used, on all replicas, but for its floor. The caller
// has cleared its bitmap. A crash leaves objects that are free by their marks or never used, in
// part.
//
// The order of the two parts: when a crash cuts wiping off, the block is still its owner's.
// Recovery passes it on, and an adopter finds the floor in the first object's head, which is not
// lower than any incarnation that is still there.
func (t *Tables) wipe(blk node.Block, floor uint32) error {
	// The first object's head gets the floor before anything is wiped: no crash loses it.
	b := t.s.Batch()
	p := b.Alloc(layout.KeyAt)
	clear(p)
	layout.LE.PutUint64(p[layout.MarkAt:], uint64(floor))
	layout.LE.PutUint32(p[layout.IncarnationAt:], floor)
	skip := t.s.Space.BitmapBytes()
	for r := range t.s.Space.Copies(blk.Region) {
		b.Write(t.s.Space.Bitmap(blk, r).Add(skip), p)
	}
	err := t.s.Do(session.StepWipe, b)
	b.Release()
	zero := make([]byte, min(wipeBytes, t.s.BlockBytes-skip-layout.KeyAt))
	// Behind the first head all is zero then: objects of any class that were never used.
	for off := skip + layout.KeyAt; err == nil && off < t.s.BlockBytes; off += wipeBytes {
		b := t.s.Batch()
		for r := range t.s.Space.Copies(blk.Region) {
			b.Write(t.s.Space.Bitmap(blk, r).Add(off), zero[:min(wipeBytes, t.s.BlockBytes-off)])
		}
		err = t.s.Do(session.StepWipe, b)
		b.Release()
	}
	if err != nil {
		return fmt.Errorf("wipe block %v: %w", blk, err)
	}
	return nil
}

// AddHint adds the FAA of an object's bit in its block's bitmap. An FAA on a set bit carries into
// its neighbor: that makes hints wrong, and no more, since marks decide.
func (t *Tables) AddHint(b *rdma.Batch, unit uint64, class int) {
	blk, _, _ := t.s.Space.BlockOf(unit)
	i := t.s.IndexOf(unit, class)
	b.FetchAdd(t.hintWord(blk, i), 1<<(i%64))
}

// hintWord returns the address of the bitmap word that has an object's bit, on the primary.
func (t *Tables) hintWord(blk node.Block, i int) rdma.Addr {
	return t.s.Space.Bitmap(blk, 0).Add(uint64(i / 64 * 8))
}

// disagree returns the error of a replica that has another entry than the expected one.
func disagree(replica int, found, expected node.Entry) error {
	return fmt.Errorf("replica %d has %v, not %v: block allocation tables disagree: %w",
		replica, found, expected, client.ErrDamaged)
}

const (
	TablesPerTrip = 64 // block allocation tables read in one trip
	candidates    = 64 // departed blocks whose bitmaps an adopter compares
	// manyCandidates are compared where the pool has no other room.
	manyCandidates = 1024
)

// PassOn changes the entries of blocks to node.Left, the backups' before the primaries': a client
// that finds the primary's changed finds all. Their owner does it, or its recovery. It may be
// repeated after a crash in between.
func (t *Tables) PassOn(blocks []*Block) error {
	// Next raises the generation, so that no late CAS of this client takes the entry for its own.
	var backups, primaries []passing
	for _, blk := range blocks {
		for r := range t.s.Space.Copies(blk.Region) {
			p := passing{blk, r, blk.Entry, blk.Entry.Next(node.Left, blk.Class)}
			if r == 0 {
				primaries = append(primaries, p)
			} else {
				backups = append(backups, p)
			}
		}
	}
	// The backups in one trip, the primaries in the next.
	if err := t.pass(backups); err != nil {
		return err
	}
	return t.pass(primaries)
}

// passing is an entry on one replica on its way to node.Left.
type passing struct {
	blk     *Block
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
func (t *Tables) pass(list []passing) error {
	for round := 0; len(list) > 0; round++ {
		b := t.s.Batch()
		for _, p := range list {
			b.CompareSwap(t.s.Space.Entry(p.blk.Block, p.replica), uint64(p.from), uint64(p.left))
		}
		err := t.s.Do(session.StepPassOn, b)
		again := list[:0]
		for i := 0; err == nil && i < b.Len(); i++ {
			p, found := list[i], node.Entry(b.Op(i).Result)
			switch {
			// It is done, by this client or by another recovery.
			case found == p.from, found == p.left, found.Generation() > p.left.Generation():
			case round == passRounds || p.replica == 0 || found.Generation() == p.left.Generation():
				err = fmt.Errorf("pass block %v on: %w", p.blk.Block, disagree(p.replica, found, p.from))
			case found == 0: // the allocation was cut off before the node backed the block with memory
				_, err = t.Record(session.StepPassOn, p.blk.Block, p.replica, p.left)
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
