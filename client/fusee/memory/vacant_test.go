package memory

import (
	"testing"

	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// rival takes departed clients' blocks over just before its worker does, as often as it has left.
type rival struct {
	rdma.Endpoint
	t    *testing.T
	s    *session.Session
	left int
}

func (r *rival) Post(b *rdma.Batch) error {
	if op := b.Op(0); b.Step() == session.StepTakeOver && r.left > 0 {
		r.left--
		e := node.Entry(op.Expect)
		if _, err := r.s.Swap("test", op.Addr, uint64(e), uint64(e.Next(r.s.ID, e.Class()))); err != nil {
			r.t.Error(err)
		}
	}
	return r.Endpoint.Post(b)
}

// TestEmptyBlocksAreTaken: how many empty blocks of a departed client another one takes at a time,
// with others beside it or not. Those that others win do not count.
func TestEmptyBlocksAreTaken(t *testing.T) {
	for _, test := range []struct {
		others   bool
		won      int // by a rival
		expected int
	}{{false, 0, 10}, {true, 0, mostTaken}, {true, mostTaken, mostTaken}} {
		f := pool(t)
		x, other, a := allocator(t, f), allocator(t, f), allocator(t, f)
		for range 20 {
			if err := x.NewBlock(0); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.LeaveAll(); err != nil {
			t.Fatal(err)
		}
		if test.others { // it has one block, in one of twelve regions
			if err := other.NewBlock(1); err != nil {
				t.Fatal(err)
			}
		}
		a.s.Endpoint = &rival{a.s.Endpoint, t, other.s, test.won}
		if err := a.takeEmpty(true); err != nil {
			t.Fatal(err)
		}
		if n := len(a.Emptied); n != test.expected {
			t.Errorf("%+v: got %d blocks that rest, want %d", test, n, test.expected)
		}
	}
}
