package state

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
)

// TestScattered: an entry of several blocks is live in each segment that has some, is moved with
// the first one that is cleaned, and is none that another entry at its place could be taken for.
func TestScattered(t *testing.T) {
	const at, size = 1000, 300
	s, blocks := newSpace(4), []rdma.Addr{rdma.At(0, at), rdma.At(0, 2000)}
	s.Scatter(at, blocks, []int{0, 0, 1})
	s.Place(1, 600)
	s.Place(0, 500)
	s.Add(at, 0, size, kv.Put)
	if s.IsDead(0) || s.IsDead(1) || s.total != size {
		t.Errorf("dead: %t, %t; %d bytes are live", s.IsDead(0), s.IsDead(1), s.total)
	}
	s.Offer([]rowan.Segment{{Index: 1}, {Index: 0}})
	if _, _, ok := s.Pick(50); ok {
		t.Error("a segment is picked of which half is live")
	}
	seg, parts, ok := s.Pick(51)
	if !ok || seg.Index != 1 || len(parts) != 1 {
		t.Fatalf("picked %v, %t, with %v", seg, ok, parts)
	}
	s.Move(at, 0, 3000, 2, size, kv.Put)
	if !s.IsDead(0) || !s.IsDead(1) || s.IsDead(2) || s.total != size {
		t.Errorf("moved: dead: %t, %t, %t; %d bytes are live", s.IsDead(0), s.IsDead(1), s.IsDead(2), s.total)
	}
	if seg, parts, ok = s.Pick(51); !ok || seg.Index != 0 || len(parts) != 0 {
		t.Errorf("then picked %v, %t, with %v", seg, ok, parts)
	}
	if err := s.Forget(seg); err != nil || s.Blocks(at) != nil {
		t.Errorf("forget: %v, blocks %v", err, s.Blocks(at))
	}
	s.Scatter(at, blocks, []int{0, 3})
	s.Add(at, 0, size, kv.Put)
	if err := s.Forget(rowan.Segment{Index: 1}); err != nil || s.Blocks(at) == nil {
		t.Errorf("forget the other one: %v, blocks %v", err, s.Blocks(at))
	}
}
