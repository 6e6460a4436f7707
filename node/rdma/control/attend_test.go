package control_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestAttendance joins the view while another process is attached, and is not any more: the nodes
// that are asked for the view say so with it, and what a node said that has not answered since
// counts for nothing.
func TestAttendance(t *testing.T) {
	t.Parallel()
	var nodes []*memnode.Node
	var o control.Options
	for range 3 {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nodes, o.Addresses = append(nodes, n), append(o.Addresses, n.Addr())
	}
	f, err := tcp.Create(o, control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	other, err := tcp.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	open := func(f *tcp.Fabric) *tcp.Endpoint {
		ep, err := f.Open("client")
		if err != nil {
			t.Fatal(err)
		}
		return ep.(*tcp.Endpoint)
	}
	looks, leaves := open(f), open(other)
	defer looks.Close()
	knows := func() bool {
		if _, err := looks.Join(); err != nil {
			t.Fatal(err)
		}
		return looks.KnowsAlive(other.Process())
	}
	if !knows() {
		t.Error("the nodes do not say that a process is attached")
	}
	until := time.Now().Add(20 * time.Second)
	wait := func(what string, over func() bool) {
		t.Helper()
		for ; !over(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal(what)
			}
		}
	}
	wait("the last node says nothing", func() bool {
		knows()
		return f.SaidAlive(2, other.Process())
	})
	if err := nodes[2].Close(); err != nil {
		t.Error(err)
	}
	if leaves.Close() != nil || other.Close() != nil {
		t.Error("the other process did not get to leave")
	}
	wait("a process that has left is attached", func() bool { return !knows() })
	clients, err := rdma.ListJoined(looks, f)
	if err != nil || len(clients) != 1 || !clients[0].Alive {
		t.Errorf("clients %+v, %v", clients, err)
	}
}
