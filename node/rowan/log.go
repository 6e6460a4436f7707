package rowan

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Log is a log of a worker's own, in the memory of the node beside which it runs: Rowan-KV's t-logs
// (section 4.1), and what its cleaners copy to. It belongs to its worker.
//
// Its entries are of one block, and sealed for the use of their segment and their place in it. So
// whatever bytes else are in a segment, of earlier uses, of data, or of entries that are torn, are
// none; an entry is found wherever others before it were lost. Each has a term in the upper half of
// its stamp: the worker's, or, of an entry that it copies, that one's.
type Log struct {
	ep    rdma.Endpoint
	t     *Table
	owner Owner
	now   Segment
	begun bool // there is a segment
	next  int  // where the next entry is in it, in bytes
	full  []Segment
}

// Log returns a log of an owner, which has no other at the time. It begins with a segment of its
// own.
func (t *Table) Log(ep rdma.Endpoint, owner Owner) *Log {
	if owner == Control {
		panic("rowan: the control's segments are the receiver's")
	}
	return &Log{ep: ep, t: t, owner: owner}
}

// Resume is Log behind a crash: the log goes on in a segment of the owner's, from a place behind
// its last entry.
func (t *Table) Resume(ep rdma.Endpoint, s Segment, behind rdma.Addr) *Log {
	g := t.Log(ep, t.own(s, "resume").owner)
	g.now, g.begun = s, true
	g.next = strides(int(behind.Offset() - t.o.segmentAt(s.Index).Offset()))
	return g
}

// logBlock is how long the one block of an entry may be.
const logBlock = 1 << lengthBits

// logLayout is how entries are sealed for a use of a segment.
func (t *Table) logLayout(push uint64) layout {
	return layout{mtu: logBlock, seed: t.o.Secret ^ (push+1)*0xd6e8feb86659fd93, own: true}
}

// Reserve makes room for an entry with so much data, which Add takes next: where the segment has
// none, in another one, as long as so many stay free. That takes a trip. The error wraps
// rdma.ErrFull when there is none.
func (g *Log) Reserve(length, keep int) error {
	n := strides(HeaderBytes + length)
	if n > g.t.o.SegmentBytes || length > (layout{mtu: logBlock}).part() {
		return fmt.Errorf("append %d bytes to a log with segments of %d: %w", n, g.t.o.SegmentBytes, rdma.ErrMessageSize)
	}
	if g.begun && g.next+n <= g.t.o.SegmentBytes {
		return nil
	}
	list := g.t.take(g.owner, 1, keep)
	if len(list) == 0 {
		return fmt.Errorf("append to log %d of node %d, which keeps %d segments free: %w", g.owner, g.t.o.Node, keep, rdma.ErrFull)
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

// Add adds the WRITE of an entry of a term, for which Reserve made room, and a READ behind it,
// which sees it into memory. It returns where the entry is, once both have succeeded.
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

// Full returns a segment that the log has left since: nothing is added to it any more, but what was
// may be in flight. It is the caller's, until Table.Release.
func (g *Log) Full() (Segment, bool) {
	if len(g.full) == 0 {
		return Segment{}, false
	}
	s := g.full[0]
	g.full = append(g.full[:0], g.full[1:]...)
	return s, true
}

// Scan calls f for the entries that are whole in a segment of an own log, in the order of their
// places. Of a segment of Control it is those of one block; there, old ones of earlier uses come,
// too: so the caller knows by their place which are needed. The entry is f's until it returns. The
// scratch takes a segment.
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

// Peek calls f for the first block of each entry in a segment, of any owner, while others land in
// it. So it finds what is not whole, too; data is the part of the entry that the block has, until f
// returns. It finds nothing once the segment is free. The scratch takes a segment.
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

// layoutOf is how entries are sealed in a use of a segment that an owner has.
func (t *Table) layoutOf(owner Owner, push uint64) layout {
	if owner == Control {
		return t.ring()
	}
	return t.logLayout(push)
}

// blocks calls f for the blocks that are whole in a segment, and their data, in the order of their
// places.
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

// Head is the kind of the entry whose first block p begins with, and how much data it has. The
// caller knows that one is there: it is not checked.
func Head(p []byte) (kind uint8, length int) {
	h := parseHeader(p)
	return h.kind, h.length
}

// Assemble reads an entry of the receiver's segments, of which the blocks are given, to e, whose
// data it replaces. The error wraps ErrDamaged when they are not there.
func (t *Table) Assemble(ep rdma.Endpoint, blocks []rdma.Addr, e *Entry) error {
	b := ep.Batch()
	defer b.Release()
	t.ReadBlocks(b, blocks)
	if err := rdma.Do(ep, b.As("read blocks"), patience); err != nil {
		return fmt.Errorf("read the blocks of an entry at %s: %w", blocks[0], err)
	}
	return t.Join(b, blocks, e)
}
