package rowan

import (
	"fmt"
	"math"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Entry is one that is whole in the log. It is the digest's until that returns.
type Entry struct {
	Kind   uint8
	Source uint16
	Stamp  uint64 // of the source's entries, which come in its order
	Data   []byte
	// Blocks are where its blocks are, and Segments in which segment each is: those are one thing,
	// live or dead together.
	Blocks   []rdma.Addr
	Segments []int
}

// partial is an entry of which some blocks have come. A key has one at a time, since its blocks
// come in order.
//
// A key is a source, or, where there are several streams, a source in a stream: what its entries
// are in the order of.
type partial struct {
	stamp  uint64 // 0: there is none
	data   []byte
	blocks []rdma.Addr
	in     []int // segments
}

// unfinished reports whether an entry of which blocks are in the segment may go on in another.
func (r *Receiver) unfinished(segment int) bool {
	for i := range r.partial {
		if p := &r.partial[i]; p.stamp != 0 && slices.Contains(p.in, segment) {
			return true
		}
	}
	return false
}

// ended reports whether all segments were given back in which entries end that have blocks in the
// segment: those that are free by now, or used again, were.
func (r *Receiver) ended(segment int) bool {
	for _, end := range r.segments[segment].ends {
		if s := &r.segments[end.Index]; s.state != free && s.push == end.Push && !slices.Contains(r.freed, end.Index) {
			return false
		}
	}
	return true
}

// Digest calls f for the entries that a segment completes, in the order in which they landed.
// Segments are digested in the order in which Next returns them. What is not whole is passed over:
// it was not acknowledged.
func (r *Receiver) Digest(s Segment, f func(*Entry) error) error {
	if seg := &r.segments[s.Index]; s.Push != seg.push || seg.digest || r.o.Streams == 1 && s.Push <= r.digested {
		panic(fmt.Sprintf("rowan: digest segment %+v behind push %d", s, r.digested))
	}
	r.digested, r.segments[s.Index].digest = s.Push, true
	_, err := r.scan(s, func(uint16) uint64 { return math.MaxUint64 }, f)
	return err
}

// Settle calls f for entries that are at rest in segments which are in the ring, in the order of
// Digest: those of each source up to a stamp of which the caller knows that nothing not above it is
// in flight, so that entries which have begun up to it will not end. They do not come again when
// their segment is digested. It follows a Step, and Digest of all that Next returns.
func (r *Receiver) Settle(upTo func(source uint16) uint64, f func(Segment, *Entry) error) error {
	begun := len(r.pushed) - r.unbegun
	for i, p := range r.pushed {
		s := Segment{p.index, r.segments[p.index].push}
		found, err := r.scan(s, upTo, func(e *Entry) error { return f(s, e) })
		if err != nil {
			return err
		}
		if i >= begun && !found {
			break
		}
	}
	for k := range r.partial {
		if p := &r.partial[k]; p.stamp <= upTo(uint16(k/r.o.Streams)) {
			p.stamp = 0
		}
	}
	return nil
}

// scan calls f for the entries that a segment completes, of sources' blocks up to their stamps. It
// reports whether there are any blocks of this use of the segment.
func (r *Receiver) scan(s Segment, upTo func(source uint16) uint64, f func(*Entry) error) (found bool, err error) {
	if err := read(r.ep, r.scratch, r.o.segmentAt(s.Index)); err != nil {
		return false, err
	}
	for off := 0; off < len(r.scratch); {
		h, part, ok := r.l.parse(r.scratch[off:])
		if !ok || int(h.source) >= r.o.Sources {
			off += rdma.Stride // a gap, or a block that is torn: whatever its data is, its strides begin no block
			continue
		}
		at := r.o.segmentAt(s.Index).Add(uint64(off))
		off += strides(r.l.sizeOfBlock(h))
		k := r.o.key(r.l, h)
		if seg := &r.segments[s.Index]; seg.hidden || h.stamp <= seg.floors[k] {
			r.floors[k] = max(r.floors[k], h.stamp)
			continue // of an earlier use of the segment
		}
		found = true
		if h.stamp > upTo(h.source) {
			continue // others of the source ahead of it may be in flight
		}
		if last := r.last[k]; h.stamp < last || h.stamp == last && h.block == 0 {
			continue // it was digested, or is a copy of an entry, in the data of one that is torn
		}
		r.last[k], r.floors[k] = h.stamp, max(r.floors[k], h.stamp)
		if e := r.assemble(h, part, at, s); e != nil {
			if err := f(e); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// assemble adds a block to its entry, and returns that when it is whole. Blocks of a source's
// entries come in order: with one missing, or another entry begun, the entry will not be whole.
func (r *Receiver) assemble(h header, part []byte, at rdma.Addr, s Segment) *Entry {
	p := &r.partial[r.o.key(r.l, h)]
	if h.block == 0 {
		*p = partial{stamp: h.stamp, data: p.data[:0], blocks: p.blocks[:0], in: p.in[:0]}
	}
	if p.stamp != h.stamp || len(p.blocks) != h.block {
		p.stamp = 0
		return nil
	}
	p.data, p.blocks, p.in = append(p.data, part...), append(p.blocks, at), append(p.in, s.Index)
	if len(p.blocks) < r.l.blocks(h.length) {
		return nil
	}
	p.stamp = 0
	for _, i := range p.in {
		if ends := &r.segments[i].ends; i != s.Index && !slices.Contains(*ends, s) {
			*ends = append(*ends, s)
		}
	}
	r.entry = Entry{Kind: h.kind, Source: h.source, Stamp: h.stamp, Data: p.data, Blocks: p.blocks, Segments: p.in}
	return &r.entry
}
