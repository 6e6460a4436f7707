package memory

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// classFor makes sure that a class has a free object for the operation, and returns the class. It
// is that of the pair's size, or a larger one, of which the pair borrows an object where the pool
// has no block left. A client keeps one object for DELETEs, so that a client that has filled a pool
// can empty it.
//
// An operation waits for room once (await), and before that for empty blocks of other classes, if
// there are many (reshape). Its deadline is moved by these waits: within its own time no block
// could become vacant, since a client may remember a word for as long as an operation takes.
func (a *Allocator) classFor(class int, deletes bool) (int, error) {
	reserve := 1
	if deletes {
		reserve = 0
	}
	if a.Holdings.Slabs[class].Idle() > reserve { // the common case
		return class, nil
	}
	// What it adopts below it needs: so this is not in the loop.
	if a.full && !deletes {
		began := a.s.Now()
		err := a.lend(class)
		a.s.Exempt(began, err)
		if err != nil {
			return class, err
		}
	}
	for waited := false; ; {
		from, ok := a.Holdings.borrow(class, reserve)
		// In a tight pool a pair borrows from a slightly larger class at once, and leaves blocks
		// to others. What a DELETE borrows comes back soon.
		if ok && (from == class || a.tight &&
			(deletes || a.s.Classes.Units[from] <= mostBorrowed*a.s.Classes.Units[class])) {
			if from != class && len(a.Holdings.Slabs[class].Blocks) > 0 && a.scan.phase == noScan {
				a.beginScan(class) // others may have freed some of its own
			}
			return from, nil
		}
		// Otherwise the class gets objects of its own, or the client a block of a larger class.
		err := a.refill(class, reserve)
		a.s.Clock = a.s.Now()
		if err != nil && !errors.Is(err, rdma.ErrFull) {
			return class, err
		}
		if from, ok := a.Holdings.borrow(class, reserve); ok {
			return from, nil
		}
		// Each refill without an error adds an object at least: this one is the reserve, and the
		// next one suffices.
		if err == nil {
			continue
		}
		// It waits for room once: the second time the pool is full.
		if waited {
			return class, err
		}
		waited = true
		began := a.s.Now()
		ok, e := a.await(class, reserve)
		a.s.Exempt(began, e) // the wait does not count as the operation's time
		// Meanwhile a larger object may have come back, of which await knows nothing.
		if from, idle := a.Holdings.borrow(class, reserve); idle && e == nil {
			return from, nil
		}
		if e != nil || !ok {
			return class, cmp.Or(e, err)
		}
	}
}

// mostBorrowed is how many times as large an object a pair borrows before it has a block of its
// own, in a pool that is mostly handed out.
const mostBorrowed = 2

// refill adds free objects to a class, which may be the reserve only. It tries, from cheap to dear:
// what others freed, what rests, a departed client's block with many free objects, a resting
// block of its own, a new block, a vacant block, an empty block of another class, and then larger
// objects: of a resting block, or a departed client's block with any. The error wraps
// client.ErrFull when there is none.
func (a *Allocator) refill(class, reserve int) error {
	if err := a.ReclaimAll(class); err != nil {
		return err
	}
	// What rests comes back sooner than a block could, if it is enough.
	if a.Holdings.has(class, reserve) || a.Reclaim.restingOwn(class) >= a.enough(class) && a.awaitRest(class, reserve) {
		return nil
	}
	// A block of which an eighth is free is worth its take-over; where there is no other, any is.
	worth := max(2, a.s.Classes.Objects[class]/8)
	if a.full {
		worth = 1
	}
	if ok, err := a.Adopt(class, worth, false); ok || err != nil {
		return err
	}
	if a.takeBack(class, false) {
		return nil
	}
	err := a.NewBlock(class)
	if !errors.Is(err, rdma.ErrFull) {
		return err
	}
	// No node has a free block: take one that this client emptied, or a vacant one, or a departed
	// client's with a few free objects.
	full := err
	if ok, err := a.carveOwn(class); ok || err != nil {
		return err
	}
	if ok, err := a.carveVacant(class); ok || err != nil {
		return err
	}
	if !a.full {
		if err := a.lookAround(); err != nil {
			return err
		}
		a.full = true
		if ok, err := a.Adopt(class, 1, false); ok || err != nil {
			return err
		}
	}
	if ok, err := a.reshape(class, reserve); ok || err != nil {
		return err
	}
	if a.takeBack(class, true) {
		return nil
	}
	if ok, err := a.Adopt(class, 1, true); ok || err != nil {
		return err
	}
	return fmt.Errorf("find room for an object of %d bytes: %w", a.s.Classes.Units[class]*node.Unit, full)
}

// await waits for room where there is none: for objects that end their quarantine, for those that
// other clients will have freed in a while, for a departed client's larger objects, or for an
// empty block of another class. It returns false when nothing of that comes.
func (a *Allocator) await(class, reserve int) (bool, error) {
	for larger := class; larger < len(a.Holdings.Slabs); larger++ {
		if a.awaitRest(larger, reserve) {
			return true, nil
		}
	}
	// A small part of the operation's time, and none when no other client has blocks of the class,
	// or of a larger one.
	others, err := a.Tables.others(func(e node.Entry) bool { return e.Class() >= class })
	if err != nil {
		return false, err
	}
	if others {
		r := a.s.RetryUntil(kit.WhileBusy, a.s.Now()+a.s.OpTimeout/othersShare)
		if ok, err := a.watch(class, reserve, r, true); ok || err != nil {
			return ok, err
		}
	}
	return a.awaitVacant(class, reserve)
}

// enough returns how many resting objects make waiting for them better than another block: as
// many as a client uses while they rest, or what fills half a block, whichever is more. In a pool
// that is mostly handed out a client waits for less: its share.
func (a *Allocator) enough(class int) int {
	n := min(restObjects, restBytes/(a.s.Classes.Units[class]*node.Unit))
	if a.tight {
		n = min(n, a.Holdings.share(class))
	}
	return max(a.s.Classes.Objects[class]/2, n)
}

const (
	restObjects = 512     // as many as a client uses in half a millisecond
	restBytes   = 1 << 20 // of large objects fewer
	restShare   = 256     // a client's share is this part of the pool's objects, or of its blocks
)

// NewBlock allocates a block from a memory node (FUSEE 4.4): a call to the primary's node, and
// one to each backup's, so that the allocation survives the primary. It asks the regions,
// beginning with a random one, and returns an error that wraps rdma.ErrFull when none has a
// block. Then it asks none for a timeout, since blocks hardly ever become free again, unless it
// has given one back for which a backup had no memory. A crash in between leaves a block that only
// the primary's table knows as this client's; nothing in it was used.
func (a *Allocator) NewBlock(class int) error {
	if a.s.Now() < a.spent {
		return a.none
	}
	regions := len(a.s.LiveRegions)
	// A random start spreads blocks over the nodes.
	start := a.s.Rand().IntN(max(1, regions))
	last, gaveBack := rdma.ErrFull, false
	for k := range regions {
		g := a.s.LiveRegions[(start+k)%regions]
		blk, err := a.callAlloc(g, class)
		if err == nil {
			a.s.Stats.Blocks++
			a.Holdings.takeUp(makeBlock(blk, class, node.MakeEntry(a.s.ID, class), a.s.Classes.Objects[class]))
			return nil
		}
		if !errors.Is(err, rdma.ErrFull) {
			// It may have been allocated: tidy finds out.
			a.Untidy, a.late = true, a.late || session.InFlight(err)
			return err
		}
		last, gaveBack = err, gaveBack || errors.Is(err, errNoBackup)
	}
	if !gaveBack { // what went back is free
		a.spent, a.none = a.s.Now()+a.s.Timeout, last
	}
	return last
}

// errNoBackup: a region has a free block, for which a backup has no memory now.
var errNoBackup = fmt.Errorf("a backup has no memory for it: %w", rdma.ErrFull)

// callAlloc allocates a block in a region. The primary's node takes a free entry by a CAS, which
// is the moment of the allocation, and says how many were free. The backups record it in order. A
// backup without memory refuses: then the allocation is undone. After any other failure the block
// may be this client's, and Untidy says so: tidy finds it.
func (a *Allocator) callAlloc(region, class int) (node.Block, error) {
	first := node.Block{Region: region}
	table := a.s.Space.Table(region, 0)
	blocks := uint64(a.s.Space.Blocks())
	q := rdma.Request{Step: session.StepAllocate, Proc: node.ProcAlloc, Arg: [6]uint64{table.Offset(), blocks,
		a.s.Space.Bitmap(first, 0).Offset(), a.s.BlockBytes, uint64(class), a.s.Rand().Uint64N(blocks)}}
	if err := a.s.Call(table.Node(), &q, a.s.OpTimeout); err != nil {
		return node.Block{}, fmt.Errorf("allocate a block: %w", err)
	}
	blk := node.Block{Region: region, Index: int(q.Ret[0])}
	// Fewer than a quarter of the region's blocks were free.
	a.tight, a.full = q.Ret[2]*4 < blocks, false
	mine := node.MakeEntry(a.s.ID, class)
	for r := 1; r < a.s.Space.Copies(region); r++ {
		kept, err := a.Tables.Complete(session.StepAllocate, blk, r, mine)
		if err == nil && !kept { // nothing was recorded there: the block went back
			err = errNoBackup
		}
		if err != nil {
			return blk, fmt.Errorf("allocate block %v: %w", blk, err)
		}
	}
	return blk, nil
}
