package stores

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestOutlives compares how many deaths stores say that they outlive with what follows from their
// copies: of replicas one has to be left, of those that majorities use a majority.
func TestOutlives(t *testing.T) {
	for _, c := range []struct {
		store string
		p     Params
		dead  []int
		want  int
	}{
		{"fusee", Params{Nodes: 3, DataReplicas: 2, IndexReplicas: 2}, nil, 1},
		{"fusee", Params{Nodes: 3, DataReplicas: 2, IndexReplicas: 2}, []int{1}, 0},
		{"fusee", Params{Nodes: 3, DataReplicas: 2, IndexReplicas: 2}, []int{1, 2}, -1},
		{"fusee", Params{Nodes: 3, DataReplicas: 3, IndexReplicas: 1}, nil, 0},
		// spares hold nothing yet
		{"fusee", Params{Nodes: 5, Spares: 2, DataReplicas: 3, IndexReplicas: 3}, []int{3, 4}, 2},
		{"rcuckoo", Params{Nodes: 3}, nil, 0},
		{"rcuckoo", Params{Nodes: 3}, []int{0}, -1},
		{"rcuckoo", Params{Nodes: 4, DataReplicas: 3}, nil, 2},
		{"rcuckoo", Params{Nodes: 4, DataReplicas: 3}, []int{3}, 1},
		{"swarm", Params{Nodes: 3}, nil, 1},
		{"swarm", Params{Nodes: 3}, []int{2}, 0},
		{"swarm", Params{Nodes: 3}, []int{1, 2}, -1},
		{"swarm", Params{Nodes: 6, DataReplicas: 5}, nil, 2},
		{"swarm", Params{Nodes: 6, DataReplicas: 5}, []int{0, 5}, 0},
		{"dm-abd", Params{Nodes: 4}, []int{3}, 0},
		{"rowan", Params{Nodes: 3}, nil, 2},
		{"rowan", Params{Nodes: 4}, []int{3}, 1},
		{"rowan", Params{Nodes: 3}, []int{0, 1, 2}, -1},
		{"raw", Params{Nodes: 3}, nil, 0},
		{"raw", Params{Nodes: 3}, []int{1}, -1},
		{"race", Params{Nodes: 3}, nil, 0},
		{"race", Params{Nodes: 3}, []int{1}, -1},
		{"race-dtx", Params{Nodes: 3}, nil, 0},
		{"race-dtx", Params{Nodes: 3}, []int{1}, -1},
		{"race-rtx", Params{Nodes: 3}, nil, 0},
		{"race-rtx", Params{Nodes: 3}, []int{1}, -1},
		{"sherman", Params{Nodes: 3}, nil, 0},
		{"sherman", Params{Nodes: 3}, []int{1}, -1},
		{"sherman-dtx", Params{Nodes: 3}, nil, 0},
		{"sherman-dtx", Params{Nodes: 3}, []int{1}, -1},
		{"sherman-rtx", Params{Nodes: 3}, nil, 0},
		{"sherman-rtx", Params{Nodes: 3}, []int{1}, -1},
	} {
		c.p.Records, c.p.Clients = 1000, 8
		p, err := Create("mem:", c.store, c.p)
		if err != nil {
			t.Fatalf("%s %+v: %v", c.store, c.p, err)
		}
		got, err := p.Kind.Outlives(p.Fabric, func(node int) bool { return slices.Contains(c.dead, node) })
		if err != nil || got != c.want {
			t.Errorf("%s on %d nodes, %d and %d copies, without %v: it outlives %d, %v, want %d", c.store, c.p.Nodes,
				c.p.IndexReplicas, c.p.DataReplicas, c.dead, got, err, c.want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A stand-in counts as the node that it replaced.
func TestOutlivesWithStandIn(t *testing.T) {
	for _, store := range []string{"fusee", "rcuckoo"} {
		p, err := Create("mem:", store, Params{Nodes: 4, Spares: 1, DataReplicas: 2, IndexReplicas: 2, Records: 1000,
			Clients: 8})
		if err != nil {
			t.Fatal(err)
		}
		f := p.Fabric
		if _, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil {
			t.Fatal(err)
		}
		none := func(int) bool { return false }
		member := func(n int, to rdma.Member) {
			if ok, err := f.SetMember(1, n, rdma.Member{}, to); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		member(0, rdma.Member{Gone: true})
		if got, err := p.Kind.Outlives(f, none); got != 0 || err != nil {
			t.Errorf("%s without node 0: it outlives %d, %v, want 0", store, got, err)
		}
		member(3, rdma.Member{Replaces: 1, Since: 1})
		if got, err := p.Kind.Outlives(f, none); got != 1 || err != nil {
			t.Errorf("%s with a stand-in: it outlives %d, %v, want 1", store, got, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Each store of the table tells.
func TestOutlivesOfAll(t *testing.T) {
	for _, name := range Names() {
		if k, err := Lookup(name); err != nil || k.Outlives == nil {
			t.Errorf("%s does not tell how many deaths it outlives: %v", name, err)
		}
	}
}
