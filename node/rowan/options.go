package rowan

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// The times of section 4.3, for fabrics that do not count what is in flight: a sender takes an
// append for acknowledged only when it completed within AckWithin, and a full segment is settled
// SettleAfter it was seen to be full. So what is acknowledged is in a settled segment, however late
// it landed. That nothing lands later than SettleAfter is relied on.
const (
	AckWithin   = time.Millisecond
	SettleAfter = 2 * time.Millisecond
)

// patience bounds the receiver's verbs at its own node, which cannot do without them.
const patience = 10 * time.Second

// What callers branch on, beside the errors of package rdma.
var (
	// ErrLate ends an append that was acknowledged too late to count. It may be in the log.
	ErrLate = errors.New("acknowledged too late")
	// ErrDamaged is wrapped when memory has what no log writes: in the table, or where an entry was.
	ErrDamaged = errors.New("the log is damaged")
)

// Bounds of Options.
const (
	MaxSegments = rdma.MaxRingBuffers
	MaxSources  = 1 << 12
)

// Options describe a log. The same go to each receiver of its segments. Zero values mean defaults.
type Options struct {
	Node int // in whose memory it is; the receiver runs beside it
	Ring int // the number of its ring
	// Base is where its memory begins, a multiple of rdma.Stride: a table, and the segments. Size says
	// how much it is.
	Base uint64
	// Segments are how many there are, and SegmentBytes how long each is, a multiple of rdma.Stride
	// and no less than the fabric's MTU; 4 MiB by default (section 3.2.2).
	Segments, SegmentBytes int
	// Ahead is how many segments are pushed at a time at most; 512 by default (section 4.3). Own is
	// how many it leaves free for logs of the node's own: see Log. While what makes room has none it
	// leaves Least free; Own by default.
	Ahead, Own, Least int
	// Sources are how many sources of entries there are, 64 by default: see SenderOptions.Source. So
	// many of them, the last ones, are urgent: they have leave for the reserve, too, which is there
	// for what makes room.
	Sources, Urgent int
	// Streams is rdma.RingPromises.Streams of the fabric, 1 by default: where there are several a
	// record of the table, and so Size, has floors for each.
	Streams int
	// Credit is how many bytes of the log a source has leave to append at a time, at most. No entry
	// takes more than half of it. It is 128 KiB by default, which is enough for the longest entry
	// there is; all sources' fits into the segments ahead, without two, or three of each stream, where
	// there are several, and without Reserve: segments that are kept from sources which need leave
	// (SenderOptions.Reserved).
	Credit, Reserve int
	// Remotes are how many remote logs there are, instead of a ring: see Remote. Lent is how many
	// segments each has at a time, at most.
	Remotes, Lent int
	// Secret is the log's. Without it no bytes, such as a value's, can be made to look like an entry.
	// It is as durable as the log.
	Secret uint64
}

func (o Options) withDefaults() Options {
	o.SegmentBytes, o.Ahead = cmp.Or(o.SegmentBytes, 4<<20), cmp.Or(o.Ahead, 512)
	o.Sources, o.Credit = cmp.Or(o.Sources, 64), cmp.Or(o.Credit, 128<<10)
	o.Streams, o.Least = cmp.Or(o.Streams, 1), cmp.Or(o.Least, o.Own)
	return o
}

// check returns what is wrong with o on a fabric.
func (o Options) check(p rdma.RingPromises) error {
	mtu := p.MTU
	switch {
	case o.Streams != max(1, p.Streams):
		return fmt.Errorf("a log of %d streams on a fabric of %d: %w", o.Streams, max(1, p.Streams), rdma.ErrAccess)
	case o.Segments < 1 || o.Segments > MaxSegments || o.Ahead < 1 || o.Own < 0 || o.Sources < 1 || o.Sources > MaxSources:
		return fmt.Errorf("a log of %d segments, %d ahead, of %d sources: want 1 to %d, at least 1, 1 to %d: %w",
			o.Segments, o.Ahead, o.Sources, MaxSegments, MaxSources, rdma.ErrAccess)
	case o.Base%rdma.Stride != 0 || o.SegmentBytes%rdma.Stride != 0 || o.SegmentBytes < mtu:
		return fmt.Errorf("a log at %#x with segments of %d bytes: want multiples of %d, and an MTU of %d: %w",
			o.Base, o.SegmentBytes, rdma.Stride, mtu, rdma.ErrAccess)
	}
	if o.Remotes > 0 {
		if o.Remotes > MaxSources || o.Lent < 2 {
			return fmt.Errorf("%d remote logs with %d segments each: want at most %d, and at least 2: %w", o.Remotes, o.Lent,
				MaxSources, rdma.ErrAccess)
		}
		return nil
	}
	begun := max(2, o.Streams) // when all streams are under way
	room := (min(o.Ahead, o.Segments-o.Own) - o.Reserve - o.begins(o.Streams) - begun) * o.usable(mtu)
	if o.Credit < rdma.Stride || o.Reserve < 0 || (o.Sources-o.Urgent)*o.Credit > room {
		return fmt.Errorf("a log with credit of %d bytes for %d sources: want at least %d, and all in %d of segments: %w",
			o.Credit, o.Sources-o.Urgent, rdma.Stride, room, rdma.ErrAccess)
	}
	if o.Urgent < 0 || o.Urgent > o.Sources || o.Urgent > 0 && o.Urgent*o.Credit > o.Reserve*o.usable(mtu) {
		return fmt.Errorf("a log with %d urgent sources of %d and credit of %d bytes for each: want all in a reserve of %d: %w",
			o.Urgent, o.Sources, o.Credit, o.Reserve*o.usable(mtu), rdma.ErrAccess)
	}
	return nil
}

// usable is how much entries take of a segment at least, when it is full: a block that does not fit
// its end is in the next.
func (o Options) usable(mtu int) int { return o.SegmentBytes - strides(mtu) + rdma.Stride }

// begins is how many segments streams may begin beside what they have leave for, when so many are
// open: one to fill and one ahead each, where there are several, or, of a stream that has both, one
// ahead. Of so many open ones, two of a stream at most, at least open - Streams streams have both.
func (o Options) begins(open int) int {
	if o.Streams == 1 {
		return 0
	}
	return 2*o.Streams - max(0, open-o.Streams)
}

// keys is how many streams of entries in the order of their stamps there are: those of each source.
func (o Options) keys() int { return o.Sources * o.Streams }

// key returns the number of a block's key.
func (o Options) key(l layout, h header) int { return int(h.source)*o.Streams + l.stream(h.length) }

// record is how long a segment's entry in the table is: its state, the floors of all keys, and
// their checksum.
func (o Options) record() uint64 { return uint64(strides(8 + 8*o.keys() + 8)) }

// credits is how long each of the two arrays of a word for each source is, with which the log
// begins.
func (o Options) credits() uint64 { return uint64(strides(8 * o.Sources)) }

func (o Options) grantAt(source int) rdma.Addr { return rdma.At(o.Node, o.Base+uint64(8*source)) }

func (o Options) spentAt(source int) rdma.Addr { return o.grantAt(source).Add(o.credits()) }

// doneAt is where the writer of a remote log says how many segments it is done with, below the
// term.
func (o Options) doneAt(log int) rdma.Addr {
	return rdma.At(o.Node, o.Base+2*o.credits()+uint64(8*log))
}

// beginAt is where the lender says that it has begun with a term, and below it in which stride the
// log's first segment goes on.
func (o Options) beginAt(log int) rdma.Addr { return o.doneAt(o.Remotes + log*(1+o.Lent)) }

// lentAt is where the n-th segment is named that a remote log was lent.
func (o Options) lentAt(log int, n uint64) rdma.Addr {
	return o.beginAt(log).Add(8 * (1 + n%uint64(max(1, o.Lent))))
}

// remotes is how long the words of remote logs are.
func (o Options) remotes() uint64 { return uint64(strides(8 * o.Remotes * (2 + o.Lent))) }

func (o Options) recordAt(segment int) rdma.Addr {
	return o.doneAt(0).Add(o.remotes() + uint64(segment)*o.record())
}

// lineBytes is what media of persistent memory write at a time. Segments begin with a line: else
// entries of half a line lie in two of them each, so that as many writers keep more lines open than
// modules combine.
const lineBytes = 256

func (o Options) segmentAt(segment int) rdma.Addr {
	first := (o.recordAt(o.Segments).Offset() + lineBytes - 1) / lineBytes * lineBytes
	return rdma.At(o.Node, first+uint64(segment)*uint64(o.SegmentBytes))
}

// Size returns how many bytes of the node's memory the log takes, wherever it begins. They are zero
// before its first use.
func (o Options) Size() uint64 {
	o = o.withDefaults()
	return 2*o.credits() + o.remotes() + lineBytes - rdma.Stride + uint64(o.Segments)*(o.record()+uint64(o.SegmentBytes))
}
