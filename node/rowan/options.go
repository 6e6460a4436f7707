package rowan

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// The times of section 4.3, for fabrics that do not count verbs in flight. A sender counts an
// append as acknowledged only if it completed within AckWithin. A full segment is settled
// SettleAfter after it was seen to be full. So each acknowledged entry lies in its segment before
// the segment is settled. This relies on the fabric: no verb lands later than SettleAfter.
const (
	AckWithin   = time.Millisecond
	SettleAfter = 2 * time.Millisecond
)

// patience bounds verbs at the worker's own node. The worker cannot go on without them.
const patience = 10 * time.Second

// Errors that callers branch on, beside those of package rdma.
var (
	// ErrLate is wrapped when an append was acknowledged too late to count (see AckWithin). The
	// entry may be in the log.
	ErrLate = errors.New("acknowledged too late")
	// ErrDamaged is wrapped when memory holds what no log writes: in the table, or where an entry
	// was.
	ErrDamaged = errors.New("the log is damaged")
)

// Bounds of Options.
const (
	MaxSegments = rdma.MaxRingBuffers
	MaxSources  = 1 << 12
)

// Options describe a log. They are the same for each worker that uses it, for as long as its memory
// lives. Zero values mean defaults.
type Options struct {
	// Node is the node that has the log in its memory; the receiver runs beside it.
	Node int
	// Ring is the number of the log's ring at the node.
	Ring int
	// Base is the offset of the log in the node's memory, a multiple of rdma.Stride. A table comes
	// first, then the segments. Size returns the length of both.
	Base uint64
	// Segments is their number, and SegmentBytes the length of each: a multiple of rdma.Stride, and
	// at least the fabric's MTU. The default is 4 MiB (section 3.2.2).
	Segments, SegmentBytes int
	// Ahead bounds how many segments are in the ring at a time; the default is 512 (section 4.3).
	// Own is how many segments the receiver leaves free for the node's own logs: see Log. While an
	// urgent source finds no room the receiver leaves only Least free; the default is Own.
	Ahead, Own, Least int
	// Sources is the number of sources of entries, 64 by default: see SenderOptions.Source. The
	// last Urgent of them may also use the reserve: they append what makes room, such as deletes.
	Sources, Urgent int
	// Streams must be the fabric's rdma.RingPromises.Streams; the default is 1. With several
	// streams each record of the table has floors for each of them, so Size depends on it.
	Streams int
	// Credit bounds the leave of a source, in bytes. No entry may take more than half of it. The
	// default of 128 KiB suffices for the longest entry. Reserve is a number of segments that is
	// kept from sources that are not urgent and need leave (SenderOptions.Reserved). check verifies
	// that the credit of all sources fits into the segments ahead, without the reserve and without
	// those that streams may begin.
	Credit, Reserve int
	// Remotes is the number of remote logs, which the log has instead of a ring: see Remote. Lent
	// bounds how many segments each of them has at a time.
	Remotes, Lent int
	// Secret keys all checksums. Without it no bytes, such as those of a value, can be made to look
	// like an entry. The caller keeps it as long as the log lives.
	Secret uint64
}

func (o Options) withDefaults() Options {
	o.SegmentBytes, o.Ahead = cmp.Or(o.SegmentBytes, 4<<20), cmp.Or(o.Ahead, 512)
	o.Sources, o.Credit = cmp.Or(o.Sources, 64), cmp.Or(o.Credit, 128<<10)
	o.Streams, o.Least = cmp.Or(o.Streams, 1), cmp.Or(o.Least, o.Own)
	return o
}

// check returns an error that wraps rdma.ErrAccess if o does not fit together, or not to the
// fabric.
func (o Options) check(p rdma.RingPromises) error {
	mtu := p.MTU
	switch {
	case o.Streams != max(1, p.Streams):
		return fmt.Errorf("a log of %d streams on a fabric of %d: %w", o.Streams, max(1, p.Streams), rdma.ErrAccess)
	case o.Segments < 1 || o.Segments > MaxSegments || o.Ahead < 1 || o.Own < 0 || o.Sources < 1 ||
		o.Sources > MaxSources:
		return fmt.Errorf("a log of %d segments, %d ahead, of %d sources: want 1 to %d, at least 1, 1 to %d: %w",
			o.Segments, o.Ahead, o.Sources, MaxSegments, MaxSources, rdma.ErrAccess)
	case o.Base%rdma.Stride != 0 || o.SegmentBytes%rdma.Stride != 0 || o.SegmentBytes < mtu:
		return fmt.Errorf("a log at %#x with segments of %d bytes: want multiples of %d, and an MTU of %d: %w",
			o.Base, o.SegmentBytes, rdma.Stride, mtu, rdma.ErrAccess)
	}
	if o.Remotes > 0 {
		if o.Remotes > MaxSources || o.Lent < 2 {
			return fmt.Errorf("%d remote logs with %d segments each: want at most %d, and at least 2: %w", o.Remotes,
				o.Lent,
				MaxSources, rdma.ErrAccess)
		}
		return nil
	}
	// Segments that are begun, and no longer count as room, when all streams are in use.
	begun := max(2, o.Streams)
	room := (min(o.Ahead, o.Segments-o.Own) - o.Reserve - o.begins(o.Streams) - begun) * o.usable(mtu)
	if o.Credit < rdma.Stride || o.Reserve < 0 || (o.Sources-o.Urgent)*o.Credit > room {
		return fmt.Errorf(
			"a log with credit of %d bytes for %d sources: want at least %d, and all in %d of segments: %w",
			o.Credit, o.Sources-o.Urgent, rdma.Stride, room, rdma.ErrAccess)
	}
	if o.Urgent < 0 || o.Urgent > o.Sources || o.Urgent > 0 && o.Urgent*o.Credit > o.Reserve*o.usable(mtu) {
		return fmt.Errorf(
			"a log with %d urgent sources of %d and credit of %d bytes for each: want all in a reserve of %d: %w",
			o.Urgent, o.Sources, o.Credit, o.Reserve*o.usable(mtu), rdma.ErrAccess)
	}
	return nil
}

// usable returns how many bytes entries take of a full segment at least. A block that does not fit
// into the rest of a segment lands in the next one.
func (o Options) usable(mtu int) int { return o.SegmentBytes - strides(mtu) + rdma.Stride }

// begins returns how many segments the streams may begin beyond those that leave was given for,
// when open segments are begun and not settled. With one stream there are none. With several, each
// stream has up to two: one to fill and one ahead. A stream that has both open begins none; at most
// two are open in a stream, so at least open - Streams streams have both.
func (o Options) begins(open int) int {
	if o.Streams == 1 {
		return 0
	}
	return 2*o.Streams - max(0, open-o.Streams)
}

// keys returns the number of keys: the sources in each stream. Within a key entries land in the
// order of their stamps.
func (o Options) keys() int { return o.Sources * o.Streams }

// key returns the number of the key that a block belongs to.
func (o Options) key(l layout, h header) int { return int(h.source)*o.Streams + l.stream(h.length) }

// record returns the length of a segment's record in the table: its state, the floors of all keys,
// and their checksum.
func (o Options) record() uint64 { return uint64(strides(8 + 8*o.keys() + 8)) }

// credits returns the length of each of the two arrays with one word a source that the log begins
// with.
func (o Options) credits() uint64 { return uint64(strides(8 * o.Sources)) }

// grantAt returns the address of the word with what a source was granted. The receiver writes it.
func (o Options) grantAt(source int) rdma.Addr { return rdma.At(o.Node, o.Base+uint64(8*source)) }

// spentAt returns the address of the word with what a source has spent. The source writes it.
func (o Options) spentAt(source int) rdma.Addr { return o.grantAt(source).Add(o.credits()) }

// doneAt returns the address of the word in which the writer of a remote log says how many segments
// it has finished: the count in the lower half, its term in the upper half. The writer writes it;
// the lender clears it when a term begins.
func (o Options) doneAt(log int) rdma.Addr {
	return rdma.At(o.Node, o.Base+2*o.credits()+uint64(8*log))
}

// beginAt returns the address of the word in which the lender says that it has begun a term: the
// term in the upper half, and below it the stride at which the log goes on in its first segment.
func (o Options) beginAt(log int) rdma.Addr { return o.doneAt(o.Remotes + log*(1+o.Lent)) }

// lentAt returns the address of the word that names the n-th segment that a remote log was lent.
// There are Options.Lent words, used in turn.
func (o Options) lentAt(log int, n uint64) rdma.Addr {
	return o.beginAt(log).Add(8 * (1 + n%uint64(max(1, o.Lent))))
}

// remotes returns the length of the words of all remote logs.
func (o Options) remotes() uint64 { return uint64(strides(8 * o.Remotes * (2 + o.Lent))) }

// recordAt returns the address of a segment's record in the table.
func (o Options) recordAt(segment int) rdma.Addr {
	return o.doneAt(0).Add(o.remotes() + uint64(segment)*o.record())
}

// lineBytes is the unit in which persistent memory writes its media. Segments begin at such a line.
// Otherwise an entry of half a line could lie in two lines, and as many writers would keep more
// lines open than the device can combine.
const lineBytes = 256

// segmentAt returns the address of a segment.
func (o Options) segmentAt(segment int) rdma.Addr {
	first := (o.recordAt(o.Segments).Offset() + lineBytes - 1) / lineBytes * lineBytes
	return rdma.At(o.Node, first+uint64(segment)*uint64(o.SegmentBytes))
}

// Size returns how many bytes of the node's memory the log takes, for any Base. All of them must be
// zero before the first use.
func (o Options) Size() uint64 {
	o = o.withDefaults()
	return 2*o.credits() + o.remotes() + lineBytes - rdma.Stride +
		uint64(o.Segments)*(o.record()+uint64(o.SegmentBytes))
}
