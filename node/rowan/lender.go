package rowan

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// Lender lends the segments of a node to remote logs, and receives what they are filled with. It
// belongs to its worker. It replaces the Receiver of a ring, and has its methods, and Begin.
type Lender struct {
	ep rdma.Endpoint
	o  Options
	t  *Table
	// By log.
	logs []lending
	// By segment: entries up to this offset were digested. It is kept in memory only, so the next
	// lender returns these entries again.
	behind []int
	// Finished segments for Next.
	waiting []Segment
	// Segments that were given back, not free yet.
	freed []Segment
	// The last Step found finished segments, or lent some.
	moved bool
	// A log has at most one segment, and there was no other for it.
	starving bool
	// The words that writers write, as they were read last.
	words   []byte
	scratch []byte // a segment's bytes
}

// lending is what the lender knows about a log.
type lending struct {
	term uint64 // 0: nothing is lent
	// Lent segments that the writer has not finished, in the order in which they were lent.
	segments []Segment
	// How many segments were lent in the term: also the number of the word that names the next
	// one, see Options.lentAt.
	count uint64
	// count plus one when the writer was told last that there are no more; so it is told once.
	refused uint64
	// Entries with stamps up to it were digested, also in segments that are lent.
	settled uint64
}

// Lender returns the lender of a table that was just opened. What an earlier lender had lent is
// settled in the first term. The worker runs beside the node. Segments are lent in the order of
// their pushes, so each log's list is again in the order in which its writer fills them.
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

// Recover calls f for the entries in segments that writers had finished, or lost, when an earlier
// lender ended. The caller owns these segments until Free, which it calls for each.
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

// Settle calls f for entries in segments that are lent, of each log up to a stamp up to which
// nothing is in flight. These entries are not repeated. It must follow Digest of all segments that
// Next returns. Either the stamp is below the term for which the segments are lent, or the writer
// waits for each entry before it writes the next one: then all entries are in the first segments.
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
			// The writer fills segments in order: behind one without an entry there are none.
			if stamp>>32 == g.term && l.behind[s.Index] == 0 {
				break
			}
		}
		g.settled = stamp
	}
	return nil
}

// aheadBytes is how much of a segment Ahead reads at a time, if an entry is not longer.
const aheadBytes = 64 << 10

// Ahead calls f for the entries in segments that are lent which are there by now, though their
// writers may not have finished them: in each segment up to the first place without an intact
// entry, as one may be in flight there. These entries are not repeated.
func (l *Lender) Ahead(f func(Segment, *Entry) error) error {
	for log := range l.logs {
		for _, s := range l.logs[log].segments {
			for more := true; more; {
				var err error
				if more, err = l.ahead(s, f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ahead does so with a piece of one segment, and reports whether it found any entry.
func (l *Lender) ahead(s Segment, f func(Segment, *Entry) error) (found bool, err error) {
	from, end := l.behind[s.Index], l.o.SegmentBytes
	at := l.t.Begin(s).Add(uint64(from))
	p := l.scratch[:min(rdma.Stride, end-from)]
	if err := read(l.ep, p, at); err != nil || len(p) < HeaderBytes || p[0] != mark {
		return false, err
	}
	// The header may be torn, or stale. Here its length only bounds the READ; parse verifies it.
	layout := l.t.logLayout(s.Push)
	p = l.scratch[:min(max(aheadBytes, strides(layout.sizeOfBlock(parseHeader(p)))), end-from)]
	if err := read(l.ep, p, at); err != nil {
		return false, err
	}
	e := Entry{Blocks: make([]rdma.Addr, 1), Segments: []int{s.Index}}
	for off := 0; off < len(p); found = true {
		h, data, ok := layout.parse(p[off:])
		if !ok || uint32(h.stamp) != uint32(from+off) {
			break
		}
		e.Kind, e.Source, e.Stamp, e.Data, e.Blocks[0] = h.kind, h.source, h.stamp, data, at.Add(uint64(off))
		off += strides(layout.sizeOfBlock(h))
		l.behind[s.Index] = from + off
		if err := f(s, &e); err != nil {
			return true, err
		}
	}
	return found, nil
}

// scan calls f for the entries of a segment that were not digested, up to a stamp. It relies on
// this: a log's writer takes places in order, and entries of an earlier term are ahead of those of
// a later one.
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

// Left is a segment to which no log adds anything. It may have room behind its last entry.
type Left struct {
	Segment
	Behind rdma.Addr
}

// Begin starts a term of a log; term 0: it has no writer. All that was written in earlier terms is
// at rest, and was settled. The log goes on in the segment with its last entry, behind it. The
// caller owns the segments ahead of that one until Free, or all of them if there is no writer.
//
// The writer's word is cleared first, then all words of segments are written, and the begin word
// last. So a writer that sees the begin word can rely on the others, once it reads them again. A
// crash in between leaves words of an earlier term, or no begin word: the next lender begins anew.
// The segments that the log does not keep are durably marked as used before that, so the next
// lender finds them in Recover.
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
	g.settled = min(g.settled, term<<32-1) // a restarted writer may add what others repeat
	first := 0
	if len(g.segments) > 0 {
		first = l.behind[g.segments[0].Index]
	}
	b := l.ep.Batch()
	defer b.Release()
	// An earlier writer may have written it in the same term. This writer asks again once the
	// lender has begun.
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

// Step finds the segments that writers have finished, frees those that were given back, and lends
// others, as long as Options.Own stay free. Each log that has begun its term gets up to
// Options.Lent.
//
// States are durable before what relies on them: a segment is marked as used before Next returns
// it, and as free before it may be lent again. So a crash between two of these leaves each segment
// to Recover, or lent as before, or free.
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

// done returns how many segments a log's writer has finished of those that it was lent in the term.
// It reports false if the writer has not begun the term, or if a bit of its word has flipped, so
// that it says more than there were: the writer writes the word again when it asks next.
func (l *Lender) done(log int) (n uint64, ok bool) {
	word, g := binary.LittleEndian.Uint64(l.words[8*log:]), &l.logs[log]
	n = word & (1<<32 - 1)
	return n, g.term > 0 && word>>32 == g.term && n <= g.count
}

// lend lends segments, first to the logs that have the fewest. A segment is marked as in use,
// durably, before its writer knows of it. So a segment that may have entries is always marked,
// whatever crashes. A crash between mark and word leaves a segment in use without entries, which
// the next lender lends to the same log (Begin).
//
// A log has fewer than Options.Lent segments when its next word is written. So the segment that the
// word named before is finished: its writer has read the word.
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

// neediest returns the log with the fewest segments among those that have a writer and fewer than
// they may have. It reports false if there is none.
func (l *Lender) neediest() (log int, ok bool) {
	for i := range l.logs {
		if l.wants(i) && (!ok || len(l.logs[i].segments) < len(l.logs[log].segments)) {
			log, ok = i, true
		}
	}
	return log, ok
}

// Moved reports whether the last Step found finished segments, or lent some.
func (l *Lender) Moved() bool { return l.moved }

// Starving reports whether the last Step found a log that fills its last segment, and none to lend
// to it.
func (l *Lender) Starving() bool { return l.starving }

// Counts reports whether the fabric counts verbs in flight: see rdma.RingPromises.
func (l *Lender) Counts() bool { return l.t.p.Counts }

// wants reports whether a log has a writer, and fewer segments than it may have.
func (l *Lender) wants(log int) bool {
	_, ok := l.done(log)
	return ok && len(l.logs[log].segments) < l.o.Lent
}

// Next returns the next finished segment; those of one log come in the order in which they were
// lent.
func (l *Lender) Next() (Segment, bool) {
	if len(l.waiting) == 0 {
		return Segment{}, false
	}
	s := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	return s, true
}

// Digest calls f for the entries of a segment that were not settled, in the order of their places.
func (l *Lender) Digest(s Segment, f func(*Entry) error) error {
	return l.scan(s, math.MaxUint64, f)
}

// Begun returns false: the entries of a remote log have one block.
func (l *Lender) Begun(Segment) bool { return false }

// Free gives back a segment that was digested. A later Step makes it free. A crash before that
// leaves it used, and Recover returns its entries again.
func (l *Lender) Free(s Segment) { l.freed = append(l.freed, s) }

// Close ends the lender. Writers keep what they were lent, for the rest of the term.
func (l *Lender) Close() error { return nil }
