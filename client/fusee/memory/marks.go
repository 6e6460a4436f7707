package memory

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
)

// Heads reads the heads of all objects of a block on one replica, in the order of the objects.
// Those of small objects are read together, with what is between them. Others have a READ each.
//
// What is read may change at the same time: other clients free objects of the block, which changes
// marks only. Incarnations change only when the block's owner uses an object.
func (t *Tables) Heads(blk node.Block, class, replica int) ([]layout.Head, error) {
	list, units := make([]layout.Head, 0, t.s.Classes.Objects[class]), t.s.Classes.Units[class]
	apart, together := units*node.Unit, 1
	if apart <= nearHeads {
		together = headsBytes / apart
	}
	for len(list) < cap(list) {
		b := t.s.Batch()
		for i := len(list); i < min(len(list)+layout.HeadsPerTrip, cap(list)); i += together {
			last := min(together, cap(list)-i) - 1
			b.Read(t.s.Space.UnitAt(t.s.Space.Object(blk, i, units), replica), last*apart+layout.HeadBytes)
		}
		err := t.s.Do(session.StepReadHeads, b)
		for i := 0; err == nil && i < b.Len(); i++ {
			for p := b.Op(i).Buf; len(p) >= layout.HeadBytes; p = p[min(apart, len(p)):] {
				list = append(list, layout.HeadOf(p))
			}
		}
		b.Release()
		if err != nil {
			return nil, fmt.Errorf("read the heads of block %v on replica %d: %w", blk, replica, err)
		}
	}
	return list, nil
}

const (
	// nearHeads is how many bytes apart heads are read together: a NIC sends as many in the time
	// of one more READ.
	nearHeads = 256
	// headsBytes is how long such a READ is at most: a packet.
	headsBytes = 4096
)

// Hint sets those bits of free objects that are not set. A bit on the primary lets the owner, or
// an adopter, find the object. It reads them first, since an FAA on a set bit would carry. The
// caller sees to it that no other client sets them at the same time.
//
// It may set a bit of an object that is used again meanwhile. The owner then finds a bit without
// its mark, and drops it.
func (t *Tables) Hint(list []layout.Object) error {
	read, add := t.s.Batch(), t.s.Batch()
	defer read.Release()
	defer add.Release()
	for _, o := range list {
		blk, _, _ := t.s.Space.BlockOf(o.Unit)
		read.Read(t.hintWord(blk, t.s.IndexOf(o.Unit, o.Class)), 8)
	}
	if err := t.s.Do(session.StepSetBits, read); err != nil {
		return err
	}
	// Several objects may have their bits in one word: each FAA sets one of them.
	for i, o := range list {
		if layout.LE.Uint64(read.Op(i).Buf)>>(t.s.IndexOf(o.Unit, o.Class)%64)&1 == 0 {
			t.AddHint(add, o.Unit, o.Class)
		}
	}
	return t.s.Do(session.StepSetBits, add)
}

// writeHeads writes objects' marks on all replicas: free, or in use. In use is a mark of 0. A
// free object's incarnation goes with its mark, since the object may have been taken and never
// been written. Objects that were never used need no mark.
//
// The replicas need no order: the owner uses none of the objects before the trip is complete, and
// an adopter reads marks only when the entry names node.Left, which comes later.
func (t *Tables) writeHeads(places []Place, free bool) error {
	for some := range slices.Chunk(places, layout.HeadsPerTrip) {
		b := t.s.Batch()
		for _, p := range some {
			// A free object gets its mark and its incarnation, another one only a mark of 0.
			n := layout.SumAt
			if free {
				n = layout.WriterAt
			}
			// It was never used: its memory is zero, which is free.
			if free && p.Block.Incarnations[p.Index] == 0 {
				continue
			}
			// The batch owns the buffer.
			buf := b.Alloc(n)
			clear(buf)
			if free {
				layout.LE.PutUint64(buf[layout.MarkAt:], uint64(p.Block.Incarnations[p.Index]))
				layout.LE.PutUint32(buf[layout.IncarnationAt:], p.Block.Incarnations[p.Index])
			}
			for r := range t.s.Space.Copies(p.Block.Region) {
				b.Write(t.s.Space.UnitAt(t.UnitOf(p), r), buf)
			}
		}
		err := t.s.Do(session.StepMarkFree, b)
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// setHints sets the bits of free objects of the blocks. A bit that is set already carries: that
// makes hints wrong, and no more.
func (t *Tables) setHints(blocks []*Block, free []Place) error {
	words := make(map[*Block][]uint64, len(blocks))
	for _, blk := range blocks {
		words[blk] = make([]uint64, len(blk.ready))
	}
	for _, p := range free {
		words[p.Block][p.Index/64] |= 1 << (p.Index % 64)
	}
	b := t.s.Batch()
	defer b.Release()
	// One FAA sets all bits of a word.
	for _, blk := range blocks {
		for w, bits := range words[blk] {
			if bits != 0 {
				b.FetchAdd(t.s.Space.Bitmap(blk.Block, 0).Add(uint64(w*8)), bits)
			}
		}
	}
	return t.s.Do(session.StepSetBits, b)
}
