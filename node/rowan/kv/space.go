package kv

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// space is what a server's tasks know together of the segments of its node: how much in them is
// live, and which are full. Its lock is held over no wait.
type space struct {
	mu sync.Mutex
	// By segment, entries that an index names, and their bytes; in turns below 0, when two tasks count
	// at a time. Of one that is damaged it is not known how long it was, so that what is live is known
	// by how many there are.
	named []int
	live  []int64
	all   []int64 // by segment, bytes of all entries: what its end is too short for is no garbage
	// Tombstones, by segment: entries of DELs that an index names. In turns below 0, too.
	tombs []int
	// Entries of several blocks, which lie apart, by the address of their first: all of one is counted
	// where it ends.
	scattered map[uint64]scattered
	ends      [][]uint64 // by segment, those of them that were ever live, and end there

	full  []rowan.Segment // own logs', whose entries are on all replicas, not yet marked
	ready []rowan.Segment // committed: they may be cleaned
	back  []rowan.Segment // cleaned, the receiver's

	starving                bool   // what makes room at other servers has none here
	cleaned, moved, dropped uint64 // segments, entries, tombstones, so far
}

// scattered is where an entry of several blocks is.
type scattered struct {
	blocks []rdma.Addr
	end    int // the segment
}

func newSpace(segments int) *space {
	return &space{
		named: make([]int, segments), live: make([]int64, segments), all: make([]int64, segments),
		tombs: make([]int, segments),
		ends:  make([][]uint64, segments), scattered: map[uint64]scattered{},
	}
}

// place counts an entry that ends in a segment, whether an index comes to name it or not.
func (s *space) place(segment int, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[segment] += size
}

// add counts an entry that an index names now, in the segment where it ends.
func (s *space) add(segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[segment] += size
	s.named[segment]++
	if kind == kindDel {
		s.tombs[segment]++
	}
}

// scatter notes where an entry of several blocks is, before an index names it.
func (s *space) scatter(at uint64, e scattered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scattered[at] = e
	s.ends[e.end] = append(s.ends[e.end], at)
}

// blocks returns where an entry of several blocks is; nil: it is of one.
func (s *space) blocks(at uint64) []rdma.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scattered[at].blocks
}

// dead counts an entry that no index names any more, which begins in a segment.
func (s *space) dead(at uint64, segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.scattered[at]; ok {
		segment = e.end
	}
	s.live[segment] -= size
	s.named[segment]--
	if kind == kindDel {
		s.tombs[segment]--
	}
}

// move counts an entry that was copied to a segment, which the index names instead of the one that
// begins in another.
func (s *space) move(at uint64, from, to int, size int64, kind uint8) {
	s.add(to, size, kind)
	s.dead(at, from, size, kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved++
}

// drop counts a tombstone in a segment that no index names any more.
func (s *space) drop(at uint64, segment int, size int64) {
	s.dead(at, segment, size, kindDel)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
}

// starve says whether what makes room at other servers has none here.
func (s *space) starve(so bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starving = so
}

func (s *space) starves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starving
}

// close hands a segment of an own log over: nothing lands in it any more, and all of its entries
// are on all replicas.
func (s *space) close(seg rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = append(s.full, seg)
}

// closed takes those that are to be marked.
func (s *space) closed() []rowan.Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.full
	s.full = nil
	return all
}

// offer says that segments are committed, durably.
func (s *space) offer(all []rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, all...)
}

// isDead reports whether nothing in a segment is live.
func (s *space) isDead(segment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.named[segment] == 0
}

// pick takes the committed segment with the fewest live bytes among those in which they are less
// than some percent of all. Nothing is added to these any more, so that they never have more.
func (s *space) pick(percent int64) (seg rowan.Segment, ends []scattered, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	best, least := -1, int64(math.MaxInt64)
	for i, r := range s.ready {
		n := s.live[r.Index]
		if s.named[r.Index] == 0 {
			n = 0
		}
		if n < least && (s.named[r.Index] == 0 || 100*n < percent*s.all[r.Index]) {
			best, least = i, n
		}
	}
	if best < 0 {
		return seg, nil, false
	}
	seg = s.ready[best]
	s.cleaned++
	s.ready = slices.Delete(s.ready, best, best+1)
	for _, at := range s.ends[seg.Index] {
		ends = append(ends, s.scattered[at])
	}
	return seg, ends, true
}

// entombed returns the committed segments with tombstones that are not being cleaned, and how many
// of these there are.
func (s *space) entombed() (all []rowan.Segment, tombs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.ready {
		if n := s.tombs[seg.Index]; n > 0 {
			all, tombs = append(all, seg), tombs+n
		}
	}
	return all, tombs
}

// take takes a committed segment, if it is not being cleaned. The caller offers it again.
func (s *space) take(seg rowan.Segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.ready, seg)
	if i >= 0 {
		s.ready = slices.Delete(s.ready, i, i+1)
	}
	return i >= 0
}

// forget says that nothing reads a segment any more that is cleaned. It may be freed, unless what
// an index names there was not found: then the error wraps rowan.ErrDamaged.
func (s *space) forget(seg rowan.Segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.named[seg.Index]; n != 0 {
		return fmt.Errorf("segment %d is cleaned, and has %d live entries: %w", seg.Index, n, rowan.ErrDamaged)
	}
	s.live[seg.Index], s.tombs[seg.Index] = 0, 0 // not 0 yet if an entry was damaged
	for _, at := range s.ends[seg.Index] {
		delete(s.scattered, at)
	}
	s.ends[seg.Index], s.all[seg.Index] = nil, 0
	return nil
}

// giveBack hands a cleaned segment to the receiver.
func (s *space) giveBack(seg rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, seg)
}

// given takes those that were handed so.
func (s *space) given() []rowan.Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.back
	s.back = nil
	return all
}

// quiet lets cleaners know when nothing reads what they have moved: each reader, a task that looks
// entries up and reads them, says up to which question it has none in hand any more that it looked
// up before.
type quiet struct {
	asked  atomic.Uint64
	passed []atomic.Uint64 // by reader
}

// ask asks all readers, and returns the question.
func (q *quiet) ask() uint64 { return q.asked.Add(1) }

// last returns the last question.
func (q *quiet) last() uint64 { return q.asked.Load() }

// pass says that a reader has nothing in hand that it looked up before it saw a question.
func (q *quiet) pass(reader int, question uint64) { q.passed[reader].Store(question) }

// of returns the last question that a reader has passed.
func (q *quiet) of(reader int) uint64 { return q.passed[reader].Load() }

// all reports whether all readers have passed a question.
func (q *quiet) all(question uint64) bool {
	for i := range q.passed {
		if q.of(i) < question {
			return false
		}
	}
	return true
}
