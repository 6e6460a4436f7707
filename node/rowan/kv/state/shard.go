package state

import (
	"slices"
	"sync"

	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
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
	// The last version that was given, or the highest that was found in a log, or learned. It is
	// not below commit's.
	version uint64
	// All records up to it, by term and version, are on all replicas. Its term is the last one in
	// which the server has all that any replica had (Settle), and its version is the CommitVer of
	// that term's primary, the leader. It never exceeds what is so.
	commit kv.Order
	leader int
	// Versions above commit that are on all replicas: a bit each, modulo window.
	acked [window / 64]uint64
	// What the primary carried out: see Next and Count. They only grow.
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

// Count counts a client's request that Next does not: a GET, or a write that its key refuses. What
// is refused since it would have to wait does not count: clients repeat it many times a period, so
// a shard without room would look hot.
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

// Settle notes that each replica has all records of earlier terms that any replica has. node is the
// primary of the term.
//
// CommitVer begins again with each term. A new primary gives versions above those of the records
// that it finds; records with higher ones may be gone, as those of DELs are, while another replica
// has learned that they were committed. What it gives must not pass for committed there.
func (s *Shard) Settle(term uint32, node int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit, s.leader = kv.Order{Term: term}, node
}

// Lead is Settle by the term's primary, which serves the shard from here on. All versions found are
// committed, those that the last primary gave included, and the next version is above all of them.
// So it is above those that the server itself has published in earlier terms: others may take that
// word for one of this term.
func (s *Shard) Lead(term uint32, node int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serves { // else writes are in flight, with versions above what was found
		s.commit.Version = s.version
		clear(s.acked[:]) // of earlier terms; nothing is in flight
	}
	s.commit.Term, s.leader, s.serves = term, node, true
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

// Next gives the next version, and counts the write. It reports false if too many are in flight.
// The caller must bring an entry with that version to all replicas: CommitVer waits for it.
func (s *Shard) Next() (version uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version-s.commit.Version >= window {
		return 0, false
	}
	s.version++
	s.counts.Requests++
	s.counts.Writes++
	return s.version, true
}

// Done notes that a version is on all replicas, and raises CommitVer as far as all below are, too.
func (s *Shard) Done(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[version%window/64] |= 1 << (version % 64)
	for v := s.commit.Version + 1; s.acked[v%window/64]>>(v%64)&1 != 0; v++ {
		s.acked[v%window/64] &^= 1 << (v % 64)
		s.commit.Version = v
	}
}

// CommitVer returns the CommitVer that the server knows of the last term that it has settled.
func (s *Shard) CommitVer() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit.Version
}

// Committed reports whether a record is known to be on all replicas.
func (s *Shard) Committed(o kv.Order) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.commit.Before(o)
}

// Learn notes a CommitVer that a node's server has published. It counts if that was the primary of
// the last term that this server has settled: what it published in a later term covers this one,
// and what it published before it served in this term covers nothing of it. Whatever it covers, a
// new primary goes on above it, as the target of a migration does above its source's.
func (s *Shard) Learn(node int, commit uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serves {
		s.version = max(s.version, commit)
	}
	if s.commit.Term > 0 && node == s.leader { // a server that has begun anew has settled none
		s.commit.Version = max(s.commit.Version, commit)
	}
}
