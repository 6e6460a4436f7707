package shm

import (
	"sync/atomic"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestViewWord packs the widest states and changes.
func TestViewWord(t *testing.T) {
	for _, s := range []rdma.State{{}, {Epoch: 1, Busy: true}, {Epoch: 1<<27 - 1}, {Epoch: 1<<27 - 1, Busy: true}} {
		w := stateWord(s)
		if w.state() != s {
			t.Errorf("%+v is packed as %#x and unpacked as %+v", s, w, w.state())
		}
		for _, c := range []struct{ from, to rdma.Member }{
			{rdma.Member{}, rdma.Member{Gone: true}},
			{rdma.Member{}, rdma.Member{Replaces: 1<<15 - 1, Since: s.Epoch}},
			{rdma.Member{Replaces: 3, Since: 9}, rdma.Member{Replaces: 3, Since: 9, Gone: true}},
			{rdma.Member{Replaces: 3, Since: 9}, rdma.Member{Replaces: 3, Since: s.Epoch, Gone: true}},
		} {
			p := w.with(MaxNodes-1, c.from, c.to)
			if p.state() != s || p.node() != MaxNodes-1 || p&changeBit == 0 {
				t.Errorf("%+v with a change is %#x", s, p)
			}
			if got := p.member(c.from.Word() | downBit); rdma.MemberOf(got) != c.to || got&downBit == 0 {
				t.Errorf("%v becomes %v, not %v", c.from, rdma.MemberOf(got), c.to)
			}
			if d := p.settled(); d.state() != s || d == w || d&changeBits != 0 {
				t.Errorf("%#x is settled as %#x", p, d)
			}
		}
	}
}

// TestChangeOfAMasterThatDied has a master die behind its announcement of a change: any process
// that looks at the view carries it out, and only once.
func TestChangeOfAMasterThatDied(t *testing.T) {
	f, _ := newMem(t)
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	spare := rdma.Member{Replaces: 1, Since: 1}
	announced := stateWord(rdma.State{Epoch: 1, Busy: true}).with(2, rdma.Member{}, spare)
	for name, look := range map[string]func(){
		"a view":   func() { f.View() },
		"a state":  func() { f.Advance(rdma.State{Epoch: 9}, rdma.State{Epoch: 10}) },
		"a member": func() { f.SetMember(1, 1, rdma.Member{Gone: true}, rdma.Member{Gone: true, Since: 1}) },
	} {
		atomic.StoreUint64(&f.head.members[2], 0)
		atomic.StoreUint64(&f.head.state, uint64(announced))
		look()
		if m := rdma.MemberOf(atomic.LoadUint64(&f.head.members[2])); m != spare {
			t.Errorf("behind %s the node %v", name, m)
		}
		if v := f.View(); v.Epoch != 1 || !v.Busy || v.Members[2] != spare {
			t.Errorf("behind %s the view is %+v", name, v)
		}
	}
}
