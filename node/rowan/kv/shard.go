package kv

import (
	"sync"

	"github.com/farkv/farkv/node/rowan/index"
)

// window is how many versions of a shard may be in flight behind the oldest: no bound for workers that live, since a
// version that is not acknowledged for long is that of a replica that is gone, and the shard stands still.
const window = 1 << 14

// shard is one that a server has.
type shard struct {
	number  int
	index   *index.Index
	primary bool
	others  []int // the nodes of the other replicas

	mu      sync.Mutex
	version uint64 // the last that was given, at the primary
	commit  uint64 // what is not above it is on all replicas
	acked   [window / 64]uint64
}

// next gives the next version; false: too many are in flight. It is used: an entry of it comes to all replicas.
func (s *shard) next() (version uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version-s.commit >= window {
		return 0, false
	}
	s.version++
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
