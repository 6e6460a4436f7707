package tcp_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/wait"
)

// lasting is for how long a node is cut off: what eventually comes does not come by its end.
const lasting = 2 * wait.Hang

// breaks has a node suffer a fault.
func breaks(t *testing.T, addrs []string, node int, f control.Fault) {
	t.Helper()
	if err := control.Break(t.Context(), control.Options{Addresses: addrs}, node, f); err != nil {
		t.Fatal(err)
	}
}

// TestSlowNode: verbs of a node that is slow on purpose take longer, those of others do not, and it
// ends. Of some verbs the fastest counts: others may wait for the processor.
func TestSlowNode(t *testing.T) {
	const slow = 60 * time.Millisecond
	nodes, addrs := start(t, 2, 1<<20, nil)
	f := created(t, control.Options{Addresses: addrs}, geometry(2))
	ep := attach(t, f, "client")
	took := func(node int) time.Duration {
		t.Helper()
		least := time.Duration(math.MaxInt64)
		for range 10 {
			began := time.Now()
			if _, err := add(ep, node, 0); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	breaks(t, addrs, 0, control.Fault{ID: "slow", Slow: slow, For: time.Minute})
	if d := took(0); d < slow {
		t.Errorf("a verb of a slow node took %v", d)
	}
	if d := took(1); d > slow {
		t.Errorf("a verb of another node took %v", d)
	}
	if f := nodes[0].Info().Fault; f == nil || f.Slow != slow || f.For <= 0 || f.For > time.Minute ||
		f.String() != "verbs take 60ms longer" {
		t.Errorf("it tells of %+v", f)
	}
	another := control.Fault{ID: "another", Slow: slow, For: time.Minute}
	if err := control.Break(t.Context(), control.Options{Addresses: addrs}, 0, another); !errors.Is(err, rdma.ErrHeld) {
		t.Errorf("a second fault: %v", err)
	}
	another.For = 0
	breaks(t, addrs, 0, another) // ends nothing
	if nodes[0].Info().Fault == nil {
		t.Error("one fault ended another")
	}
	breaks(t, addrs, 0, control.Fault{ID: "slow"})
	if d := took(0); d > slow || nodes[0].Info().Fault != nil {
		t.Errorf("it was ended: a verb took %v, %+v", d, nodes[0].Info().Fault)
	}
	breaks(t, addrs, 0, control.Fault{ID: "short", Slow: time.Millisecond, For: 20 * time.Millisecond})
	eventually(t, "it ends by itself", func() bool { return nodes[0].Info().Fault == nil })
}

// TestCutNode cuts a node off from everything: for clients it is down, its lease runs out,
// administrators still see it, and when it is over it goes on.
func TestCutNode(t *testing.T) {
	t.Parallel()
	nodes, addrs := start(t, 3, 1<<20, nil)
	f := created(t, control.Options{Addresses: addrs, Lease: short}, geometry(3))
	ep := attach(t, f, "client")
	if _, err := add(ep, 0, 0); err != nil {
		t.Fatal(err)
	}
	breaks(t, addrs, 0, control.Fault{ID: "cut", Clients: true, Peers: []int{1, 2}, For: lasting})
	if _, err := add(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb came through: %v", err)
	}
	if _, err := add(ep, 1, 0); err != nil {
		t.Errorf("a verb of another node: %v", err)
	}
	eventually(t, "its lease is over, and nodes that reach each other have leases", func() bool {
		return leaseOf(t, nodes[0]) == 0 && leaseOf(t, nodes[1]) > 0 && leaseOf(t, nodes[2]) > 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if _, errs := control.Inspect(ctx, control.Options{Addresses: addrs[:1]}); errs[0] == nil {
		t.Error("a client looks at it")
	}
	if _, errs := control.Inspect(t.Context(), control.Options{Addresses: addrs[1:2]}); errs[0] != nil {
		t.Errorf("a client looks at another node: %v", errs[0])
	}
	admin := control.Options{Addresses: addrs, Security: transport.Security{Admin: true}}
	infos, errs := control.Inspect(t.Context(), admin)
	if errs[0] != nil || infos[0].Fault == nil || infos[0].Fault.String() != "cut off from clients, cut off from "+
		"nodes 1, 2" {
		t.Errorf("an administrator looks at it: %+v, %v", infos[0].Fault, errs)
	}
	breaks(t, addrs, 0, control.Fault{ID: "cut"})
	eventually(t, "it goes on", func() bool { _, err := add(ep, 0, 0); return err == nil })
	eventually(t, "it has a lease", func() bool { return leaseOf(t, nodes[0]) > 0 })
}

// TestCutFromClients: a node that its peers reach keeps its lease; administrators decide nothing
// through it; a node that ends does not wait for the end of a cut.
func TestCutFromClients(t *testing.T) {
	t.Parallel()
	nodes, addrs := start(t, 3, 1<<20, nil)
	f := created(t, control.Options{Addresses: addrs, Lease: short}, geometry(3))
	ep := attach(t, f, "client")
	breaks(t, addrs, 2, control.Fault{ID: "cut", Clients: true, For: lasting})
	for range 3 {
		if _, err := add(ep, 2, 0); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("a verb came through: %v", err)
		}
		eventually(t, "it has a lease", func() bool { return leaseOf(t, nodes[2]) > 0 })
	}
	admin := opened(t, control.Options{Addresses: addrs, Security: transport.Security{Admin: true}})
	if err := admin.Fence(1); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a fence came through: %v", err)
	}
	if err := nodes[2].Close(); err != nil {
		t.Error(err)
	}
}

// TestCutFromPeers: two of three nodes that do not talk to each other have a majority with the
// third.
func TestCutFromPeers(t *testing.T) {
	t.Parallel()
	nodes, addrs := start(t, 3, 1<<20, nil)
	created(t, control.Options{Addresses: addrs, Lease: short}, geometry(3))
	eventually(t, "each node has its first lease", func() bool {
		return leaseOf(t, nodes[0]) > 0 && leaseOf(t, nodes[1]) > 0
	})
	breaks(t, addrs, 0, control.Fault{ID: "cut", Peers: []int{1}, For: lasting})
	time.Sleep(3 * short) // a node without a majority has no lease by then, and gets none
	eventually(t, "each node with a majority has a lease", func() bool {
		return leaseOf(t, nodes[0]) > 0 && leaseOf(t, nodes[1]) > 0
	})
	breaks(t, addrs, 1, control.Fault{ID: "cut", Peers: []int{2}, For: lasting})
	eventually(t, "a node without one has no lease", func() bool { return leaseOf(t, nodes[1]) == 0 })
	for n := range 2 {
		breaks(t, addrs, n, control.Fault{ID: "cut"})
	}
	eventually(t, "it has a lease again", func() bool { return leaseOf(t, nodes[1]) > 0 })
}

// TestCutNodeIsExpelled: what clients sent to a node that was cut off, and expelled meanwhile, is
// never executed.
func TestCutNodeIsExpelled(t *testing.T) {
	t.Parallel()
	nodes, addrs := start(t, 3, 1<<20, nil)
	f := created(t, control.Options{Addresses: addrs, Lease: short}, geometry(3))
	keeps(t, f)
	ep := attach(t, f, "client")
	if _, err := add(ep, 0, 0); err != nil {
		t.Fatal(err)
	}
	breaks(t, addrs, 0, control.Fault{ID: "cut", Clients: true, Peers: []int{1, 2}, For: lasting})
	if _, err := add(ep, 0, 0); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a verb came through: %v", err)
	}
	eventually(t, "it is gone", func() bool { return f.View().Members[0].Gone })
	breaks(t, addrs, 0, control.Fault{ID: "cut"})
	time.Sleep(2 * short)
	if n := nodes[0].Stats().Atomics; n != 1 {
		t.Errorf("it executed %d verbs", n)
	}
	// Its peers tell it, so that no connection waits there for a lease that never comes.
	eventually(t, "it knows", func() bool { return nodes[0].Info().Expelled })
}

// TestFaultsAreRefused: faults are for administrators, and bounded.
func TestFaultsAreRefused(t *testing.T) {
	nodes, addrs, _ := guarded(t, 3, transport.Security{Token: token, ReadToken: readToken})
	created(t, control.Options{Addresses: addrs, Security: transport.Security{Token: token}}, geometry(3))
	slow := control.Fault{ID: "slow", Slow: time.Millisecond, For: time.Minute}
	for name, c := range map[string]struct {
		s    transport.Security
		node int
		f    control.Fault
		want error
	}{
		"a read token": {transport.Security{ReadToken: readToken}, 0, slow, rdma.ErrAccess},
		"no token":     {transport.Security{}, 0, slow, transport.ErrToken},
		"no such node": {transport.Security{Token: token}, 3, slow, rdma.ErrAccess},
		"too long": {transport.Security{Token: token}, 0, control.Fault{ID: "x", Slow: 1, For: control.MaxFault + 1},
			rdma.ErrAccess},
		"too slow": {transport.Security{Token: token}, 0, control.Fault{ID: "x", Slow: control.MaxSlow + 1, For: 1},
			rdma.ErrAccess},
		"nothing": {transport.Security{Token: token}, 0, control.Fault{ID: "x", For: time.Minute}, rdma.ErrAccess},
		"no name": {transport.Security{Token: token}, 0, control.Fault{Slow: 1, For: time.Minute}, rdma.ErrAccess},
		"from itself": {transport.Security{Token: token}, 1, control.Fault{ID: "x", Peers: []int{1}, For: time.Minute},
			rdma.ErrAccess},
		"from a node 3": {transport.Security{Token: token}, 1,
			control.Fault{ID: "x", Peers: []int{3}, For: time.Minute},
			rdma.ErrAccess},
		"negative slowness": {transport.Security{Token: token}, 1,
			control.Fault{ID: "x", Slow: -1, Clients: true, For: time.Minute}, rdma.ErrAccess},
	} {
		if err := control.Break(t.Context(), control.Options{Addresses: addrs, Security: c.s}, c.node,
			c.f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i, n := range nodes {
		if f := n.Info().Fault; f != nil {
			t.Errorf("node %d suffers %v", i, f)
		}
	}
}
