package rowan

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Verify looks at what was READ from an address at which an entry begins, of any log. It returns
// how long the entry's first block is, as it says itself: of a longer one than p nothing is known
// yet; 0: none begins there. It reports whether the block is as it was sealed, for this use of the
// segment, and in an own log for this place.
//
// The caller knows that the segment is not free, since it has the address from where only entries
// are named, and holds up that it is freed: so it needs no lock.
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

// Parts returns how many blocks an entry of the receiver's segments has, by the header of its
// first, which was verified.
func (t *Table) Parts(at rdma.Addr, head []byte) int {
	if t.segments[t.At(at)].owner != Control {
		return 1
	}
	return t.received.blocks(parseHeader(head).length)
}

// ReadBlocks adds READs of the blocks of an entry of the receiver's segments to a batch. Join is
// behind them.
func (t *Table) ReadBlocks(b *rdma.Batch, blocks []rdma.Addr) {
	for _, at := range blocks {
		b.Read(at, int(min(uint64(t.p.MTU), t.End(at).Offset()-at.Offset())))
	}
}

// Join puts the blocks together to e, whose data it replaces. The error wraps ErrDamaged when they
// are not there.
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
