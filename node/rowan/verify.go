package rowan

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Verify examines what was READ at an address where an entry of any log begins. n is the length of
// the entry's first block, by its own header; if it is more than len(p), the caller reads n bytes
// and verifies again. 0 means that no block begins there. ok reports whether the block is intact,
// for this use of the segment and, in an own log, for this place.
//
// It takes no lock: the caller has the address from an index that names entries of segments that
// are not free, and the segment is not freed before the caller passes a quiet point.
func (t *Table) Verify(at rdma.Addr, p []byte) (n int, ok bool) {
	if len(p) < HeaderBytes || p[0] != mark {
		return 0, false
	}
	index := t.At(at)
	l := &t.received
	if s := &t.segments[index]; s.owner != Control {
		own := t.logLayout(s.push)
		l = &own
	}
	h := parseHeader(p)
	offset := int(at.Offset()-t.first.Offset()) - index*t.o.SegmentBytes
	if n = l.sizeOfBlock(h); h.block != 0 || n > t.o.SegmentBytes-offset {
		return 0, false
	}
	if n > len(p) {
		return n, false
	}
	_, _, ok = l.parse(p[:n])
	return n, ok && (!l.own || uint32(h.stamp) == uint32(offset))
}

// Parts returns the number of blocks of an entry. head is its first block, which was verified.
// Entries outside of the receiver's segments have one block.
func (t *Table) Parts(at rdma.Addr, head []byte) int {
	if t.segments[t.At(at)].owner != Control {
		return 1
	}
	return t.received.blocks(parseHeader(head).length)
}

// ReadBlocks adds READs of the blocks of an entry in the receiver's segments to a batch. Join takes
// their results. The length of a block is in its header, which is not read yet. So each READ is
// as long as a block may be, up to the end of its segment.
func (t *Table) ReadBlocks(b *rdma.Batch, blocks []rdma.Addr) {
	for _, at := range blocks {
		b.Read(at, int(min(uint64(t.p.MTU), t.End(at).Offset()-at.Offset())))
	}
}

// Join assembles an entry from the READs of ReadBlocks, and replaces e's data. The error wraps
// ErrDamaged if a block is damaged, or the blocks are not those of one entry.
func (t *Table) Join(b *rdma.Batch, blocks []rdma.Addr, e *Entry) error {
	l := t.ring()
	e.Blocks, e.Segments, e.Data = blocks, nil, e.Data[:0]
	for i, at := range blocks {
		h, part, ok := l.parse(b.Op(i).Buf)
		if !ok || h.block != i || l.blocks(h.length) != len(blocks) || i > 0 && h.stamp != e.Stamp {
			return fmt.Errorf("block %d of %d of an entry at %s: %w", i, len(blocks), at, ErrDamaged)
		}
		e.Kind, e.Source, e.Stamp, e.Data = h.kind, h.source, h.stamp, append(e.Data, part...)
	}
	return nil
}
