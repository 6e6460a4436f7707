package rowan

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rdma"
)

// Logs that others fill by WRITEs, instead of a ring: what Rowan-KV is measured against (section
// 6.1). Each is of one writer, and has segments of its own, which the Lender of their node lends
// it. The node's memory has words for each: how many segments the writer is done with; where the
// lender begins; and the last that it was lent. The writer WRITEs the first and READs the others in
// one trip.
//
// What is lent is lent for a term: at the end of it nothing is in flight, and the lender finds what
// there is in memory, whatever became of writers, or of the lender before it. In the next term both
// begin anew, and a log goes on in its segment behind what was found there.

// firstRemote is the owner of the first remote log's segments. Entries are sealed as those of own
// logs are: for the use of their segment, and for their place.
const firstRemote Owner = 1 << 15

// Received reports whether an owner's segments are filled by others than the workers of their node.
func (o Owner) Received() bool { return o == Control || o >= firstRemote }

// A word of a segment that is lent has its push above its index. In place of the next one's, noMore
// says that the lender had none to lend when it looked last, which tells a log that is full from a
// lender that is behind: no segment is of push 0.
const (
	indexBits = 24
	noMore    = 1
)

// Remote is the writer's end of a log in a node's memory. Its workers share it: it is safe for
// concurrent use.
type Remote struct {
	t    Table // of the node, for places in it; it has no segments
	log  int
	keep int

	mu       sync.Mutex
	term     uint64    // 0: nothing is lent
	begun    bool      // the lender has begun with it
	segments []filled  // lent ones that the writer is not done with, in the order in which they were lent
	now      int       // which of them is filled
	next     int       // where the next entry is in it, in bytes
	last     rdma.Addr // of the places that were taken
	lent     uint64    // how many were, so far
	push     uint64    // of the last
	done     uint64    // how many the writer is done with
	told     uint64    // and has said so
	wanted   bool      // there was no room since the last answer
	full     bool      // that was that there is no more
	asking   bool
	askedIn  uint64 // the term
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

// NewRemote returns the writer's end of a log, by its number, which has no segments before Begin.
// PUTs leave so many segments unused: see Place.
func NewRemote(o Options, log, keep int) *Remote {
	o = o.withDefaults()
	if log >= o.Remotes {
		panic(fmt.Sprintf("rowan: remote log %d of %d", log, o.Remotes))
	}
	return &Remote{t: Table{o: o}, log: log, keep: keep}
}

// Begin has the writer begin with a term, unless it has: what was lent in earlier ones it has no
// more. Nothing that was written in these is in flight. In term 0 nothing is lent, and the writer
// does not ask.
func (r *Remote) Begin(term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if term == r.term {
		return
	}
	r.term, r.begun, r.segments = term, false, r.segments[:0]
	r.now, r.next, r.lent, r.push, r.done, r.told = 0, 0, 0, 0, 0, 0
	r.wanted, r.full = false, false
}

// Place takes the next place for an entry with so much data, at once behind the last one in its
// segment. It is in flight there until Landed. What is not urgent leaves some segments for what is.
// The error wraps rdma.ErrFull when there is no room, and the lender had no more segments, and
// ErrAsked when it has not said that: Ask for more.
func (r *Remote) Place(length int, urgent bool) (Place, error) {
	n := strides(HeaderBytes + length)
	if n > r.t.o.SegmentBytes || length > (layout{mtu: logBlock}).part() {
		return Place{}, fmt.Errorf("write %d bytes to a log with segments of %d: %w", n, r.t.o.SegmentBytes,
			rdma.ErrMessageSize)
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
		return Place{}, fmt.Errorf("write to log %d of node %d, with %d segments left: %w", r.log, r.t.o.Node, ahead+1,
			err)
	}
	r.now, r.next = now, next+n
	r.segments[now].flying++
	s := r.segments[now].Segment
	r.finish()
	r.last = r.t.o.segmentAt(s.Index).Add(uint64(next))
	return Place{r.last, s}, nil
}

// Return gives a place back to which nothing was written. The next entry takes it, unless another
// worker has the place behind it: what is refused for want of room elsewhere, again and again,
// takes none here.
func (r *Remote) Return(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.At == r.last {
		r.next = int(p.At.Offset() - r.t.o.segmentAt(p.Index).Offset())
	}
	r.landed(p)
}

// Landed says that the entry at a place is in the node's memory, durably, and nothing is in flight
// there.
func (r *Remote) Landed(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.landed(p)
}

func (r *Remote) landed(p Place) {
	i := slices.IndexFunc(r.segments, func(s filled) bool { return s.Segment == p.Segment })
	if i < 0 {
		panic(fmt.Sprintf("rowan: an entry has landed at %s, in segment %+v, which the writer of log %d is done with",
			p.At,
			p.Segment, r.log))
	}
	r.segments[i].flying--
	r.finish()
}

// finish notes which segments the writer is done with: they are full, and nothing is in flight to
// them.
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

// Ask posts the question for more segments, which says what the writer is done with, if there is
// something to say or to ask for. Nil: there is not, or another worker has asked. The batch goes to
// Answered when it is finished.
func (r *Remote) Ask(ep rdma.Endpoint) (*rdma.Batch, error) {
	word, ok := r.ask()
	if !ok {
		return nil, nil
	}
	b := ep.Batch()
	b.Chain()
	b.WriteWord(r.t.o.doneAt(r.log), word)
	b.Read(r.t.o.beginAt(r.log), 8*(1+r.t.o.Lent))
	if err := ep.Post(b.As("ask for segments")); err != nil { // which may wait: no lock is held
		b.Release()
		return nil, fmt.Errorf("ask node %d for segments: %w", r.t.o.Node, err)
	}
	return b, nil
}

// ask returns what a question says; false: there is none to ask.
func (r *Remote) ask() (word uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking || r.term == 0 || r.lent > 0 && r.done == r.told && !r.wanted {
		return 0, false
	}
	r.asking, r.askedIn, r.wanted = true, r.term, false
	return r.term<<32 | r.done, true
}

// Answered takes the answer, and releases it. It reports whether that was of use: a question that
// failed, or came before the lender has begun with the term, is asked again, after a while.
func (r *Remote) Answered(b *rdma.Batch) (useful bool) {
	defer b.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if r.askedIn != r.term {
		return true // it was of another term
	}
	r.full = false
	if b.Err() != nil {
		r.wanted = true
		return false
	}
	// Words that were READ with the first one that says so may be of before: the lender clears them
	// ahead of it.
	if begin := b.Op(1).Word(0); !r.begun {
		r.wanted, r.begun = true, begin>>32 == r.term
		r.next = int(uint32(begin)) * rdma.Stride
		return r.begun
	}
	r.told = b.Op(0).Word(0) & (1<<32 - 1)
	for ; ; r.lent++ {
		word := b.Op(1).Word(1 + int(r.lent%uint64(r.t.o.Lent)))
		if word>>indexBits <= r.push { // of one that was lent before, or none
			r.full = word == noMore
			return r.full || r.lent > 0
		}
		r.push = word >> indexBits
		r.segments = append(r.segments, filled{Segment: Segment{int(word & (1<<indexBits - 1)), r.push}})
	}
}

// Lender lends the segments of a node to remote logs, and receives what these are filled with. It
// belongs to its worker, and stands where the Receiver of a ring does: its methods are those, and
// Begin.
type Lender struct {
	ep       rdma.Endpoint
	o        Options
	t        *Table
	logs     []lending
	behind   []int     // by segment: the entries up to there were digested
	waiting  []Segment // for Next
	freed    []Segment
	moved    bool // the last Step was told of segments, or lent some
	starving bool // a log has one segment, or none, and there was no other for it
	words    []byte
	scratch  []byte // a segment's bytes
}

// lending is what the lender knows of a log.
type lending struct {
	term     uint64    // 0: nothing more is lent
	segments []Segment // that the writer is not done with, in order
	count    uint64    // how many were lent so far, in the term
	refused  uint64    // that and one more when it was told that there are none
	settled  uint64    // no stamp that is not above it is in its segments, behind what was digested
}

// Lender returns the lender of a table that was just opened. What an earlier lender had lent is
// settled in the first term. The worker runs beside the node.
func (t *Table) Lender(ep rdma.Endpoint) (*Lender, error) {
	l := &Lender{
		ep: ep, o: t.o, t: t, logs: make([]lending, t.o.Remotes), behind: make([]int, t.o.Segments),
		words: make([]byte, 8*t.o.Remotes), scratch: make([]byte, t.o.SegmentBytes),
	}
	for _, i := range t.inPushOrder(func(s *segment) bool { return s.state == using && s.owner.Received() }) {
		log := int(t.segments[i].owner) - int(firstRemote)
		if log < 0 || log >= len(l.logs) {
			return nil, fmt.Errorf("segment %d is lent to log %d, of %d: %w", i, log, len(l.logs), ErrDamaged)
		}
		l.logs[log].segments = append(l.logs[log].segments, Segment{i, t.segments[i].push})
	}
	return l, nil
}

// Recover calls f for the entries in segments that writers were done with, or had lost, when an
// earlier lender ended. They are the caller's until Free, which is called for each.
func (l *Lender) Recover(f func(Segment, *Entry) error) (all []Segment, err error) {
	full := func(s *segment) bool { return (s.state == used || s.state == committed) && s.owner.Received() }
	for _, i := range l.t.inPushOrder(full) {
		s := Segment{i, l.t.segments[i].push}
		if err := l.Digest(s, func(e *Entry) error { return f(s, e) }); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Settle calls f for entries in segments that are lent, up to a stamp of each log up to which all
// are at rest. These do not come again. It follows Digest of all that Next returns. The stamp is
// below the term for which they are lent, or the writer waits for each entry before the next one:
// then all are in the first segments.
func (l *Lender) Settle(upTo func(log uint16) uint64, f func(Segment, *Entry) error) error {
	for log := range l.logs {
		g, stamp := &l.logs[log], upTo(uint16(log))
		if stamp <= g.settled {
			continue
		}
		for _, s := range g.segments {
			if err := l.scan(s, stamp, func(e *Entry) error { return f(s, e) }); err != nil {
				return err
			}
			if stamp>>32 == g.term && l.behind[s.Index] == 0 {
				break
			}
		}
		g.settled = stamp
	}
	return nil
}

// scan calls f for the entries of a segment that were not digested, up to a stamp. A log's writer
// takes places in their order, and the stamps of an earlier term are ahead of those of a later one.
func (l *Lender) scan(s Segment, upTo uint64, f func(*Entry) error) error {
	return l.t.Scan(l.ep, s, l.scratch, func(e *Entry) error {
		off := int(e.Blocks[0].Offset() - l.t.Begin(s).Offset())
		if off < l.behind[s.Index] || e.Stamp > upTo {
			return nil
		}
		l.behind[s.Index] = off + strides(Size(len(e.Data)))
		return f(e)
	})
}

// Left is a segment to which no log adds anything, though it may have room behind its last entry.
type Left struct {
	Segment
	Behind rdma.Addr
}

// Begin begins with a term of a log; 0: it has no writer. All that was written there in earlier
// ones is at rest, and was settled. The log goes on behind that, in the segment where its last
// entry is. Those ahead of it, or all of a log without a writer, are the caller's until Free.
func (l *Lender) Begin(log int, term uint64) (left []Left, err error) {
	g := &l.logs[log]
	goesOn := len(g.segments)
	if term > 0 {
		goesOn = 0
		for i, s := range g.segments {
			if l.behind[s.Index] > 0 {
				goesOn = i
			}
		}
	}
	var done []int
	for _, s := range g.segments[:goesOn] {
		done, left = append(done, s.Index), append(left, Left{s, l.t.Begin(s).Add(uint64(l.behind[s.Index]))})
	}
	g.segments = g.segments[goesOn:]
	g.term, g.count, g.refused = term, uint64(len(g.segments)), 0
	g.settled = min(g.settled, term<<32-1) // a writer that was started anew adds what others repeat
	first := 0
	if len(g.segments) > 0 {
		first = l.behind[g.segments[0].Index]
	}
	b := l.ep.Batch()
	defer b.Release()
	// an earlier writer's, of the same term; this one asks again when the lender has begun
	b.WriteWord(l.o.doneAt(log), 0)
	for n := range l.o.Lent {
		word := uint64(0)
		if n < len(g.segments) {
			word = g.segments[n].Push<<indexBits | uint64(g.segments[n].Index)
		}
		b.WriteWord(l.o.lentAt(log, uint64(n)), word)
	}
	if err := l.t.setStates(l.ep, "mark used", done, used); err != nil {
		return nil, err
	}
	if err := l.t.persist(l.ep, b, "lend again"); err != nil {
		return nil, err
	}
	begin := l.ep.Batch()
	defer begin.Release()
	begin.WriteWord(l.o.beginAt(log), term<<32|uint64(first/rdma.Stride))
	return left, l.t.persist(l.ep, begin, "begin to lend")
}

// Step finds segments that writers are done with, frees those given back, and lends others, as long
// as Options.Own stay free: to each log that has begun with a term up to Options.Lent.
func (l *Lender) Step() error {
	if err := read(l.ep, l.words, l.o.doneAt(0)); err != nil {
		return err
	}
	var done []int
	for log := range l.logs {
		g := &l.logs[log]
		for n, ok := l.done(log); ok && g.count-uint64(len(g.segments)) < n; {
			s := g.segments[0]
			g.segments = slices.Delete(g.segments, 0, 1)
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

// done returns how many segments a log's writer is done with, of those that it was lent in the
// term; false: it has none.
func (l *Lender) done(log int) (n uint64, ok bool) {
	word, term := binary.LittleEndian.Uint64(l.words[8*log:]), l.logs[log].term
	return word & (1<<32 - 1), term > 0 && word>>32 == term
}

// lend lends segments, first to the logs that have the fewest. Each is marked before its writer
// knows of it, so whatever happens what has entries is marked.
func (l *Lender) lend() error {
	var taken []int
	b := l.ep.Batch()
	defer b.Release()
	keep := l.o.Own
	if l.starving {
		keep = min(keep, l.o.Least)
	}
	l.starving = false
	for log, ok := l.neediest(); ok; log, ok = l.neediest() {
		g := &l.logs[log]
		list := l.t.take(firstRemote+Owner(log), 1, keep)
		if len(list) == 0 {
			l.starving = len(g.segments) < 2
			break
		}
		s := Segment{list[0], l.t.segments[list[0]].push}
		taken, l.behind[s.Index] = append(taken, s.Index), 0
		b.WriteWord(l.o.lentAt(log, g.count), s.Push<<indexBits|uint64(s.Index))
		g.segments = append(g.segments, s)
		g.count++
	}
	l.moved = l.moved || len(taken) > 0
	for log := range l.logs {
		if g := &l.logs[log]; l.wants(log) && g.refused != g.count+1 {
			g.refused = g.count + 1
			b.WriteWord(l.o.lentAt(log, g.count), noMore)
		}
	}
	if err := l.t.setStates(l.ep, "mark using", taken, using); err != nil {
		return err
	}
	return l.t.persist(l.ep, b, "lend")
}

// neediest returns the log with the fewest segments of those that have a writer; false: each has
// all that it may.
func (l *Lender) neediest() (log int, ok bool) {
	for i := range l.logs {
		if l.wants(i) && (!ok || len(l.logs[i].segments) < len(l.logs[log].segments)) {
			log, ok = i, true
		}
	}
	return log, ok
}

// Moved reports whether the last Step found that writers are done with segments, or have fewer than
// they may.
func (l *Lender) Moved() bool { return l.moved }

// Starving reports whether the last Step found a log that fills its last segment, and none to lend
// it.
func (l *Lender) Starving() bool { return l.starving }

// Counts reports whether nothing lands once its writer was fenced off: see rdma.RingPromises.
func (l *Lender) Counts() bool { return l.t.p.Counts }

// wants reports whether a log has a writer, and fewer segments than it may.
func (l *Lender) wants(log int) bool {
	_, ok := l.done(log)
	return ok && len(l.logs[log].segments) < l.o.Lent
}

// Next returns the next segment that a writer is done with, of each log in the order in which they
// were lent.
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
	return l.scan(s, math.MaxUint64, f)
}

// Free gives a segment back that was digested. A later Step frees it.
func (l *Lender) Free(s Segment) { l.freed = append(l.freed, s) }

// Close ends the lender. Writers keep what they were lent.
func (l *Lender) Close() error { return nil }
