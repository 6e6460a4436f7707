package rowan

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Segment names one use of a segment. One that Next returned is used: nothing can land in it any
// more. The caller owns it until Free.
type Segment struct {
	// Index of the segment in its table.
	Index int
	// Push is the number of this use, over all receivers and own logs of the node. Within a stream
	// the segments are filled in the order of their pushes.
	Push uint64
}

// Receiver is the control thread of a log (section 4.3). It belongs to one worker, which runs
// beside the log's node.
type Receiver struct {
	ep rdma.Endpoint
	o  Options
	t  *Table
	l  layout
	// The fabric counts verbs in flight: see rdma.RingPromises.
	counts bool
	addr   rdma.RingAddr
	ring   rdma.Ring // nil until the first Step
	// The table's segments. The receiver owns those with the owner Control.
	segments []segment
	// By key, the highest stamp of any block that was digested.
	floors []uint64
	// By key, the stamp of the last block that was digested. A block that is not above it is a
	// copy.
	last []uint64
	// By key, the entry of which some blocks have arrived.
	partial []partial

	// By source, in bytes: what was granted.
	grants []uint64
	// By source, whether there was no more leave for it when grant looked last.
	none []bool
	// By source, in bytes: how much of the grant the source says is spent.
	spent []uint64
	// Segments in the ring in which no block has its place yet: their room is granted.
	unbegun int
	// Of several streams, the segments that are begun and not settled.
	open int
	// The source that grant serves first, modulo their number. It rises by one with each call.
	turn int
	// The last Step settled segments or granted leave.
	moved bool

	// Segments in the ring that are not settled, in the order in which they were pushed.
	pushed []pushed
	// Number of segments that were pushed to this ring.
	posted uint64
	// Used segments for Next, in order.
	waiting []int
	// Segments that the caller gave back, not free yet.
	freed []int
	// Push of the last segment that was digested.
	digested uint64
	scratch  []byte // a segment's bytes
	words    []byte // a word of each source
	// The entry that is passed to callbacks.
	entry Entry
}

// pushed is a segment in the ring.
type pushed struct {
	index int
	// Number of its buffer in the ring, from 0.
	number uint64
	// It was seen to be full, first at the time since. Only on a fabric that does not count.
	full  bool
	since time.Duration
}

// Open opens a table and its receiver, for a log without other users: see OpenTable and
// Table.Receiver.
func Open(ep rdma.Endpoint, o Options) (*Receiver, error) {
	t, err := OpenTable(ep, o)
	if err != nil {
		return nil, err
	}
	return t.Receiver(ep)
}

// Receiver returns the receiver of a table that was just opened. The table has only one. The worker
// runs beside the log's node. The caller calls Recover next, before the first Step.
func (t *Table) Receiver(ep rdma.Endpoint) (*Receiver, error) {
	addr := rdma.RingAt(t.o.Node, t.o.Ring)
	words := func() []uint64 { return make([]uint64, t.o.Sources) }
	keys := t.o.keys()
	r := &Receiver{
		ep: ep, o: t.o, t: t, l: t.ring(), counts: t.p.Counts, addr: addr, segments: t.segments,
		scratch: make([]byte, t.o.SegmentBytes), floors: make([]uint64, keys), last: make([]uint64, keys),
		partial: make([]partial, keys), grants: words(), none: make([]bool, t.o.Sources),
		spent: words(), words: make([]byte, 8*t.o.Sources),
	}
	// Of entries in segments that earlier receivers have freed only the floors are left.
	for i := range t.segments {
		for k, floor := range t.segments[i].floors {
			r.floors[k] = max(r.floors[k], floor)
		}
	}
	err := r.readWords(r.grants, r.o.grantAt(0))
	// The lowest bit is not part of the count: see leave.
	for i := range r.grants {
		r.grants[i] >>= 1
	}
	return r, err
}

// ring returns the layout of entries that are appended to the ring.
func (t *Table) ring() layout { return t.received }

// Recover digests what earlier receivers left in segments that were used, or in the ring, in the
// order in which it landed. It marks these segments as used: the caller owns them until Free, which
// it calls for each. A crash in Recover leaves segments that are marked as used or in use; the next
// receiver recovers all of them again.
//
// It relies on the earlier receiver's ring being gone, so that nothing lands in these segments.
func (r *Receiver) Recover(digest func(Segment, *Entry) error) ([]Segment, error) {
	if r.ring != nil {
		panic("rowan: Recover behind Step")
	}
	left := r.t.inPushOrder(func(s *segment) bool { return s.state != free && s.owner == Control })
	if err := r.setStates("mark used", slices.DeleteFunc(slices.Clone(left), r.isUsed), used); err != nil {
		return nil, err
	}
	var all []Segment
	for _, i := range left {
		s := Segment{i, r.segments[i].push}
		if err := r.Digest(s, func(e *Entry) error { return digest(s, e) }); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for i := range r.partial {
		r.partial[i] = partial{} // the rest of it was in no segment, and later entries land in another ring
	}
	return all, nil
}

// isUsed reports whether nothing can land in a segment any more.
func (r *Receiver) isUsed(i int) bool {
	return r.segments[i].state == used || r.segments[i].state == committed
}

func (r *Receiver) setStates(step rdma.Step, list []int, st state) error {
	return r.t.setStates(r.ep, step, list, st)
}

// Step advances the log: it finds settled segments, frees those that were given back, pushes free
// ones to the ring, and gives sources leave to fill them. The caller calls it several times in the
// time that senders need to fill the segments ahead. The first call opens the ring.
//
// What is spent is read first: see readSpent. States are durable before the step that relies on
// them: a segment is marked as used before Next returns it, its floors are written before it is
// marked as free, and it is marked as in use before it is in the ring. So a crash between any two
// of them leaves each segment either free and not needed, or to be recovered.
func (r *Receiver) Step() error {
	if r.ring == nil {
		ring, err := rdma.OpenRing(r.ep, rdma.RingOptions{Node: r.o.Node, Number: r.o.Ring})
		if err != nil {
			return fmt.Errorf("receive at %s: %w", r.addr, err)
		}
		r.ring = ring
	}
	if err := r.readSpent(); err != nil {
		return err
	}
	done, left, err := r.settle()
	if err != nil {
		return err
	}
	if err := r.setStates("mark used", done, used); err != nil {
		return err
	}
	r.pushed, r.moved = left, len(done) > 0
	r.waiting = append(r.waiting, done...)
	if err := r.release(); err != nil {
		return err
	}
	if err := r.push(); err != nil {
		return err
	}
	return r.grant()
}

// settle returns which segments in the ring are settled and which are not, both in order. A segment
// is settled when no block can land in it any more. On a fabric that counts the ring knows it;
// elsewhere it is so SettleAfter after the segment was seen to be full: an append that takes longer
// than AckWithin does not count as acknowledged.
func (r *Receiver) settle() (done []int, left []pushed, err error) {
	var c rdma.RingCount
	if r.counts {
		c, err = r.ring.Count()
		r.unbegun, r.open = int(r.posted-c.Begun), 0
		for r.open < len(c.Open) && c.Open[r.open] > 0 {
			r.open++
		}
	} else {
		err = r.look()
	}
	if err != nil {
		return nil, nil, err
	}
	now := r.ep.Now()
	left = r.pushed[:0]
	for _, p := range r.pushed {
		if r.counts && c.IsSettled(p.number) || !r.counts && p.full && now-p.since >= SettleAfter {
			done = append(done, p.index)
		} else {
			left = append(left, p)
		}
	}
	return done, left, nil
}

// look finds the full segments on a fabric that does not count. Buffers are used in order, so each
// segment is full that is ahead of one with a first word that is not zero. The first word of a
// segment may stay zero for ever: the block that has its place there may never land, because its
// sender died. So look relies on the first word of any later segment.
func (r *Receiver) look() error {
	b := r.ep.Batch()
	defer b.Release()
	for i := range r.pushed {
		b.Read(r.o.segmentAt(r.pushed[i].index), 8)
	}
	if err := rdma.Do(r.ep, b.As("look at heads"), patience); err != nil {
		return fmt.Errorf("look at the segments of %s: %w", r.addr, err)
	}
	now := r.ep.Now()
	later := false
	r.unbegun = max(0, len(r.pushed)-1) // the first one may be begun, though its first block has not landed
	for i := len(r.pushed) - 1; i >= 0; i-- {
		if p := &r.pushed[i]; later && !p.full {
			p.full, p.since = true, now
		}
		set := b.Op(i).Word(0) != 0
		if set && !later {
			r.unbegun = max(0, len(r.pushed)-i-2) // the next one may be begun, too
		}
		later = later || set
	}
	return nil
}

// push adds free segments to the ring. The first word of each is zeroed, then the segment is marked
// as in use, both durably, and only then it is posted. So while this receiver lives the first word
// is zero or that of a block (see look), and a segment that may have entries is marked, whatever
// crashes. A crash before the post leaves a segment that is in use and has no new entries: recovery
// digests none.
func (r *Receiver) push() error {
	keep := r.o.Own
	if r.Starving() {
		keep = min(keep, r.o.Least)
	}
	list := r.t.take(Control, r.o.Ahead-len(r.pushed), keep)
	if len(list) == 0 {
		return nil
	}
	b := r.ep.Batch()
	defer b.Release()
	for _, i := range list {
		b.WriteWord(r.o.segmentAt(i), 0)
	}
	if err := r.t.persist(r.ep, b, "zero heads"); err != nil {
		return err
	}
	if err := r.setStates("mark using", list, using); err != nil {
		return err
	}
	spans := make([]rdma.Span, len(list))
	for k, i := range list {
		spans[k] = rdma.Span{Addr: r.o.segmentAt(i), Len: r.o.SegmentBytes}
		r.pushed = append(r.pushed, pushed{index: i, number: r.posted})
		r.posted++
	}
	r.unbegun += len(list)
	if err := r.ring.Post(spans...); err != nil {
		return fmt.Errorf("push %d segments: %w", len(list), err)
	}
	return nil
}

// Moved reports whether the last Step settled segments or granted leave, so that there may be more
// to do.
func (r *Receiver) Moved() bool { return r.moved }

// Starving reports whether there was no leave for an urgent source in the last Step.
func (r *Receiver) Starving() bool {
	for i, none := range r.none {
		if none && r.urgent(i) {
			return true
		}
	}
	return false
}

// Next returns the next used segment. Within a stream they come in the order of their pushes. It
// reports false if there is none.
func (r *Receiver) Next() (Segment, bool) {
	if len(r.waiting) == 0 {
		return Segment{}, false
	}
	i := r.waiting[0]
	r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	return Segment{i, r.segments[i].push}, true
}

// Free gives back a segment that was digested. The caller needs none of the entries with blocks in
// it (Entry.Segments), also of those that end later: see Begun. Nothing reads them. A later Step
// makes it free, when no entry that is not complete has blocks there; until then a crash brings its
// entries back.
func (r *Receiver) Free(s Segment) {
	seg := &r.segments[s.Index]
	if !r.isUsed(s.Index) || seg.push != s.Push || !seg.digest {
		panic(fmt.Sprintf("rowan: free segment %+v, which is %+v, with %d digested", s, seg, r.digested))
	}
	r.freed = append(r.freed, s.Index)
}

// floor returns the highest stamp of a key that may be in a segment that becomes free now. For an
// unfinished entry it is the stamp before: its last block may land in the next use of the segment,
// and has to count then.
func (r *Receiver) floor(key int) uint64 {
	if stamp := r.partial[key].stamp; stamp != 0 {
		return stamp - 1
	}
	return r.floors[key]
}

// release frees the segments that were given back. The floors of all keys are durable in a
// segment's record before its state is free. So in its next use no block that is in it now counts
// as an entry. A crash between the two leaves a used segment with new floors, or with torn ones,
// that is recovered: none of its entries is needed.
func (r *Receiver) release() error {
	var list, kept []int
	for _, i := range r.freed {
		if r.begun(i) {
			kept = append(kept, i)
		} else {
			list = append(list, i)
		}
	}
	b := r.ep.Batch()
	defer b.Release()
	p := b.Alloc(8 * (len(r.floors) + 1))
	putFloors(p, r.floor, len(r.floors))
	for _, i := range list {
		b.Write(r.o.recordAt(i).Add(8), p) // torn by a crash, it hides entries that are not needed
	}
	if err := r.t.persist(r.ep, b, "write floors"); err != nil {
		return err
	}
	if err := r.setStates("mark free", list, free); err != nil {
		return err
	}
	r.freed = kept
	r.t.mu.Lock() // Peek reads them
	for _, i := range list {
		for k := range r.floors {
			r.segments[i].floors[k] = r.floor(k)
		}
		r.segments[i].hidden = false
	}
	r.t.mu.Unlock()
	r.t.give(list)
	return nil
}

// Close ends the ring. Segments in the ring stay marked as in use, so that the next receiver
// recovers what is in them.
func (r *Receiver) Close() error {
	if r.ring == nil {
		return nil
	}
	return r.ring.Close()
}

// Counts reports whether the fabric counts verbs in flight: see rdma.RingPromises.
func (r *Receiver) Counts() bool { return r.counts }
