package state

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
)

// Space is what a server's tasks know about the segments of its node: how much of each is live, and
// which of them are full, committed or cleaned. All methods may be called by any task.
//
// Counts of live entries are adjusted before and after the index changes, by different tasks. So a
// count may be below 0 for a moment. An entry of several blocks counts in each segment in which it
// has some: a cleaner moves it with the first of them that is cleaned.
//
// The life of a segment of an own log: filled by its log; closed, when the log has left it and all
// of its entries are on all replicas and in the index; committed, marked durably by a cleaner;
// ready; taken by one cleaner, which moves its live entries; waiting for readers; free. A received
// segment is used, then digested, and committed when CommitVer covers it; ready when all entries
// with blocks there are known and committed; when it is cleaned it goes back to control, which
// gives it to the receiver.
type Space struct {
	// mu guards all fields. It is held over no wait.
	mu sync.Mutex
	// By segment: the entries that an index names, and their bytes. The length of a damaged entry
	// is not known, so whether anything is live is decided by the number of entries, not by bytes.
	named []int
	live  []int64
	// The bytes of all entries that an index names, each once.
	total int64
	// By segment: bytes of all entries. The rest of a segment that is too short for an entry is no
	// garbage.
	all []int64
	// By segment: the tombstones that an index names.
	tombs []int
	// The entries of several blocks, by the offset of their first block.
	scattered map[uint64]*scattered
	// By segment: the offsets of the entries of several blocks that have blocks there.
	parts [][]uint64

	// Segments of own logs that are full, with all entries on all replicas; they are not marked as
	// committed yet.
	full []rowan.Segment
	// Segments that may be cleaned: committed ones, and received ones without a live entry.
	ready []rowan.Segment
	// Cleaned segments of the receiver, for control to give back.
	back []rowan.Segment

	// Appends of other servers that make room find no room here.
	starving bool
	// Segments that were cleaned, entries that were moved, tombstones that were dropped.
	cleaned, moved, dropped uint64
}

// scattered is where an entry of several blocks lies.
type scattered struct {
	blocks []rdma.Addr
	// Their segments, each once.
	in []int
	// As in Space.named, of this entry: 1, or 0.
	named int
}

func newSpace(segments int) *Space {
	return &Space{
		named: make([]int, segments), live: make([]int64, segments), all: make([]int64, segments),
		tombs: make([]int, segments), scattered: map[uint64]*scattered{}, parts: make([][]uint64, segments),
	}
}

// Place counts an entry that ends in a segment, whether or not an index will name it.
func (s *Space) Place(segment int, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[segment] += size
}

// Add counts an entry that an index names from now on. segment is where it begins.
func (s *Space) Add(at uint64, segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(at, segment, 1, size, kind)
}

// Dead counts an entry that no index names any more. segment is where it begins.
func (s *Space) Dead(at uint64, segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(at, segment, -1, -size, kind)
}

func (s *Space) count(at uint64, segment, n int, bytes int64, kind uint8) {
	in := []int{segment}
	if e := s.scattered[at]; e != nil {
		in = e.in
		e.named += n
	}
	for _, i := range in {
		s.named[i] += n
		s.live[i] += bytes
	}
	s.total += bytes
	if kind == kv.Del { // it has one block
		s.tombs[segment] += n
	}
}

// Scatter notes the blocks of an entry of several blocks, and their segments. It comes before an
// index names the entry, so that each reader finds them.
func (s *Space) Scatter(at uint64, blocks []rdma.Addr, segments []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := slices.Compact(slices.Clone(segments)) // they are filled one after the other
	s.scattered[at] = &scattered{blocks: blocks, in: in}
	for _, i := range in {
		s.parts[i] = append(s.parts[i], at)
	}
}

// Blocks returns the addresses of the blocks of an entry; nil: it has one block.
func (s *Space) Blocks(at uint64) []rdma.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.scattered[at]; e != nil {
		return e.blocks
	}
	return nil
}

// Move counts a copy in segment to, which the index names instead of the entry at an offset in
// segment from.
func (s *Space) Move(at uint64, from int, copied uint64, to int, size int64, kind uint8) {
	s.Add(copied, to, size, kind)
	s.Dead(at, from, size, kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved++
}

// Drop counts a tombstone that no index names any more.
func (s *Space) Drop(at uint64, segment int, size int64) {
	s.Dead(at, segment, size, kv.Del)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
}

// Starve notes whether appends of other servers that make room find none here.
func (s *Space) Starve(so bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starving = so
}

// Starves returns what starve noted last.
func (s *Space) Starves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starving
}

// Close hands over a segment of an own log: nothing lands there any more, and all of its entries
// are on all replicas and in the index, or superseded.
func (s *Space) Close(seg rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = append(s.full, seg)
}

// Closed takes the segments that are to be marked as committed.
func (s *Space) Closed() []rowan.Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.full
	s.full = nil
	return all
}

// Offer hands over segments that may be cleaned. The state of committed ones is durable.
func (s *Space) Offer(all []rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, all...)
}

// IsDead reports whether no index names an entry with blocks in a segment.
func (s *Space) IsDead(segment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.named[segment] == 0
}

// Pick takes the segment that is worth cleaning most: the one with the fewest live bytes, if these
// are less than some percent of all its bytes. It also returns the blocks of the live entries of
// several that have some there. No entry is added to such a segment any more, so its live bytes
// only fall.
func (s *Space) Pick(percent int64) (seg rowan.Segment, parts [][]rdma.Addr, ok bool) {
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
	// From here on the caller owns the segment.
	s.cleaned++
	s.ready = slices.Delete(s.ready, best, best+1)
	for _, at := range s.parts[seg.Index] {
		// A dead one may have blocks in a segment that is used anew when they are read.
		if e := s.scattered[at]; e.named > 0 {
			parts = append(parts, e.blocks)
		}
	}
	return seg, parts, true
}

// Entombed returns the segments with tombstones that may be cleaned and are not being cleaned, and
// the number of these tombstones.
func (s *Space) Entombed() (all []rowan.Segment, tombs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.ready {
		if n := s.tombs[seg.Index]; n > 0 {
			all, tombs = append(all, seg), tombs+n
		}
	}
	return all, tombs
}

// Take takes a segment that may be cleaned, if no other task has taken it. The caller offers it
// again.
func (s *Space) Take(seg rowan.Segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.ready, seg)
	if i >= 0 {
		s.ready = slices.Delete(s.ready, i, i+1)
	}
	return i >= 0
}

// Forget clears the counts of a cleaned segment that nothing reads any more. The caller frees it.
// If an index still names entries there, they were not found, and the error wraps rowan.ErrDamaged.
func (s *Space) Forget(seg rowan.Segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.named[seg.Index]; n != 0 {
		return fmt.Errorf("segment %d is cleaned, and has %d live entries: %w", seg.Index, n, rowan.ErrDamaged)
	}
	s.total -= s.live[seg.Index] // not 0 if a damaged entry was counted with a wrong length
	s.live[seg.Index], s.tombs[seg.Index] = 0, 0
	for _, at := range s.parts[seg.Index] {
		// Another entry may come to begin at this offset.
		for _, i := range s.scattered[at].in {
			if i != seg.Index {
				s.parts[i] = slices.DeleteFunc(s.parts[i], func(other uint64) bool { return other == at })
			}
		}
		delete(s.scattered, at)
	}
	s.parts[seg.Index], s.all[seg.Index] = nil, 0
	return nil
}

// GiveBack hands a cleaned segment of the receiver to control, which frees it.
func (s *Space) GiveBack(seg rowan.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = append(s.back, seg)
}

// Given takes the segments that were handed over by GiveBack.
func (s *Space) Given() []rowan.Segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.back
	s.back = nil
	return all
}
