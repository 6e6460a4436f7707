package tcp_test

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestProcesses runs what the suite has for nodes and clients that are processes: nodes die by
// SIGKILL.
func TestProcesses(t *testing.T) {
	t.Parallel()
	type remote struct {
		*tcp.Fabric
		nodes []*child.Process
	}
	h := harness()
	h.New = func(t testing.TB, n int, memory uint64, handler rdma.Handler) rdma.Fabric {
		nodes, addrs := nodeProcesses(t, n+witnesses(n))
		o := control.Options{Addresses: addrs[:n], Witnesses: addrs[n:]}
		return &remote{created(t, o, control.Geometry{Nodes: n, Memory: memory, Clients: 64}), nodes}
	}
	h.KillNode = func(t testing.TB, f rdma.Fabric, node int) { f.(*remote).nodes[node].Kill() }
	h.Spawn = func(t testing.TB, f rdma.Fabric, role string, n int) {
		var all []*child.Process
		for range n {
			all = append(all, child.Start(t, "role-"+role, f.(*remote).Record().Addresses[0]))
		}
		for _, p := range all {
			p.End(t)
		}
	}
	// in need of the suite's handler, which these nodes do not have, or of allocations in this
	// process
	own := map[string]bool{
		"Calls": true, "CallsAreAtomic": true, "Allocations": true, "NoHandler": true, "Revoke": true,
		"Fence": true, "LostMaster": true,
	}
	few := map[string]bool{"Processes": true, "NodeDeath": true, "Expel": true, "Access": true, "Views": true}
	for _, c := range rdmatest.Cases() {
		if own[c.Name] || !long && !few[c.Name] {
			continue
		}
		t.Run(c.Name, func(t *testing.T) { c.Test(t, h) })
	}
}
