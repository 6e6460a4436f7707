package kv

import (
	"math/rand/v2"
	"testing"
)

// TestCommitVer: it is the highest version below which all are acknowledged, in whatever order they
// are. Too many in flight are refused.
func TestCommitVer(t *testing.T) {
	s, r := &shard{}, rand.New(rand.NewPCG(1, 2))
	var flying []uint64
	acked := map[uint64]bool{}
	for range 5 * window {
		if r.IntN(2) == 0 || len(flying) == 0 {
			v, ok := s.next()
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
		s.done(v)
		if c := s.committed(); acked[c+1] || c > 0 && !acked[c] {
			t.Fatalf("CommitVer is %d", c)
		}
		if len(flying) > 0 && s.committed() >= flying[0] {
			t.Fatalf("CommitVer is %d, and %d is in flight", s.committed(), flying[0])
		}
	}
	for _, v := range flying {
		s.done(v)
	}
	if s.committed() != s.version {
		t.Errorf("CommitVer is %d of %d, with none in flight", s.committed(), s.version)
	}
	first, _ := s.next()
	n := 1
	for v, ok := s.next(); ok && n < 2*window; v, ok = s.next() {
		s.done(v)
		n++
	}
	if n != window || s.committed() != first-1 {
		t.Errorf("%d versions in flight, CommitVer %d behind %d", n, s.committed(), first)
	}
	s.done(first)
	if s.committed() != s.version {
		t.Errorf("CommitVer is %d of %d", s.committed(), s.version)
	}
}

// TestLead: the first version of a new primary is above all that it found, and these are committed.
// One that goes on knows what is in flight.
func TestLead(t *testing.T) {
	s := &shard{}
	s.gain(3, 10)
	s.learn(5)
	s.find(9)
	s.find(7)
	s.lead()
	if v, ok := s.next(); !ok || v != 10 || s.committed() != 9 {
		t.Errorf("the first version is %d, %t, with CommitVer %d", v, ok, s.committed())
	}
	s.find(20)
	s.lead() // in the next term
	if v, ok := s.next(); !ok || v != 11 || s.committed() != 9 {
		t.Errorf("the next version is %d, %t, with CommitVer %d", v, ok, s.committed())
	}
}

// TestGained: a server that has lost a shard and is a replica again takes nothing of earlier terms
// for it, and knows what it names by the old index for garbage.
func TestGained(t *testing.T) {
	s := &shard{}
	s.gain(3, 10)
	s.gain(4, 10)
	if s.takes(2) || !s.takes(3) || !s.takes(4) {
		t.Error("a replica since term 3 takes what is of term 2, or not what is of later ones")
	}
	s.has().Insert(1, 64, nil)
	s.lose(5)
	if x, live := s.naming(1, 64); s.takes(5) || x == nil || live {
		t.Error("a server that is no replica takes entries, or does not know those that it took")
	}
	s.gain(7, 10)
	if _, live := s.naming(1, 64); s.takes(6) || !s.takes(7) || live || s.has().Len() > 0 {
		t.Error("a replica since term 7 has what it had in term 4")
	}
	if s.leaving(4) != nil || s.leaving(5) == nil {
		t.Error("an index is emptied in the term in which it was in use")
	}
	s.forget(s.leaving(5))
	if x, _ := s.naming(1, 64); x != nil {
		t.Error("an index that is empty is kept")
	}
}
