package rowan

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rdma"
)

// Logs that others fill by WRITEs, instead of a ring: what Rowan-KV is measured against (section 6.1). Each is of one
// writer, and has segments of its own, which the Lender of their node lends it. The node's memory has words for each:
// how many segments the writer is done with, and the last that it was lent. The writer WRITEs the first and READs the
// others in one trip.

// firstRemote is the owner of the first remote log's segments. Entries are sealed as those of own logs are: for the use
// of their segment, and for their place.
const firstRemote Owner = 1 << 15

// Received reports whether an owner's segments are filled by others than the workers of their node.
func (o Owner) Received() bool { return o == Control || o >= firstRemote }

// A word of a segment that is lent has its push above its index. In place of the next one's, noMore says that the
// lender had none to lend when it looked last, which tells a log that is full from a lender that is behind: no segment
// is of push 0.
const (
	indexBits = 24
	noMore    = 1
)

// Remote is the writer's end of a log in a node's memory. Its workers share it: it is safe for concurrent use.
type Remote struct {
	t    Table // of the node, for places in it; it has no segments
	log  int
	keep int

	mu       sync.Mutex
	segments []filled // lent ones that the writer is not done with, in the order in which they were lent
	now      int      // which of them is filled
	next     int      // where the next entry is in it, in bytes
	lent     uint64   // how many were, so far
	push     uint64   // of the last
	done     uint64   // how many the writer is done with
	told     uint64   // and has said so
	wanted   bool     // there was no room since the last answer
	full     bool     // that was that there is no more
	asking   bool
}

// filled is a segment with entries in flight to it.
type filled struct {
	Segment
	flying int
}

// Place is where an entry of a remote log is.
type Place struct {
	At rdma.Addr
	Segment
}

// NewRemote returns the writer's end of a log, by its number. It has no other writer, now or before. PUTs leave so many
// segments unused: see Place.
func NewRemote(o Options, log, keep int) *Remote {
	o = o.withDefaults()
	if log >= o.Remotes {
		panic(fmt.Sprintf("rowan: remote log %d of %d", log, o.Remotes))
	}
	return &Remote{t: Table{o: o}, log: log, keep: keep}
}

// Place takes the next place for an entry with so much data, at once behind the last one in its segment. It is in flight
// there until Landed. What is not urgent leaves some segments for what is. The error wraps rdma.ErrFull when there is
// no room, and the lender had no more segments, and ErrAsked when it has not said that: Ask for more.
func (r *Remote) Place(length int, urgent bool) (Place, error) {
	n := strides(HeaderBytes + length)
	if n > r.t.o.SegmentBytes || length > (layout{mtu: logBlock}).part() {
		return Place{}, fmt.Errorf("write %d bytes to a log with segments of %d: %w", n, r.t.o.SegmentBytes, rdma.ErrMessageSize)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, next := r.now, r.next
	if now < len(r.segments) && next+n > r.t.o.SegmentBytes {
		now, next = now+1, 0
	}
	ahead, keep := len(r.segments)-now-1, r.keep
	if urgent {
		keep = 0
	}
	if ahead < keep {
		r.wanted = true
		err := ErrAsked
		if r.full {
			err = rdma.ErrFull
		}
		return Place{}, fmt.Errorf("write to log %d of node %d, with %d segments left: %w", r.log, r.t.o.Node, ahead+1, err)
	}
	r.now, r.next = now, next+n
	r.segments[now].flying++
	s := r.segments[now].Segment
	r.finish()
	return Place{r.t.o.segmentAt(s.Index).Add(uint64(next)), s}, nil
}

// Return gives a place back to which nothing was written.
func (r *Remote) Return(p Place) { r.Landed(p) }

// Landed says that the entry at a place is in the node's memory, durably, and nothing is in flight there.
func (r *Remote) Landed(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.segments, func(s filled) bool { return s.Segment == p.Segment })
	if i < 0 {
		panic(fmt.Sprintf("rowan: an entry has landed at %s, in segment %+v, which the writer of log %d is done with", p.At,
			p.Segment, r.log))
	}
	r.segments[i].flying--
	r.finish()
}

// finish notes which segments the writer is done with: they are full, and nothing is in flight to them.
func (r *Remote) finish() {
	for r.now > 0 && r.segments[0].flying == 0 {
		r.segments = slices.Delete(r.segments, 0, 1)
		r.now--
		r.done++
	}
}

// Size returns how long an entry with so much data is.
func Size(length int) int { return HeaderBytes + length }

// Seal writes the entry of a term at a place to p, which has its size.
func (r *Remote) Seal(at Place, kind uint8, term uint32, data, p []byte) {
	r.t.seal(at, firstRemote+Owner(r.log), kind, term, data, p)
}

// seal writes the entry of an own log to p.
func (t *Table) seal(at Place, owner Owner, kind uint8, term uint32, data, p []byte) {
	off := at.At.Offset() - t.o.segmentAt(at.Index).Offset()
	h := header{kind: kind, source: uint16(owner), length: len(data), stamp: ownStamp(term, off)}
	t.logLayout(at.Push).seal(p, h, data)
}

// Room returns how many bytes entries of up to so many may take for sure.
func (r *Remote) Room(most int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.segments) == 0 {
		return 0
	}
	waste := strides(most) - rdma.Stride // at the end of each segment
	return max(0, r.t.o.SegmentBytes-r.next-waste) + (len(r.segments)-r.now-1)*(r.t.o.SegmentBytes-waste)
}

// Full reports whether the lender had no more segments when it looked last, as far as it was asked.
func (r *Remote) Full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// Want has Ask ask for more.
func (r *Remote) Want() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = true
}

// Ask posts the question for more segments, which says what the writer is done with, if there is something to say or to
// ask for. Nil: there is not, or another worker has asked. The batch goes to Answered when it is finished.
func (r *Remote) Ask(ep rdma.Endpoint) (*rdma.Batch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking || r.lent > 0 && r.done == r.told && !r.wanted {
		return nil, nil
	}
	b := ep.Batch()
	b.Chain()
	b.WriteWord(r.t.o.doneAt(r.log), r.done+1) // 0: the log has no writer
	b.Read(r.t.o.lentAt(r.log, 0), 8*r.t.o.Lent)
	if err := ep.Post(b.As("ask for segments")); err != nil {
		b.Release()
		return nil, fmt.Errorf("ask node %d for segments: %w", r.t.o.Node, err)
	}
	r.asking, r.wanted = true, false
	return b, nil
}

// Answered takes the answer, and releases it. A question that failed is asked again.
func (r *Remote) Answered(b *rdma.Batch) {
	defer b.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking, r.full = false, false
	if b.Err() != nil {
		r.wanted = true
		return
	}
	r.told = b.Op(0).Word(0) - 1
	for ; ; r.lent++ {
		word := b.Op(1).Word(int(r.lent % uint64(r.t.o.Lent)))
		if word>>indexBits <= r.push { // of one that was lent before, or none
			r.full = word == noMore
			return
		}
		r.push = word >> indexBits
		r.segments = append(r.segments, filled{Segment: Segment{int(word & (1<<indexBits - 1)), r.push}})
	}
}

// Lender lends the segments of a node to remote logs, and receives what these are filled with. It belongs to its worker,
// and stands where the Receiver of a ring does: its methods are those.
type Lender struct {
	ep      rdma.Endpoint
	o       Options
	t       *Table
	lent    [][]Segment // by log, those that the writer is not done with, in order
	count   []uint64    // by log, how many were lent so far
	refused []uint64    // by log, that and one more when it was told that there are none
	waiting []Segment   // for Next
	freed   []Segment
	moved   bool // the last Step was told of segments, or lent some
	words   []byte
	scratch []byte // a segment's bytes
}

// Lender returns the lender of a table that was just opened, whose node's memory was all zero. The worker runs beside
// the node.
func (t *Table) Lender(ep rdma.Endpoint) *Lender {
	return &Lender{
		ep: ep, o: t.o, t: t, lent: make([][]Segment, t.o.Remotes), count: make([]uint64, t.o.Remotes),
		refused: make([]uint64, t.o.Remotes), words: make([]byte, 8*t.o.Remotes), scratch: make([]byte, t.o.SegmentBytes),
	}
}

// Step finds segments that writers are done with, frees those given back, and lends others, as long as Options.Own stay
// free: to each log up to Options.Lent.
func (l *Lender) Step() error {
	if err := read(l.ep, l.words, l.o.doneAt(0)); err != nil {
		return err
	}
	var done []int
	for log := range l.lent {
		word := binary.LittleEndian.Uint64(l.words[8*log:])
		for word > 0 && l.count[log]-uint64(len(l.lent[log])) < word-1 {
			s := l.lent[log][0]
			l.lent[log] = slices.Delete(l.lent[log], 0, 1)
			done, l.waiting = append(done, s.Index), append(l.waiting, s)
		}
	}
	if err := l.t.setStates(l.ep, "mark used", done, used); err != nil {
		return err
	}
	if err := l.t.Release(l.ep, l.freed); err != nil {
		return err
	}
	l.freed, l.moved = l.freed[:0], len(done) > 0
	return l.lend()
}

// lend lends segments, first to the logs that have the fewest. Each is marked before its writer knows of it, so whatever
// happens what has entries is marked.
func (l *Lender) lend() error {
	var taken []int
	b := l.ep.Batch()
	defer b.Release()
	for log, ok := l.neediest(); ok; log, ok = l.neediest() {
		list := l.t.take(firstRemote+Owner(log), 1, l.o.Own)
		if len(list) == 0 {
			break
		}
		s := Segment{list[0], l.t.segments[list[0]].push}
		taken = append(taken, s.Index)
		b.WriteWord(l.o.lentAt(log, l.count[log]), s.Push<<indexBits|uint64(s.Index))
		l.lent[log] = append(l.lent[log], s)
		l.count[log]++
	}
	l.moved = l.moved || len(taken) > 0
	for log := range l.lent {
		if l.wants(log) && l.refused[log] != l.count[log]+1 {
			l.refused[log] = l.count[log] + 1
			b.WriteWord(l.o.lentAt(log, l.count[log]), noMore)
		}
	}
	if err := l.t.setStates(l.ep, "mark using", taken, using); err != nil {
		return err
	}
	return l.t.persist(l.ep, b, "lend")
}

// neediest returns the log with the fewest segments of those that have a writer; false: each has all that it may.
func (l *Lender) neediest() (log int, ok bool) {
	for i := range l.lent {
		if l.wants(i) && (!ok || len(l.lent[i]) < len(l.lent[log])) {
			log, ok = i, true
		}
	}
	return log, ok
}

// Moved reports whether the last Step found that writers are done with segments, or have fewer than they may.
func (l *Lender) Moved() bool { return l.moved }

// wants reports whether a log has a writer, and fewer segments than it may.
func (l *Lender) wants(log int) bool {
	return len(l.lent[log]) < l.o.Lent && binary.LittleEndian.Uint64(l.words[8*log:]) > 0
}

// Next returns the next segment that a writer is done with, of each log in the order in which they were lent.
func (l *Lender) Next() (Segment, bool) {
	if len(l.waiting) == 0 {
		return Segment{}, false
	}
	s := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	return s, true
}

// Digest calls f for the entries in a segment, in the order of their places.
func (l *Lender) Digest(s Segment, f func(*Entry) error) error {
	return l.t.Scan(l.ep, s, l.scratch, f)
}

// Free gives a segment back that was digested. A later Step frees it.
func (l *Lender) Free(s Segment) { l.freed = append(l.freed, s) }

// Close ends the lender. Writers keep what they were lent.
func (l *Lender) Close() error { return nil }
