package memory

import (
	"fmt"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// takeFromNode is node-centric allocation (FUSEE 6.3): every object costs a call to a memory
// node, which keeps the free bitmaps of its blocks. The baseline shows what two-level management
// saves. The error wraps rdma.ErrFull when no node has an object.
//
// The node reads the head of the object that it hands out, and returns the incarnation of its last
// use: so the client need not read it.
func (a *Allocator) takeFromNode(class int) (layout.Object, error) {
	// Frees move on with each write, as in tend.
	a.Reclaim.land(0)
	a.Reclaim.mature()
	regions := len(a.s.LiveRegions)
	start := a.s.Rand().IntN(max(1, regions))
	last := rdma.ErrFull
	for k := range regions {
		g := a.s.LiveRegions[(start+k)%regions]
		first := node.Block{Region: g}
		q := rdma.Request{Step: session.StepAllocate, Proc: node.ProcObject, Arg: [6]uint64{
			a.s.Space.Table(g, 0).Offset(), uint64(a.s.Space.Blocks()),
			a.s.Space.Bitmap(first, 0).Offset(), a.s.BlockBytes, uint64(class)<<32 | uint64(a.s.Classes.Objects[class]),
			a.s.Space.BitmapBytes()<<32 | uint64(a.s.Classes.Units[class]*node.Unit)}}
		err := a.s.Call(a.s.Space.Table(g, 0).Node(), &q, a.s.OpTimeout)
		if err == nil {
			blk := node.Block{Region: g, Index: int(q.Ret[0])}
			o := layout.Object{Unit: a.s.Space.Object(blk, int(q.Ret[1]), a.s.Classes.Units[class]),
				Class: class, Incarnation: uint32(q.Ret[2]) + 1}
			return o, a.known.record(a.Tables, blk, class)
		}
		// The node is full, or does not answer: the next region's may have an object.
		last = err
	}
	return layout.Object{}, fmt.Errorf("take an object from a node: %w", last)
}

// nodeBlocks are blocks of which nodes hand out objects, and that the backups have recorded.
type nodeBlocks map[node.Block]bool

// record makes sure that the backups know a block of which a node hands out objects,
// before the first object of it is used. The client remembers it, so each block costs the calls
// once. When the primary's node dies, recovery finds the block in the tables of the backups.
func (n nodeBlocks) record(t *Tables, blk node.Block, class int) error {
	if n[blk] {
		return nil
	}
	mine := node.MakeEntry(node.OfNode, class)
	for r := 1; r < t.s.Space.Copies(blk.Region); r++ {
		e, err := t.Record(session.StepAllocate, blk, r, mine)
		if err != nil {
			return fmt.Errorf("record block %v: %w", blk, err)
		}
		// An entry that is there already was recorded by another client.
		if e != 0 && e != mine {
			return fmt.Errorf("record block %v: %w", blk, disagree(r, e, mine))
		}
	}
	n[blk] = true
	return nil
}
