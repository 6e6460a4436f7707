package ops

import (
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// TestWhatWaits: a dead node has to be replaced, unless the pool works with a majority of its
// nodes. The status says so in both cases.
func TestWhatWaits(t *testing.T) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: 4096, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.KillNode(1); err != nil {
		t.Fatal(err)
	}
	if todo := Unrecovered(f, false); len(todo) != 1 || !strings.Contains(todo[0], "node 1") {
		t.Errorf("of a dead node waits: %v", todo)
	}
	if todo := Unrecovered(f, true); len(todo) != 0 {
		t.Errorf("of a node that majorities do without waits: %v", todo)
	}
	if _, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil {
		t.Fatal(err)
	}
	for majority, want := range map[bool]string{true: "swept", false: "only read"} {
		if todo := Unrecovered(f, majority); !strings.Contains(todo[0], want) {
			t.Errorf("of a busy view waits: %v", todo)
		}
		s := State{}
		s.Nodes, s.View = NodesOf(f)
		s.View.majority = majority
		if view := s.View.String(); !strings.Contains(view, want) || !strings.Contains(s.health(), "node 1 is DOWN") {
			t.Errorf("status says %q, and of the nodes %q", view, s.health())
		}
	}
}
