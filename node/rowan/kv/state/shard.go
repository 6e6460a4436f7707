package state

import (
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/shards"
)

// window bounds how many versions of a shard are in flight above CommitVer. Workers that live never
// reach it. If a version is not acknowledged for long, a replica is gone, and the shard stands
// still until the next term.
const window = 1 << 14

// Shard is the state of one shard at a server, which may have no replica of it.
type Shard struct {
	Number int

	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// Names the newest entry of each key; nil: the server is no replica.
	index *index.Index
	// The term in which the server became a replica. Entries that came in earlier terms do not
	// count.
	since uint64
	// Indexes of earlier times as a replica, which are being emptied.
	left []left
	// The server is the primary, and has what any replica has.
	serves bool
	// The last version that was given, or the highest that was found in a log.
	version uint64
	// CommitVer: all versions up to it are on all replicas. It never exceeds what is so.
	commit uint64
	// Versions above commit that are on all replicas: a bit each, modulo window.
	acked [window / 64]uint64
	// Requests that the primary received, and writes that it sent to each other replica. They only
	// grow.
	counts shards.Load
}

// left is the index of a shard that the server has lost. The entries that it names are garbage, but
// count as live until the exchanger removes them.
type left struct {
	index *index.Index
	// The term in which the shard was lost.
	term uint64
}

// Load returns the shard's counts for the manager (section 4.6).
func (s *Shard) Load() shards.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Count counts a client's request.
func (s *Shard) Count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Requests++
}

// Gain makes the server a replica from a term on, if it is none. It begins with an empty index,
// sized for some items.
func (s *Shard) Gain(term uint64, items int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index == nil {
		s.index, s.since = index.New(items), term
	}
}

// Lose makes the server no replica from a term on.
func (s *Shard) Lose(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != nil {
		s.left = append(s.left, left{s.index, term})
		s.index = nil
	}
}

// Index returns the index; nil: the server is no replica.
func (s *Shard) Index() *index.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// Takes reports whether the server is a replica for which an entry of a term counts.
func (s *Shard) Takes(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index != nil && term >= s.since
}

// Leaving returns an index of the shard that was lost in a term up to the given one; nil: there is
// none.
func (s *Shard) Leaving(term uint64) *index.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.left {
		if l.term <= term {
			return l.index
		}
	}
	return nil
}

// Forget drops an index that leaving returned, and that is empty now.
func (s *Shard) Forget(x *index.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = slices.DeleteFunc(s.left, func(l left) bool { return l.index == x })
}

// Naming returns the index that names the entry at an offset for a key with a hash; nil: none does.
// live says whether it is the current index, so that the entry is needed.
func (s *Shard) Naming(hash, at uint64) (x *index.Index, live bool) {
	var room [4]uint64
	names := func(x *index.Index) bool { return slices.Contains(x.Lookup(hash, room[:0]), at) }
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != nil && names(s.index) {
		return s.index, true
	}
	for _, l := range s.left {
		if names(l.index) {
			return l.index, false
		}
	}
	return nil, false
}

// Find notes a version of a record in a log. A primary that serves has given higher ones already.
func (s *Shard) Find(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serves {
		s.version = max(s.version, version)
	}
}

// Lead makes the server serve the shard. The caller knows that each replica has all that any
// replica has. So all versions found are committed, those that the last primary gave included, and
// the next version is above all of them.
func (s *Shard) Lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serves {
		// Their versions are above what was found.
		return // writes are in flight
	}
	// CommitVer may be above the versions that were found here. In a migration the source has
	// published it.
	s.version = max(s.version, s.commit)
	s.commit, s.serves = s.version, true
}

// Follow makes the server not serve the shard.
func (s *Shard) Follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serves = false
}

// Serving reports whether the server serves the shard as its primary.
func (s *Shard) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serves
}

// Next gives the next version. It reports false if too many are in flight. The caller must bring an
// entry with that version to all replicas: CommitVer waits for it.
func (s *Shard) Next() (version uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version-s.commit >= window {
		return 0, false
	}
	s.version++
	s.counts.Writes++
	return s.version, true
}

// Done notes that a version is on all replicas, and raises CommitVer as far as all below are, too.
func (s *Shard) Done(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[version%window/64] |= 1 << (version % 64)
	for v := s.commit + 1; s.acked[v%window/64]>>(v%64)&1 != 0; v++ {
		s.acked[v%window/64] &^= 1 << (v % 64)
		s.commit = v
	}
}

// Committed returns the CommitVer that the server knows.
func (s *Shard) Committed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit
}

// Learn notes a CommitVer that the primary has published. It only rises.
func (s *Shard) Learn(commit uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit = max(s.commit, commit)
}
