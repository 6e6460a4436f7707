package rowan

import (
	"fmt"
	"math"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Entry is an entry of which all blocks are in the log. The digest owns it, with its buffers: it is
// valid until the callback returns.
type Entry struct {
	Kind   uint8
	Source uint16
	// Order of the source's entries. Within a stream they come in ascending order.
	Stamp uint64
	Data  []byte
	// Blocks are the addresses of the entry's blocks, and Segments the index of the segment in
	// which each of them lies. The blocks are needed, or garbage, all together.
	Blocks   []rdma.Addr
	Segments []int
}

// partial is an entry of which some blocks have arrived. A key has at most one, since the blocks of
// a key land in order.
//
// A key is a source, or, on a fabric with several streams, a source in one stream. The entries of a
// key land in the order of their stamps; between keys there is no order.
type partial struct {
	stamp uint64 // 0: there is none
	// The data of the blocks so far, which is owned by the receiver and used again.
	data   []byte
	blocks []rdma.Addr
	// By block, the index of its segment.
	in []int
}

// Begun reports whether an entry that is not complete yet has a block in a segment that was
// digested. Its missing blocks may land in a later segment.
func (r *Receiver) Begun(s Segment) bool { return r.begun(s.Index) }

func (r *Receiver) begun(segment int) bool {
	for i := range r.partial {
		if p := &r.partial[i]; p.stamp != 0 && slices.Contains(p.in, segment) {
			return true
		}
	}
	return false
}

// Digest calls f for the entries that a segment completes, in the order in which they landed.
// Segments must be digested in the order in which Next returns them, each once: entries with blocks
// in several segments are joined across calls. Blocks that are not whole are skipped: their append
// was not acknowledged. It returns the error of f, or of the READs.
func (r *Receiver) Digest(s Segment, f func(*Entry) error) error {
	if seg := &r.segments[s.Index]; s.Push != seg.push || seg.digest || r.o.Streams == 1 && s.Push <= r.digested {
		panic(fmt.Sprintf("rowan: digest segment %+v behind push %d", s, r.digested))
	}
	r.digested, r.segments[s.Index].digest = s.Push, true
	_, err := r.scan(s, func(uint16) uint64 { return math.MaxUint64 }, f)
	return err
}

// Settle calls f for entries in segments that are still in the ring, in the order of Digest. upTo
// returns a stamp for each source: the caller knows that no append of the source with a stamp up to
// that one is in flight, so an unfinished entry up to it never ends. These entries are not repeated
// when their segment is digested. Settle must follow a Step, and Digest of all segments that Next
// returns.
func (r *Receiver) Settle(upTo func(source uint16) uint64, f func(Segment, *Entry) error) error {
	begun := len(r.pushed) - r.unbegun
	for i, p := range r.pushed {
		s := Segment{p.index, r.segments[p.index].push}
		found, err := r.scan(s, upTo, func(e *Entry) error { return f(s, e) })
		if err != nil {
			return err
		}
		// Segments are filled in order: behind the first one without blocks, of those in which
		// nothing has its place, there are none.
		if i >= begun && !found {
			break
		}
	}
	// An unfinished entry up to the stamp is given up, so that it does not keep its segments.
	for k := range r.partial {
		if p := &r.partial[k]; p.stamp <= upTo(uint16(k/r.o.Streams)) {
			p.stamp = 0
		}
	}
	return nil
}

// scan calls f for the entries that a segment completes, of blocks up to the stamp of their source.
// It reports whether the segment has any block of its current use.
func (r *Receiver) scan(s Segment, upTo func(source uint16) uint64, f func(*Entry) error) (found bool, err error) {
	if err := read(r.ep, r.scratch, r.o.segmentAt(s.Index)); err != nil {
		return false, err
	}
	for off := 0; off < len(r.scratch); {
		// Three kinds of blocks are skipped: torn ones, stale ones of an earlier use of the segment
		// (their stamp is not above the segment's floor), and copies (their stamp is not above the
		// last one of the key).
		h, part, ok := r.l.parse(r.scratch[off:])
		if !ok || int(h.source) >= r.o.Sources {
			off += rdma.Stride // a gap or a torn block: no stride of its data begins a block
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
			continue // earlier entries of the source may be in flight
		}
		if last := r.last[k]; h.stamp < last || h.stamp == last && h.block == 0 {
			continue // it was digested before, or it is a copy inside the data of a torn entry
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

// assemble adds a block to its entry, and returns the entry when it is complete; nil: it is not.
// The blocks of a key land in order. So if one is missing, or another entry of the key has begun,
// the entry will never be complete, and is dropped.
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
	r.entry = Entry{Kind: h.kind, Source: h.source, Stamp: h.stamp, Data: p.data, Blocks: p.blocks, Segments: p.in}
	return &r.entry
}
