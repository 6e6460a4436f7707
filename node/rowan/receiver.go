package rowan

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	l        layout
	counts   bool
	addr     rdma.RingAddr
	ring     rdma.Ring // nil until the first Step
	segments []segment
	pushes   uint64
	floors   []uint64 // by key: no stamp in a segment that was digested is above it
	last     []uint64 // by key: the stamp of the last block that was digested
	partial  []partial

	grants  []uint64 // by source, bytes
	spent   []uint64 // of them
	unbegun int      // segments in the ring in which nothing has its place
	turn    int

	pushed   []pushed // to the ring, in order, that are not settled
	posted   uint64   // segments, to this ring
	spare    []int    // free ones
	waiting  []int    // used ones for Next
	freed    []int    // given back
	digested uint64   // the last push that was
	scratch  []byte   // a segment's bytes
}

// pushed is a segment in the ring.
type pushed struct {
	index  int
	number uint64 // of the ring's buffers
	full   bool
	since  time.Duration // when it was seen to be
}

// Open reads the table of a log, which is all zero before its first use. The worker runs beside the log's node, and
// an earlier receiver of it has ended or was fenced off: nothing of that may land any more. Recover comes next.
func Open(ep rdma.Endpoint, o Options) (*Receiver, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	if err := o.check(p); err != nil {
		return nil, err
	}
	addr := rdma.RingAt(o.Node, o.Ring)
	words := func() []uint64 { return make([]uint64, o.Sources) }
	r := &Receiver{
		ep: ep, o: o, l: newLayout(p, o.Secret, addr), counts: p.Counts, addr: addr, scratch: make([]byte, o.SegmentBytes),
		floors: make([]uint64, o.keys()), last: make([]uint64, o.keys()), grants: words(), spent: words(),
		partial: make([]partial, o.keys()),
	}
	if err := errors.Join(r.readTable(), r.readWords(r.grants, o.grantAt(0))); err != nil {
		return nil, err
	}
	r.spare = r.inPushOrder(func(s state) bool { return s == free })
	return r, nil
}

// Recover digests what earlier receivers left, in the order in which it landed: in segments that were used, or in use.
// They are used then, and the caller's until Free, which is called for each.
func (r *Receiver) Recover(digest func(Segment, *Entry) error) ([]Segment, error) {
	if r.ring != nil {
		panic("rowan: Recover behind Step")
	}
	left := r.inPushOrder(func(s state) bool { return s != free })
	if err := r.setStates("mark used", left, used); err != nil {
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

// Step goes on with the log: it finds segments that are settled, frees what was given back, pushes free ones, and gives
// sources leave to fill them. It is called several times in the time in which the segments ahead are filled. The first
// call opens the ring.
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
	r.pushed = left
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
		r.unbegun = int(r.posted - c.Begun)
	} else {
		err = r.look()
	}
	if err != nil {
		return nil, nil, err
	}
	now := r.ep.Now()
	for _, p := range r.pushed {
		if r.counts && c.IsSettled(p.number) || !r.counts && p.full && now-p.since >= SettleAfter {
			done = append(done, p.index)
		} else {
			left = append(left, p)
		}
	}
	return done, left, nil
}

// look finds out which segments are full: those ahead of any whose first word is not zero, since buffers are used in
// order. The first word of one may stay zero for ever, when the block that has its place there never landed.
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

// push adds free segments to the ring. Each begins with a word of zero, is marked, and only then takes entries: so as
// long as this receiver lives its first word is zero or an entry's, and whatever happens what has entries is marked.
func (r *Receiver) push() error {
	n := min(len(r.spare), r.o.Ahead-len(r.pushed))
	if n <= 0 {
		return nil
	}
	list := r.spare[:n]
	b := r.ep.Batch()
	defer b.Release()
	for _, i := range list {
		b.WriteWord(r.o.segmentAt(i), 0)
	}
	if err := r.persist(b, "zero heads"); err != nil {
		return err
	}
	for _, i := range list {
		r.pushes++
		r.segments[i].push, r.segments[i].digest = r.pushes, false
	}
	if err := r.setStates("mark using", list, using); err != nil {
		return err
	}
	spans := make([]rdma.Span, n)
	for k, i := range list {
		spans[k] = rdma.Span{Addr: r.o.segmentAt(i), Len: r.o.SegmentBytes}
		r.pushed = append(r.pushed, pushed{index: i, number: r.posted})
		r.posted++
	}
	r.spare = append(r.spare[:0], r.spare[n:]...)
	r.unbegun += n
	if err := r.ring.Post(spans...); err != nil {
		return fmt.Errorf("push %d segments: %w", n, err)
	}
	return nil
}

// Next returns the next segment that is used, in the order in which they were pushed, within each stream.
func (r *Receiver) Next() (Segment, bool) {
	if len(r.waiting) == 0 {
		return Segment{}, false
	}
	i := r.waiting[0]
	r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	return Segment{i, r.segments[i].push}, true
}

// Free gives a segment that was digested back: none of the entries that end in it is needed. A later Step frees it,
// unless an entry has blocks in it that goes on in another segment: then once that one was given back, too. Until then
// a crash brings its entries back.
func (r *Receiver) Free(s Segment) {
	seg := &r.segments[s.Index]
	if seg.state != used || seg.push != s.Push || !seg.digest {
		panic(fmt.Sprintf("rowan: free segment %+v, which is %+v, with %d digested", s, seg, r.digested))
	}
	r.freed = append(r.freed, s.Index)
}

// floor returns the highest stamp of a key that may be in a segment that is about to be free. An entry that has
// begun may go on in the next use of it, and has no block in it now.
func (r *Receiver) floor(key int) uint64 {
	if stamp := r.partial[key].stamp; stamp != 0 {
		return stamp - 1
	}
	return r.floors[key]
}

// release frees what was given back. Before a segment is free, the floors of all keys are durable in its record, so
// that nothing that is in it now is taken for an entry of its next use.
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
	p := b.Alloc(8 * len(r.floors))
	for k := range r.floors {
		binary.LittleEndian.PutUint64(p[8*k:], r.floor(k))
	}
	for _, i := range list {
		r.segments[i].ends = nil
		for k := range r.floors {
			r.segments[i].floors[k] = r.floor(k)
		}
		b.Write(r.o.recordAt(i).Add(8), p) // torn by a crash, it hides entries that are not needed
	}
	if err := r.persist(b, "write floors"); err != nil {
		return err
	}
	if err := r.setStates("mark free", list, free); err != nil {
		return err
	}
	r.spare, r.freed = append(r.spare, list...), kept
	return nil
}

// Close ends the ring. What is in the log stays for the next receiver.
func (r *Receiver) Close() error {
	if r.ring == nil {
		return nil
	}
	return r.ring.Close()
}
