package rowan

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Counts are the numbers of a table's segments by state.
type Counts struct {
	// Free: nothing in them is needed.
	Free int
	// Ahead: in the ring, or lent. Entries of other servers land there.
	Ahead int
	// Filling: own logs append to them.
	Filling int
	// Used: nothing lands there any more; some entries may not be on all replicas.
	Used      int
	Committed int
}

// Add adds the counts of another table to c.
func (c *Counts) Add(d Counts) {
	c.Free, c.Ahead, c.Filling = c.Free+d.Free, c.Ahead+d.Ahead, c.Filling+d.Filling
	c.Used, c.Committed = c.Used+d.Used, c.Committed+d.Committed
}

// Count counts the segments by the states that were read when the table was opened.
func (t *Table) Count() (c Counts) {
	for i := range t.segments {
		switch s := &t.segments[i]; {
		case s.state == free:
			c.Free++
		case s.state == using && s.owner.Received():
			c.Ahead++
		case s.state == using:
			c.Filling++
		case s.state == used:
			c.Used++
		default:
			c.Committed++
		}
	}
	return c
}

// verify returns an error if two segments have the same push. No run of the protocol leaves that.
// A push is given once, unless a crash comes before it is durable: then no record has it. So a
// record is damaged.
func (t *Table) verify() error {
	last := -1
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.push > 0 }) {
		if last >= 0 && t.segments[last].push == t.segments[i].push {
			return fmt.Errorf("segments %d and %d have push %d both: %w", last, i, t.segments[i].push, ErrDamaged)
		}
		last = i
	}
	return nil
}

// Look calls f for the entries in all segments of a table that was just read. It changes nothing.
// If the logs have ended, it finds all that Scan and Recover find. While the logs are in use it may
// miss entries that are moved meanwhile, and may report entries in segments that were freed
// meanwhile.
func (t *Table) Look(ep rdma.Endpoint, f func(*Entry) error) error {
	// The receiver is never stepped, so it opens no ring and writes nothing.
	r, err := t.Receiver(ep)
	if err != nil {
		return err
	}
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.state != free }) {
		s := Segment{i, t.segments[i].push}
		if t.segments[i].owner == Control {
			err = r.Digest(s, f)
		} else {
			err = t.Scan(ep, s, r.scratch, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Torn calls f for each first block, in a table that was just read, that has a header and a wrong
// checksum: its append was torn, or its memory was damaged later. data is what the block holds, and
// may itself be the damaged part. A block with a damaged header is not found.
func (t *Table) Torn(ep rdma.Endpoint, f func(data []byte, at rdma.Addr)) error {
	p := make([]byte, t.o.SegmentBytes)
	for i := range t.segments {
		s := &t.segments[i]
		if s.state == free {
			continue
		}
		if err := read(ep, p, t.o.segmentAt(i)); err != nil {
			return err
		}
		l := t.layoutOf(s.owner, s.push)
		for off := 0; off < len(p); off += rdma.Stride {
			if h, _, ok := l.parse(p[off:]); ok {
				// A block that is whole is skipped with its data, which may have bytes like those
				// of a header.
				off += strides(l.sizeOfBlock(h)) - rdma.Stride
			} else if h := parseHeader(p[off:]); p[off] == mark && h.block == 0 && l.sizeOfBlock(h) <= len(p)-off {
				f(p[off+HeaderBytes:off+l.sizeOfBlock(h)], t.o.segmentAt(i).Add(uint64(off)))
			}
		}
	}
	return nil
}

// Describe names what lies at an address of a log's memory. It returns "" for an address outside of
// it.
func (o Options) Describe(a rdma.Addr) string {
	o = o.withDefaults()
	at := func(first rdma.Addr) uint64 { return a.Offset() - first.Offset() }
	switch {
	case a.Offset() < o.Base || a.Offset() >= o.Base+o.Size():
		return ""
	case a.Offset() < o.spentAt(0).Offset():
		return fmt.Sprintf("leave of source %d", at(o.grantAt(0))/8)
	case a.Offset() < o.recordAt(0).Offset() && a.Offset() >= o.beginAt(0).Offset():
		return fmt.Sprintf("what remote log %d was lent", at(o.beginAt(0))/8/uint64(1+o.Lent))
	case a.Offset() < o.recordAt(0).Offset() && a.Offset() >= o.doneAt(0).Offset():
		return fmt.Sprintf("what the writer of remote log %d is done with", at(o.doneAt(0))/8)
	case a.Offset() < o.recordAt(0).Offset():
		return fmt.Sprintf("what source %d has spent of its leave", at(o.spentAt(0))/8)
	case a.Offset() < o.segmentAt(0).Offset():
		in := at(o.recordAt(0))
		switch word := in % o.record() / 8; {
		case word == 0:
			return fmt.Sprintf("state of segment %d", in/o.record())
		case word > uint64(o.keys()):
			return fmt.Sprintf("checksum of the floors of segment %d", in/o.record())
		}
		return fmt.Sprintf("floor %d of segment %d", in%o.record()/8-1, in/o.record())
	}
	in := at(o.segmentAt(0))
	return fmt.Sprintf("segment %d at %#x", in/uint64(o.SegmentBytes), in%uint64(o.SegmentBytes))
}
