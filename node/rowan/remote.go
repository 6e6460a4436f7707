package rowan

import (
	"fmt"
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rdma"
)

// Remote logs are logs that other servers fill by WRITEs, instead of APPENDs to a ring. Rowan-KV is
// compared with stores that use them (section 6.1). Each has one writer, and segments of its own,
// which the Lender of its node lends to it. For each log the node's memory has some words: how many
// segments the writer has finished (written by the writer), where the lender begins a term, and
// which segments were lent last (both written by the lender). A writer WRITEs the first and READs
// the others in one trip.
//
// Segments are lent for a term. At the end of a term nothing is in flight. So the lender finds in
// the segments themselves what was written, whatever became of the writer, or of an earlier lender.
// In the next term both ends begin anew, and agree on nothing but what is in memory. A log goes on
// in the segment with its last entry.

// firstRemote is the owner of the segments of the first remote log. Entries are sealed as in own
// logs: for the use of their segment, and for their place. So stale entries do not verify.
const firstRemote Owner = 1 << 15

// Received reports whether an owner's segments are filled by other servers.
func (o Owner) Received() bool { return o == Control || o >= firstRemote }

// The word that names a lent segment has its push above its index. noMore in place of the next word
// says that the lender had no segment to lend when it looked last. It tells a full log from a slow
// lender. No segment has push 0, so noMore names none.
const (
	indexBits = 24
	noMore    = 1
)

// Remote is the writer's end of a remote log. The workers of a server may share it: it is safe for
// concurrent use.
type Remote struct {
	t   Table // of the log's node, for places only; it has no segments
	log int
	// Segments that entries which are not urgent leave unused: see Place.
	keep int

	// mu guards the fields below. It is held over no wait.
	mu   sync.Mutex
	term uint64 // 0: nothing is lent
	// The lender has begun the term.
	begun bool
	// Lent segments that the writer has not finished, in the order in which they were lent. Those
	// ahead of now are full, and have entries in flight or are behind one that has. Those behind it
	// are unused.
	segments []filled
	// The segment that is filled, by its index in segments, and the offset of the next entry in it.
	now  int
	next int
	// The last place that was taken.
	last rdma.Addr
	// How many segments were lent in the term, and the push of the last. Pushes rise, which
	// distinguishes a new word from an old one.
	lent uint64
	push uint64
	// How many segments the writer has finished in the term, and how many of these the lender was
	// told.
	done uint64
	told uint64
	// There was no room since the last answer, so Ask has to ask.
	wanted bool
	// The last answer said that the lender has no more.
	full bool
	// A question is in flight, of the term askedIn.
	asking  bool
	askedIn uint64
}

// filled is a lent segment, with the number of entries in flight to it.
type filled struct {
	Segment
	flying int
}

// Place is the place of an entry in a remote log.
type Place struct {
	At rdma.Addr
	Segment
}

// NewRemote returns the writer's end of a log, given its number. It has no segments before Begin.
// Entries that are not urgent leave keep segments unused: see Place.
func NewRemote(o Options, log, keep int) *Remote {
	o = o.withDefaults()
	if log >= o.Remotes {
		panic(fmt.Sprintf("rowan: remote log %d of %d", log, o.Remotes))
	}
	return &Remote{t: Table{o: o}, log: log, keep: keep}
}

// Begin starts a term, unless it has begun: what was lent in earlier terms does not belong to the
// writer any more. The caller knows that nothing of the writer is in flight. In term 0 nothing is
// lent, and the writer does not ask.
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

// Place takes the place of the next entry with length bytes of data, behind the last one. The entry
// counts as in flight until Landed or Return. Entries that are not urgent leave some segments to
// urgent ones. The error wraps rdma.ErrFull when there is no room and the lender said that it has
// no more segments, and ErrAsked when it has not said so: then the caller calls Ask.
//
// A place that stays empty, since its WRITE failed or the writer crashed, is a gap. Digest and
// Settle skip it; Ahead stops there.
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

// Return gives back a place to which nothing was written. The next entry takes it, unless another
// worker has taken the place behind it. So an entry that is refused again and again for want of
// room elsewhere uses up no space here.
func (r *Remote) Return(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.At == r.last {
		r.next = int(p.At.Offset() - r.t.o.segmentAt(p.Index).Offset())
	}
	r.landed(p)
}

// Landed says that the entry at a place is durable, and that nothing is in flight to the place.
func (r *Remote) Landed(p Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.landed(p)
}

// landed counts an entry in flight less. The caller holds mu.
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

// finish notes which segments the writer has finished: they are full, and nothing is in flight to
// them. Only such segments are digested, so an entry is never missed. The caller holds mu.
func (r *Remote) finish() {
	for r.now > 0 && r.segments[0].flying == 0 {
		r.segments = slices.Delete(r.segments, 0, 1)
		r.now--
		r.done++
	}
}

// Size returns the length of an entry with length bytes of data.
func Size(length int) int { return HeaderBytes + length }

// Seal writes an entry of a term for a place to p, which the caller owns and which has Size bytes.
func (r *Remote) Seal(at Place, kind uint8, term uint32, data, p []byte) {
	r.t.seal(at, firstRemote+Owner(r.log), kind, term, data, p)
}

// seal writes an entry for a place to p, in a log with the owner.
func (t *Table) seal(at Place, owner Owner, kind uint8, term uint32, data, p []byte) {
	off := at.At.Offset() - t.o.segmentAt(at.Index).Offset()
	h := header{kind: kind, source: uint16(owner), length: len(data), stamp: ownStamp(term, off)}
	t.logLayout(at.Push).seal(p, h, data)
}

// Room returns how many bytes are certain to fit, in entries of up to most bytes each.
func (r *Remote) Room(most int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.segments) == 0 {
		return 0
	}
	waste := strides(most) - rdma.Stride // at the end of each segment
	return max(0, r.t.o.SegmentBytes-r.next-waste) + (len(r.segments)-r.now-1)*(r.t.o.SegmentBytes-waste)
}

// Full reports whether the last answer said that the lender has no more segments.
func (r *Remote) Full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// Want makes the next Ask ask for more segments.
func (r *Remote) Want() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = true
}

// Ask posts a question: it tells the lender what the writer has finished, and reads what was lent.
// It returns nil if there is nothing to tell or to ask for, or if another worker has asked. The
// caller owns the batch, and passes it to Answered when it is finished.
//
// The first question of a term also tells the lender that the writer has begun it. Before that no
// further segment is lent.
func (r *Remote) Ask(ep rdma.Endpoint) (*rdma.Batch, error) {
	word, ok := r.ask()
	if !ok {
		return nil, nil
	}
	b := ep.Batch()
	b.Chain()
	b.WriteWord(r.t.o.doneAt(r.log), word)
	b.Read(r.t.o.beginAt(r.log), 8*(1+r.t.o.Lent))
	if err := ep.Post(b.As("ask for segments")); err != nil { // mu is not held, since Post may wait
		b.Release()
		return nil, fmt.Errorf("ask node %d for segments: %w", r.t.o.Node, err)
	}
	return b, nil
}

// ask returns the word that a question writes. It reports false if there is nothing to ask.
func (r *Remote) ask() (word uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking || r.term == 0 || r.lent > 0 && r.done == r.told && !r.wanted {
		return 0, false
	}
	r.asking, r.askedIn, r.wanted = true, r.term, false
	return r.term<<32 | r.done, true
}

// Answered takes the answer to a question and releases its batch. It reports whether the answer was
// useful. If the question failed, or came before the lender has begun the term, the caller asks
// again after a while.
func (r *Remote) Answered(b *rdma.Batch) (useful bool) {
	defer b.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if r.askedIn != r.term {
		return true // it was of another term, and says nothing about this one
	}
	r.full = false
	if b.Err() != nil {
		r.wanted = true
		return false
	}
	// The first answer that says that the lender has begun is used only for that: the other words
	// may have been READ before the lender cleared them, ahead of its begin word. They are READ
	// again.
	if begin := b.Op(1).Word(0); !r.begun {
		r.wanted, r.begun = true, begin>>32 == r.term
		r.next = int(uint32(begin)) * rdma.Stride
		return r.begun
	}
	r.told = b.Op(0).Word(0) & (1<<32 - 1)
	for ; ; r.lent++ {
		// Each word is of the segment that is due, or of one that was lent earlier in its place.
		word := b.Op(1).Word(1 + int(r.lent%uint64(r.t.o.Lent)))
		if word>>indexBits <= r.push { // of one that was lent before, or none
			r.full = word == noMore
			return r.full || r.lent > 0
		}
		r.push = word >> indexBits
		r.segments = append(r.segments, filled{Segment: Segment{int(word & (1<<indexBits - 1)), r.push}})
	}
}
