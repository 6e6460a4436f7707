package state

import (
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rowan/kv"
)

// TestCommitVer: it is the highest version below which all are acknowledged, in whatever order they
// are. Too many in flight are refused.
func TestCommitVer(t *testing.T) {
	s, r := &Shard{}, rand.New(rand.NewPCG(1, 2))
	var flying []uint64
	acked := map[uint64]bool{}
	for range 5 * window {
		if r.IntN(2) == 0 || len(flying) == 0 {
			v, ok := s.Next()
			if !ok {
				t.Fatal("a version is refused")
			}
			flying = append(flying, v)
			continue
		}
		i := r.IntN(min(len(flying), 50))
		v := flying[i]
		flying = append(flying[:i], flying[i+1:]...)
		acked[v] = true
		s.Done(v)
		if c := s.CommitVer(); acked[c+1] || c > 0 && !acked[c] {
			t.Fatalf("CommitVer is %d", c)
		}
		if len(flying) > 0 && s.CommitVer() >= flying[0] {
			t.Fatalf("CommitVer is %d, and %d is in flight", s.CommitVer(), flying[0])
		}
	}
	for _, v := range flying {
		s.Done(v)
	}
	if s.CommitVer() != s.version {
		t.Errorf("CommitVer is %d of %d, with none in flight", s.CommitVer(), s.version)
	}
	first, _ := s.Next()
	n := 1
	for v, ok := s.Next(); ok && n < 2*window; v, ok = s.Next() {
		s.Done(v)
		n++
	}
	if n != window || s.CommitVer() != first-1 {
		t.Errorf("%d versions in flight, CommitVer %d behind %d", n, s.CommitVer(), first)
	}
	s.Done(first)
	if s.CommitVer() != s.version {
		t.Errorf("CommitVer is %d of %d", s.CommitVer(), s.version)
	}
}

// TestLead: the first version of a new primary is above all that it found, and these are committed.
// One that goes on knows what is in flight.
func TestLead(t *testing.T) {
	s := &Shard{}
	s.Gain(3, 10)
	s.Settle(3, 1)
	s.Learn(1, 5)
	s.Find(9)
	s.Find(7)
	s.Lead(4, 2)
	if v, ok := s.Next(); !ok || v != 10 || s.CommitVer() != 9 {
		t.Errorf("the first version is %d, %t, with CommitVer %d", v, ok, s.CommitVer())
	}
	s.Find(20)
	s.Lead(5, 2)
	if v, ok := s.Next(); !ok || v != 11 || s.CommitVer() != 9 {
		t.Errorf("the next version is %d, %t, with CommitVer %d", v, ok, s.CommitVer())
	}
}

// TestLearned: the first version of a new primary is above what it has learned of any other one,
// whatever that covers.
func TestLearned(t *testing.T) {
	s := &Shard{}
	s.Settle(1, 2)
	s.Learn(3, 20)
	s.Lead(2, 0)
	if v, ok := s.Next(); !ok || v != 21 {
		t.Errorf("the first version is %d, %t", v, ok)
	}
}

// TestLeadsAgain: what was acknowledged above a gap in an earlier time as the primary says nothing
// of the versions that come a window later.
func TestLeadsAgain(t *testing.T) {
	s := &Shard{}
	s.Lead(1, 0)
	s.Next() // it is not acknowledged
	above, _ := s.Next()
	s.Done(above)
	s.Follow()
	s.Lead(2, 0)
	for v, ok := s.Next(); ok; v, ok = s.Next() {
		if v < above+window {
			s.Done(v)
		}
	}
	if s.CommitVer() != above+window-1 {
		t.Errorf("CommitVer is %d, and %d is in flight", s.CommitVer(), above+window)
	}
}

// TestCommittedByTerm: what a replica has learned of one primary says nothing of the versions that
// another one gives, which may be lower; nor does what that one has published before it served.
func TestCommittedByTerm(t *testing.T) {
	s := &Shard{}
	s.Gain(1, 10)
	committed := func(term uint32, version uint64, want bool) {
		t.Helper()
		if o := (kv.Order{Term: term, Version: version}); s.Committed(o) != want {
			t.Errorf("version %d of term %d: committed is %v", version, term, !want)
		}
	}
	s.Learn(0, 20) // it has begun anew, and knows no primary
	committed(1, 1, false)
	if s.CommitVer() > 0 {
		t.Error("it publishes what it has not settled")
	}
	s.Settle(1, 2)
	s.Learn(2, 14)
	committed(1, 14, true)
	committed(1, 15, false)
	// Term 2, with another primary, is not settled: what the last primary published at its end
	// counts.
	s.Learn(3, 20)
	committed(1, 15, false)
	s.Learn(2, 15)
	committed(1, 15, true)
	committed(2, 1, false)
	s.Settle(2, 3)
	committed(1, 99, true)
	committed(2, 12, false)
	s.Learn(3, 12)
	committed(2, 12, true)
	committed(2, 13, false)
}

// TestGained: a server that has lost a shard and is a replica again takes nothing of earlier terms
// for it, and knows what it names by the old index for garbage.
func TestGained(t *testing.T) {
	s := &Shard{}
	s.Gain(3, 10)
	s.Gain(4, 10)
	if s.Takes(2) || !s.Takes(3) || !s.Takes(4) {
		t.Error("a replica since term 3 takes what is of term 2, or not what is of later ones")
	}
	s.Index().Insert(1, 64, nil)
	s.Lose(5)
	if x, live := s.Naming(1, 64); s.Takes(5) || x == nil || live {
		t.Error("a server that is no replica takes entries, or does not know those that it took")
	}
	s.Gain(7, 10)
	if _, live := s.Naming(1, 64); s.Takes(6) || !s.Takes(7) || live || s.Index().Len() > 0 {
		t.Error("a replica since term 7 has what it had in term 4")
	}
	if s.Leaving(4) != nil || s.Leaving(5) == nil {
		t.Error("an index is emptied in the term in which it was in use")
	}
	s.Forget(s.Leaving(5))
	if x, _ := s.Naming(1, 64); x != nil {
		t.Error("an index that is empty is kept")
	}
}
