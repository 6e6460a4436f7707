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
// count may be below 0 for a moment.
//
// The life of a segment of an own log: filled by its log; closed, when the log has left it and all
// of its entries are on all replicas and in the index; committed, marked durably by a cleaner;
// ready; taken by one cleaner, which moves its live entries; waiting for readers; free. A received
// segment is used, then digested, and committed when CommitVer covers it; when it is cleaned it
// goes back to control, which gives it to the receiver.
type Space struct {
	// mu guards all fields. It is held over no wait.
	mu sync.Mutex
	// By segment: the entries that an index names, and their bytes. The length of a damaged entry
	// is not known, so whether anything is live is decided by the number of entries, not by bytes.
	named []int
	live  []int64
	// By segment: bytes of all entries. The rest of a segment that is too short for an entry is no
	// garbage.
	all []int64
	// By segment: the tombstones that an index names.
	tombs []int
	// The entries of several blocks, by the offset of their first block. An entry is counted, as a
	// whole, in the segment where it ends.
	scattered map[uint64]Scattered
	// By segment: the offsets of the entries of several blocks that end there.
	// A cleaner moves these as a whole with the segment, wherever they begin.
	ends [][]uint64

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

// Scattered is where an entry of several blocks lies.
type Scattered struct {
	Blocks []rdma.Addr
	// The segment where it ends.
	End int
}

func newSpace(segments int) *Space {
	return &Space{
		named: make([]int, segments), live: make([]int64, segments), all: make([]int64, segments),
		tombs: make([]int, segments),
		ends:  make([][]uint64, segments), scattered: map[uint64]Scattered{},
	}
}

// Place counts an entry that ends in a segment, whether or not an index will name it.
func (s *Space) Place(segment int, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[segment] += size
}

// Add counts an entry that an index names from now on, in the segment where it ends.
func (s *Space) Add(segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[segment] += size
	s.named[segment]++
	if kind == kv.Del {
		s.tombs[segment]++
	}
}

// Scatter notes the blocks of an entry of several blocks. It comes before an index names the entry,
// so that each reader finds them.
func (s *Space) Scatter(at uint64, e Scattered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scattered[at] = e
	s.ends[e.End] = append(s.ends[e.End], at)
}

// Blocks returns the addresses of the blocks of an entry; nil: it has one block.
func (s *Space) Blocks(at uint64) []rdma.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scattered[at].Blocks
}

// Dead counts an entry that no index names any more. segment is where it begins.
func (s *Space) Dead(at uint64, segment int, size int64, kind uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.scattered[at]; ok {
		segment = e.End
	}
	s.live[segment] -= size
	s.named[segment]--
	if kind == kv.Del {
		s.tombs[segment]--
	}
}

// Move counts a copy in segment to, which the index names instead of the entry at an offset in
// segment from.
func (s *Space) Move(at uint64, from, to int, size int64, kind uint8) {
	s.Add(to, size, kind)
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

// IsDead reports whether no index names an entry in a segment.
func (s *Space) IsDead(segment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.named[segment] == 0
}

// Pick takes the segment that is worth cleaning most: the one with the fewest live bytes, if these
// are less than some percent of all its bytes. It also returns the entries of several blocks that
// end there. No entry is added to such a segment any more, so its live bytes only fall.
func (s *Space) Pick(percent int64) (seg rowan.Segment, ends []Scattered, ok bool) {
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
	for _, at := range s.ends[seg.Index] {
		ends = append(ends, s.scattered[at])
	}
	return seg, ends, true
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
	s.live[seg.Index], s.tombs[seg.Index] = 0, 0 // a damaged entry may have been counted with a wrong length
	for _, at := range s.ends[seg.Index] {
		delete(s.scattered, at)
	}
	s.ends[seg.Index], s.all[seg.Index] = nil, 0
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
