package recovery

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// sweep is how far a recoverer has come with the blocks that clients left. It does a piece at a
// time, so that nothing else has to wait for long. It is lost with the master: the next one
// begins again.
type sweep struct {
	// from is the position, among all blocks of the pool, at which the next piece begins.
	from int
	// again: crashes may have left something in blocks before it.
	again bool
	// cut: the last piece failed. It may have passed blocks on by CASes that are still in flight.
	cut bool
}

// pieceBytes is how much of blocks, at least one, a piece of a sweep reads.
const pieceBytes = 1 << 20

// Unswept implements cluster.Piecewise: a sweep is not complete, or blocks are unclean.
func (m *Recoverer) Unswept(v rdma.View) (bool, error) {
	m.s.View.Enter(v)
	if m.sweep.from > 0 || m.sweep.again || m.sweep.cut {
		return true, nil
	}
	list, err := m.t.ListAll(0, 1, layout.IsUnclean)
	if err != nil {
		return false, fmt.Errorf("look for unclean blocks: %w", err)
	}
	return len(list) > 0, nil
}

// Sweep cleans blocks of dead clients, if there are any. Otherwise it frees the objects to which
// no slot points in blocks that clients left. A crash may leave such objects: of a client that
// dies between the replacement of a pair and its log, or of one that had its write completed by a
// master. Only the writer of an object ever proposes its word, and the writer is gone. So nothing
// can come to point at the object, and no client has to stop.
//
// Others may adopt the blocks meanwhile, and use the objects again. So blocks count only if they
// are still left, in the same generation, when everything has been read. And a mark names the
// incarnation that was read then, which an adopter's use of the object does not have.
//
// A crash leaves some objects marked, and the others for the next sweep.
func (m *Recoverer) Sweep(v rdma.View) error {
	m.s.View.Enter(v)
	if err := m.s.ReadSize(); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if m.s.NodeCentric && m.sweep.from == 0 { // a client may have died before it recorded a node's block
		ofNode := func(e node.Entry) bool { return e.Owner() == node.OfNode }
		if err := m.mendTablesOf(ofNode, func(node.Block, node.Entry) {}); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	// What is read of entries counts behind such a CAS: a block that was passed on may be adopted,
	// and none of its objects is marked then whatever its use.
	if m.sweep.cut {
		if err := m.s.Fence(); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		m.sweep.again = true // this one begins behind the piece that failed
	}
	m.sweep.cut = true // until all steps are over
	r := m.recovery(0)
	// Unclean blocks come first. A piece bounds what one call reads.
	list, err := m.t.ListAll(0, m.piece(), layout.IsUnclean)
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	// For blocks that were left: read, look up, let readers go, then mark what is still lost.
	steps := []func() error{r.traverse, r.requests, r.rest, r.forgetAdopted, r.markLost, r.hintFree}
	if r.unclean = len(list) > 0; r.unclean {
		m.sweep.again = true // crashes leave something in left blocks, too
		// The rounds of the clients that left these blocks are over, or other writers have won
		// them. So nothing can come to point at an object that no replica of a slot points at. No
		// client adopts an unclean block, so a mark may be written whatever the incarnation on a
		// replica is (markLost). A log counts whichever client wrote it, and though its object is
		// free by now: that may have been replaced before its writer freed what it had replaced
		// itself.
		steps = []func() error{r.traverse, r.requests, r.rest, r.freeOlds, r.markLost, r.passAll}
	} else if list, err = m.nextPiece(); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	// What follows compares with the entries that were read here.
	for _, b := range list {
		r.add(b.Block, b.Entry)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	m.sweep.cut = false
	return nil
}

// piece returns how many blocks are swept at a time.
func (m *Recoverer) piece() int { return int(max(1, pieceBytes/m.s.BlockBytes)) }

// nextPiece lists the next blocks that were left, in the order of their positions. A sweep that
// begins clears again, so that a crash meanwhile causes another sweep.
//
// Blocks that are left at a position after the sweep's are met in this round, those before it in
// the next.
func (m *Recoverer) nextPiece() ([]*memory.Block, error) {
	if m.sweep.from == 0 {
		m.sweep.again = false
	}
	per := m.s.Space.Blocks()
	at := func(b *memory.Block) int { return b.Region*per + b.Index }
	all, err := m.t.ListEntries(0, len(m.s.Space.Place)*per, func(e node.Entry) bool { return e.Owner() == node.Left })
	if err != nil {
		return nil, err
	}
	// Blocks before the piece were swept already.
	list := slices.DeleteFunc(all, func(b *memory.Block) bool { return at(b) < m.sweep.from })
	// When all are listed the next piece begins with the first block.
	if m.sweep.from = 0; len(list) > m.piece() {
		list = list[:m.piece()]
		m.sweep.from = at(list[len(list)-1]) + 1
	}
	return list, nil
}

// hintFree sets the hints of free objects of the blocks. A client chooses a block to adopt by its
// hints, and hints are lost with the node of a block's primary. A hint too many does no harm.
//
// It comes after the marks of the same piece, so that an owner that finds a hint finds the mark.
func (r *recovery) hintFree() error {
	var free []layout.Object
	for i := range r.objects {
		// It is free by its mark on the primary, or was never used.
		if o := &r.objects[i]; o.Incarnation == 0 || o.mark == uint64(o.Incarnation) {
			free = append(free, o.Object)
		}
	}
	for some := range slices.Chunk(free, layout.HeadsPerTrip) {
		if err := r.t.Hint(some); err != nil {
			return err
		}
	}
	return nil
}

// forgetAdopted drops the objects of blocks that are not what they were when the sweep began:
// another client may use them again. Entries are read behind the quarantine, just before the
// marks.
//
// A block that is adopted after this look is safe, too: its adopter's uses have incarnations of
// their own, and markUsed compares them.
func (r *recovery) forgetAdopted() (err error) {
	// The entry has a generation, so a block that was adopted and left again differs.
	r.lost, err = r.where(r.lost, func(o layout.Object, now node.Entry) bool {
		blk, _, _ := r.s.Space.BlockOf(o.Unit)
		return now == r.blocks[blk].Entry
	})
	return err
}

// markLost frees the lost objects: in blocks that are unclean, in which no client uses any, in any
// use, and elsewhere in the use in which each was read.
func (r *recovery) markLost() error { return r.markUsed(r.lost, r.unclean) }

// markUsed frees objects, which no client can come to need, and sets their hints. It frees them in
// the given use: others may free or use the objects at the same time, as a mark of an incarnation
// that is over says nothing. If whatever is set, it frees them in any use, where no other client
// frees them at the same time.
//
// Each replica gets a mark of its own: a torn draft leaves replicas of different incarnations.
// The primary's mark comes last, as a carrier's does. It may be repeated after a crash. Where nodes
// hand out objects, the primary's mark and its hint are one chain: an object that is marked already
// gets no hint, since the node may have handed it out.
func (r *recovery) markUsed(list []layout.Object, whatever bool) error {
	for some := range slices.Chunk(list, layout.HeadsPerTrip) {
		var marked []layout.Object
		// The primary last: when it has the mark, all have.
		for c := r.s.DataReplicas - 1; c >= 0; c-- {
			var err error
			if marked, err = r.markCopies(some, c, whatever); err != nil {
				return fmt.Errorf("mark %d objects on replica %d: %w", len(some), c, err)
			}
		}
		// Hints come after the marks.
		if !r.s.NodeCentric {
			if err := r.t.Hint(marked); err != nil {
				return err
			}
		}
		if !whatever {
			r.report.Freed += len(marked)
		}
	}
	return nil
}

// markCopies marks those of the objects that are in the given use, or in any, on one replica. It
// returns all that are marked there then. The error wraps ErrDeadline when it took
// so long that the block may have another class by now; nothing was written then. On the primary
// of a pool in which nodes hand out objects it sets their hints, too.
func (r *recovery) markCopies(list []layout.Object, replica int, whatever bool) (marked []layout.Object, err error) {
	read, write := r.s.Batch(), r.s.Batch()
	defer read.Release()
	defer write.Release()
	var there []layout.Object
	for _, o := range list {
		// A region may have fewer replicas left than another one.
		if replica < r.s.Space.CopiesOf(o.Unit) {
			read.Read(r.s.Space.UnitAt(o.Unit, replica), layout.HeadBytes)
			there = append(there, o)
		}
	}
	// The clock is read before the heads: see the check below.
	start := r.s.Now()
	if err := r.s.Do(session.StepMarkFree, read); err != nil {
		return nil, err
	}
	for i, o := range there {
		h := layout.HeadOf(read.Op(i).Buf)
		// It is in another use than the one that was found lost.
		if !whatever && h.Incarnation != o.Incarnation {
			continue
		}
		central, at := replica == 0 && r.s.NodeCentric, read.Op(i).Addr.Add(layout.MarkAt)
		switch {
		case central && h.Free():
			// A node has no memory of what it handed out: a second hint would hand out the object
			// twice.
			continue
		case central:
			// The hint lands behind the mark, as the chain is on one node: a scan that finds the
			// hint finds a free object.
			write.Chain()
			write.WriteWord(at, uint64(h.Incarnation))
			r.t.AddHint(write, o.Unit, o.Class)
		case !h.Free():
			write.WriteWord(at, uint64(h.Incarnation))
		}
		marked = append(marked, o) // also if it was marked before: its hint may have been lost
	}
	// By now the block may have objects of another class.
	if !whatever && write.Len() > 0 && r.s.Now()-start > r.s.Timeout/2 {
		return nil, session.TimedOut("mark objects that were read a while ago")
	}
	return marked, r.s.Do(session.StepMarkFree, write)
}
