package kv

import (
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/shards"
)

// window is how many versions of a shard may be in flight behind the oldest: no bound for workers
// that live, since a version that is not acknowledged for long is that of a replica that is gone,
// and the shard stands still.
const window = 1 << 14

// shard is what a server has of a shard, which may be nothing.
type shard struct {
	number int

	mu      sync.Mutex
	index   *index.Index // nil: the server is no replica
	since   uint64       // the term in which it became one: what others appended in earlier ones is not needed
	left    []left       // indexes of when it was one before
	serves  bool         // the server is the primary, and has what any replica has
	version uint64       // the last that was given, or found in the log
	commit  uint64       // what is not above it is on all replicas
	acked   [window / 64]uint64
	counts  shards.Load // that the primary received, and sent to each other replica: they only grow
}

// left is the index of a shard that the server has lost. What it names is garbage, and counted as
// live until it is removed.
type left struct {
	index *index.Index
	term  uint64 // that the shard was lost in
}

// load returns what was counted (section 4.6).
func (s *shard) load() shards.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// count counts a request.
func (s *shard) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Requests++
}

// gain has the server be a replica from a term on, if it is none.
func (s *shard) gain(term uint64, items int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index == nil {
		s.index, s.since = index.New(items), term
	}
}

// lose has it be none from a term on.
func (s *shard) lose(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index != nil {
		s.left = append(s.left, left{s.index, term})
		s.index = nil
	}
}

// has returns the index; nil: the server is no replica.
func (s *shard) has() *index.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// takes reports whether the server is a replica that needs what others append in a term.
func (s *shard) takes(term uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index != nil && term >= s.since
}

// leaving returns an index of a shard that was lost in a term not above one; nil: there is none.
func (s *shard) leaving(term uint64) *index.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.left {
		if l.term <= term {
			return l.index
		}
	}
	return nil
}

// forget forgets such an index, which is empty.
func (s *shard) forget(x *index.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = slices.DeleteFunc(s.left, func(l left) bool { return l.index == x })
}

// naming returns the index that names the entry of a key at an address; nil: none does. Live: the
// server is a replica by it.
func (s *shard) naming(hash, at uint64) (x *index.Index, live bool) {
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

// find notes a version of a record in the log. The primary has given higher ones.
func (s *shard) find(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serves {
		s.version = max(s.version, version)
	}
}

// lead makes the server one that serves: all that any replica has is on all of them. So CommitVer
// covers what the last primary gave versions to, and the next version is above all of these.
func (s *shard) lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serves {
		return // writes are in flight
	}
	s.version = max(s.version, s.commit)
	s.commit, s.serves = s.version, true
}

// follow makes it one that does not.
func (s *shard) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serves = false
}

// serving reports whether the server serves the shard, in a term in which it is the primary.
func (s *shard) serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serves
}

// next gives the next version; false: too many are in flight. It is used: an entry of it comes to
// all replicas.
func (s *shard) next() (version uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version-s.commit >= window {
		return 0, false
	}
	s.version++
	s.counts.Writes++
	return s.version, true
}

// done notes that a version is on all replicas.
func (s *shard) done(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[version%window/64] |= 1 << (version % 64)
	for v := s.commit + 1; s.acked[v%window/64]>>(v%64)&1 != 0; v++ {
		s.acked[v%window/64] &^= 1 << (v % 64)
		s.commit = v
	}
}

// committed returns up to which version all are on all replicas, as far as the server knows.
func (s *shard) committed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit
}

// learn notes what the primary says of that.
func (s *shard) learn(commit uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit = max(s.commit, commit)
}
