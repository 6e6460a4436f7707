package rowan

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Log is a log of one worker, in the memory of the node beside which the worker runs: Rowan-KV's
// t-logs (section 4.1), and the logs that its cleaners copy to. It belongs to its worker, and is
// not safe for concurrent use.
//
// Each entry is one block. It is sealed for the use of its segment (the push) and for its place
// there. So no other bytes in the segment verify as an entry: those of earlier uses, of the data of
// entries, and of torn entries do not. An entry is found even if entries ahead of it were lost. The
// upper half of its stamp is a term: the worker's, or, for an entry that the worker copies, the
// term of the original.
type Log struct {
	ep    rdma.Endpoint
	t     *Table
	owner Owner
	// The segment that is filled, if begun.
	now   Segment
	begun bool
	// Offset of the next entry in the segment, in bytes, a multiple of the stride.
	next int
	// Segments that were left, for Full.
	full []Segment
}

// Log returns a new log for an owner. The owner has no other log at the time. The first Reserve
// takes a segment.
func (t *Table) Log(ep rdma.Endpoint, owner Owner) *Log {
	if owner == Control {
		panic("rowan: the control's segments are the receiver's")
	}
	return &Log{ep: ep, t: t, owner: owner}
}

// Resume returns a log that goes on in a segment of the same owner, which an earlier worker left in
// a crash. behind is the address behind its last entry. Nothing of the earlier worker may land any
// more.
func (t *Table) Resume(ep rdma.Endpoint, s Segment, behind rdma.Addr) *Log {
	g := t.Log(ep, t.own(s, "resume").owner)
	g.now, g.begun = s, true
	g.next = strides(int(behind.Offset() - t.o.segmentAt(s.Index).Offset()))
	return g
}

// logBlock bounds the only block of an entry: the length field has so many bits.
const logBlock = 1 << lengthBits

// logLayout returns the layout of entries in one use of a segment. The push is part of the seed, so
// that entries of other uses do not verify.
func (t *Table) logLayout(push uint64) layout {
	return layout{mtu: logBlock, seed: t.o.Secret ^ (push+1)*0xd6e8feb86659fd93, own: true}
}

// Reserve makes room for one entry with length bytes of data, which Add takes next. If the current
// segment has no room it takes another one, as long as keep segments stay free; that takes a trip.
// The error wraps rdma.ErrFull when there is no segment to take.
//
// The segment is marked as in use by this owner, durably, before anything is written there. A crash
// behind that leaves a segment of the owner without entries; it is recovered like any other.
func (g *Log) Reserve(length, keep int) error {
	n := strides(HeaderBytes + length)
	if n > g.t.o.SegmentBytes || length > (layout{mtu: logBlock}).part() {
		return fmt.Errorf("append %d bytes to a log with segments of %d: %w", n, g.t.o.SegmentBytes,
			rdma.ErrMessageSize)
	}
	if g.begun && g.next+n <= g.t.o.SegmentBytes {
		return nil
	}
	list := g.t.take(g.owner, 1, keep)
	if len(list) == 0 {
		return fmt.Errorf("append to log %d of node %d, which keeps %d segments free: %w", g.owner, g.t.o.Node, keep,
			rdma.ErrFull)
	}
	if err := g.t.setStates(g.ep, "mark using", list, using); err != nil {
		return err
	}
	if g.begun {
		g.full = append(g.full, g.now)
	}
	g.now, g.begun, g.next = Segment{list[0], g.t.segments[list[0]].push}, true, 0
	return nil
}

// Add adds the WRITE of an entry to the batch, for which Reserve made room, and a READ behind it
// that makes it durable. The entry is at the returned address, for good, once both have succeeded.
// The caller posts the batch, and starts a chain before if there are other verbs in it. The data is
// copied.
func (g *Log) Add(b *rdma.Batch, kind uint8, term uint32, data []byte) (s Segment, at rdma.Addr) {
	n := HeaderBytes + len(data)
	if !g.begun || g.next+strides(n) > g.t.o.SegmentBytes {
		panic(fmt.Sprintf("rowan: add %d bytes to log %d at %d, for which there is no room", n, g.owner, g.next))
	}
	at = g.t.o.segmentAt(g.now.Index).Add(uint64(g.next))
	p := b.Alloc(n)
	g.t.seal(Place{at, g.now}, g.owner, kind, term, data, p)
	b.Write(at, p)
	b.Read(at, 8)
	g.next += strides(n)
	return g.now, at
}

// Full returns a segment that the log has left: nothing is added there any more, but entries may be
// in flight. The caller owns it until Table.Release. It reports false if there is none.
func (g *Log) Full() (Segment, bool) {
	if len(g.full) == 0 {
		return Segment{}, false
	}
	s := g.full[0]
	g.full = append(g.full[:0], g.full[1:]...)
	return s, true
}

// Scan calls f for the intact entries in a segment, in the order of their places. In a segment of
// Control it returns entries of one block only, also stale ones of earlier uses of the segment:
// there the caller must know by the address which entries it needs. The entry is valid until f
// returns. The caller owns scratch, which has the size of a segment.
func (t *Table) Scan(ep rdma.Endpoint, s Segment, scratch []byte, f func(*Entry) error) error {
	l := t.layoutOf(t.own(s, "scan").owner, s.Push)
	e := Entry{Blocks: make([]rdma.Addr, 1), Segments: []int{s.Index}}
	return t.blocks(ep, s, l, scratch, func(h header, data []byte, at rdma.Addr) error {
		if l.blocks(h.length) > 1 {
			return nil
		}
		e.Kind, e.Source, e.Stamp, e.Data = h.kind, h.source, h.stamp, data
		e.Blocks[0] = at
		return f(&e)
	})
}

// Peek calls f for the first block of each entry in a segment, of any owner, while others append to
// it. So it also reports entries that are not complete. data is the part of the entry in that
// block, valid until f returns. A segment that was freed since has no entries. The caller owns
// scratch, which has the size of a segment.
func (t *Table) Peek(ep rdma.Endpoint, s Segment, scratch []byte, f func(kind uint8, data []byte, at rdma.Addr)) error {
	t.mu.Lock()
	seg := &t.segments[s.Index]
	free, owner, floors := seg.push != s.Push || slices.Contains(t.spare, s.Index), seg.owner, slices.Clone(seg.floors)
	hidden := seg.hidden
	t.mu.Unlock()
	if free {
		return nil
	}
	l := t.layoutOf(owner, s.Push)
	return t.blocks(ep, s, l, scratch, func(h header, data []byte, at rdma.Addr) error {
		stale := owner == Control && (hidden || int(h.source) >= t.o.Sources || h.stamp <= floors[t.o.key(l, h)])
		if h.block == 0 && !stale {
			f(h.kind, data, at)
		}
		return nil
	})
}

// layoutOf returns the layout of the entries in one use of a segment.
func (t *Table) layoutOf(owner Owner, push uint64) layout {
	if owner == Control {
		return t.ring()
	}
	return t.logLayout(push)
}

// blocks calls f for the intact blocks in a segment, with their data, in the order of their places.
// Behind a block it goes on at the block's end, elsewhere at the next stride.
func (t *Table) blocks(ep rdma.Endpoint, s Segment, l layout, scratch []byte,
	f func(h header, data []byte, at rdma.Addr) error,
) error {
	p := scratch[:t.o.SegmentBytes]
	if err := read(ep, p, t.o.segmentAt(s.Index)); err != nil {
		return err
	}
	for off := 0; off < len(p); {
		h, data, ok := l.parse(p[off:])
		if !ok || l.own && uint32(h.stamp) != uint32(off) {
			off += rdma.Stride
			continue
		}
		at := t.o.segmentAt(s.Index).Add(uint64(off))
		off += strides(l.sizeOfBlock(h))
		if err := f(h, data, at); err != nil {
			return err
		}
	}
	return nil
}

// Head returns the kind of the entry that p begins with, and the length of its data. It checks
// nothing: the caller knows that an entry is there.
func Head(p []byte) (kind uint8, length int) {
	h := parseHeader(p)
	return h.kind, h.length
}

// Assemble reads an entry of the receiver's segments from the addresses of its blocks. It replaces
// e's data. The error wraps ErrDamaged when the blocks are not intact or do not belong together.
func (t *Table) Assemble(ep rdma.Endpoint, blocks []rdma.Addr, e *Entry) error {
	b := ep.Batch()
	defer b.Release()
	t.ReadBlocks(b, blocks)
	if err := rdma.Do(ep, b.As("read blocks"), patience); err != nil {
		return fmt.Errorf("read the blocks of an entry at %s: %w", blocks[0], err)
	}
	return t.Join(b, blocks, e)
}
