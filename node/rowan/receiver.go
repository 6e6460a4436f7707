package rowan

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Segment is one that is used: nothing can land in it any more. It is the caller's until Free.
type Segment struct {
	Index int
	Push  uint64 // how many segments were pushed up to it, over all receivers: entries of a stream are in this order
}

// Receiver is the control thread of a log (section 4.3). It belongs to its worker.
type Receiver struct {
	ep       rdma.Endpoint
	o        Options
	t        *Table
	l        layout
	counts   bool
	addr     rdma.RingAddr
	ring     rdma.Ring // nil until the first Step
	segments []segment // the table's, of which those of Control are the receiver's
	floors   []uint64  // by key: no stamp in a segment that was digested is above it
	last     []uint64  // by key: the stamp of the last block that was digested
	partial  []partial

	grants  []uint64 // by source, bytes
	none    []bool   // by source: there was no more when it was looked last
	spent   []uint64 // of them
	unbegun int      // segments in the ring in which nothing has its place
	open    int      // of several streams, those that are begun and not settled
	turn    int
	moved   bool // the last Step settled segments, or granted leave

	pushed   []pushed // to the ring, in order, that are not settled
	posted   uint64   // segments, to this ring
	waiting  []int    // used ones for Next
	freed    []int    // given back
	digested uint64   // the last push that was
	scratch  []byte   // a segment's bytes
	words    []byte   // of all sources
	entry    Entry    // that is digested
}

// pushed is a segment in the ring.
type pushed struct {
	index  int
	number uint64 // of the ring's buffers
	full   bool
	since  time.Duration // when it was seen to be
}

// Open opens a table, and its receiver, where there are no other logs: see OpenTable and
// Table.Receiver.
func Open(ep rdma.Endpoint, o Options) (*Receiver, error) {
	t, err := OpenTable(ep, o)
	if err != nil {
		return nil, err
	}
	return t.Receiver(ep)
}

// Receiver returns the receiver of a table that was just opened: its one for segments of Control.
// The worker runs beside the log's node. Recover comes next.
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
	for i := range t.segments {
		for k, floor := range t.segments[i].floors {
			r.floors[k] = max(r.floors[k], floor)
		}
	}
	err := r.readWords(r.grants, r.o.grantAt(0))
	for i := range r.grants {
		r.grants[i] >>= 1
	}
	return r, err
}

// ring is the layout of entries that are appended to the ring.
func (t *Table) ring() layout { return t.received }

// Recover digests what earlier receivers left, in the order in which it landed: in segments that
// were used, or in use. They are used then, and the caller's until Free, which is called for each.
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
		r.partial[i] = partial{} // what comes from here on is of other rings, in other segments
	}
	return all, nil
}

// isUsed reports whether nothing lands in a segment any more.
func (r *Receiver) isUsed(i int) bool {
	return r.segments[i].state == used || r.segments[i].state == committed
}

func (r *Receiver) setStates(step rdma.Step, list []int, st state) error {
	return r.t.setStates(r.ep, step, list, st)
}

// Step goes on with the log: it finds segments that are settled, frees what was given back, pushes
// free ones, and gives sources leave to fill them. It is called several times in the time in which
// the segments ahead are filled. The first call opens the ring.
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

// settle returns which segments in the ring are settled, and which are left there, both in order.
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

// look finds out which segments are full: those ahead of any whose first word is not zero, since
// buffers are used in order. The first word of one may stay zero for ever, when the block that has
// its place there never landed.
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
	r.unbegun = max(0, len(r.pushed)-1) // the first one may be begun, without its first block
	for i := len(r.pushed) - 1; i >= 0; i-- {
		if p := &r.pushed[i]; later && !p.full {
			p.full, p.since = true, now
		}
		set := b.Op(i).Word(0) != 0
		if set && !later {
			r.unbegun = max(0, len(r.pushed)-i-2) // the one behind it may be begun, too
		}
		later = later || set
	}
	return nil
}

// push adds free segments to the ring. Each begins with a word of zero, is marked, and only then
// takes entries: so as long as this receiver lives its first word is zero or an entry's, and
// whatever happens what has entries is marked.
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

// Moved reports whether the last Step found segments that are settled, or leave that was spent.
func (r *Receiver) Moved() bool { return r.moved }

// Starving reports whether an urgent source was told in the last Step that there is no more room.
func (r *Receiver) Starving() bool {
	for i, none := range r.none {
		if none && r.urgent(i) {
			return true
		}
	}
	return false
}

// Next returns the next segment that is used, in the order in which they were pushed, within each
// stream.
func (r *Receiver) Next() (Segment, bool) {
	if len(r.waiting) == 0 {
		return Segment{}, false
	}
	i := r.waiting[0]
	r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	return Segment{i, r.segments[i].push}, true
}

// Free gives a segment that was digested back: none of the entries that end in it is needed. A
// later Step frees it, unless an entry has blocks in it that goes on in another segment: then once
// that one was given back, too. Until then a crash brings its entries back.
func (r *Receiver) Free(s Segment) {
	seg := &r.segments[s.Index]
	if !r.isUsed(s.Index) || seg.push != s.Push || !seg.digest {
		panic(fmt.Sprintf("rowan: free segment %+v, which is %+v, with %d digested", s, seg, r.digested))
	}
	r.freed = append(r.freed, s.Index)
}

// floor returns the highest stamp of a key that may be in a segment that is about to be free. An
// entry that has begun may go on in the next use of it, and has no block in it now.
func (r *Receiver) floor(key int) uint64 {
	if stamp := r.partial[key].stamp; stamp != 0 {
		return stamp - 1
	}
	return r.floors[key]
}

// release frees what was given back. Before a segment is free, the floors of all keys are durable
// in its record, so that nothing that is in it now is taken for an entry of its next use.
func (r *Receiver) release() error {
	var list, kept []int
	for _, i := range r.freed {
		if r.unfinished(i) || !r.ended(i) {
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
		r.segments[i].ends = nil
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

// Close ends the ring. What is in the log stays for the next receiver.
func (r *Receiver) Close() error {
	if r.ring == nil {
		return nil
	}
	return r.ring.Close()
}

// Counts reports whether the fabric counts what is in flight: see rdma.RingPromises.
func (r *Receiver) Counts() bool { return r.counts }
