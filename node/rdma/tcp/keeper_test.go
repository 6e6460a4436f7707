package tcp_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// idle is a recoverer of pools that hold nothing.
type idle struct{}

func (idle) Spares() []int { return nil }

func (idle) Mend(rdma.View) error { return nil }

func (idle) Restore(rdma.View, int, int) error { return nil }

func (idle) Recover(rdma.View, rdma.ClientID) error { return nil }

func (idle) Sweep(rdma.View) error { return nil }

// keeps makes a process a candidate for its pool's master.
func keeps(t *testing.T, f *tcp.Fabric) {
	t.Helper()
	ep, err := f.Open("keeper")
	if err != nil {
		t.Fatal(err)
	}
	o := cluster.Options{Lease: f.Tenure(), Tick: f.Tenure() / 12}
	newIdle := func(rdma.Endpoint) (cluster.Recoverer, error) { return idle{}, nil }
	if err := ep.Go("keeper", func(own rdma.Endpoint) { cluster.Keep(own, f, newIdle, o) }); err != nil {
		t.Fatal(err)
	}
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "a master", func() bool { _, _, ok := f.Master(); return ok })
}

// TestResetIsNoDeath resets the master's connections to nodes that are well: none is expelled for
// that. Between two resets the master hears of the node, as its next probe shows, which comes
// behind the answer to the one before.
func TestResetIsNoDeath(t *testing.T) {
	f, proxies := behind(t, 3, control.DefaultLease, nil)
	keeps(t, f.Fabric)
	var probed [3]uint64 // when the node's connection was reset
	for i := range 15 {
		node := f.nodes[i%3]
		eventually(t, "two probes of the node", func() bool { return node.Stats().Reads >= probed[i%3]+2 })
		time.Sleep(time.Duration(i*7919%50) * time.Millisecond)
		proxies[i%3].sever(caller.verbs)
		probed[i%3] = node.Stats().Reads + 1 // one may be under way
		for n, m := range f.View().Members {
			if m.Gone || f.View().Epoch > 0 {
				t.Fatalf("after %d resets node %d is gone, or was thought to be: %+v", i+1, n, f.View())
			}
		}
	}
}

// apart cuts one process off from a node.
func apart(p *proxy, process string) {
	p.rule(func(c caller) fate {
		if c.Process == process {
			return severed
		}
		return through
	})
}

// shared makes a pool behind proxies with a registry elsewhere, and opens it as another process
// does.
func shared(t *testing.T) (f, other *tcp.Fabric, proxies []*proxy) {
	_, addrs := start(t, 3, 1<<20, nil)
	for i, a := range addrs {
		proxies = append(proxies, newProxy(t, a))
		addrs[i] = proxies[i].addr()
	}
	store := membership.Memory()
	f = created(t, control.Options{Addresses: addrs, Registry: store, RegistryName: "memory"},
		control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 16})
	return f, opened(t, control.Options{Addresses: addrs, Registry: store}), proxies
}

// TestMasterCutOff cuts the master off from all nodes, but not from the registry: it is no use as a
// master, and does no harm.
func TestMasterCutOff(t *testing.T) {
	t.Parallel()
	f, other, proxies := shared(t)
	keeps(t, f)
	was, _, _ := f.Master()
	keeps(t, other)
	for _, p := range proxies {
		apart(p, f.Process())
	}
	for until := time.Now().Add(4 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		v := other.View()
		for n, m := range v.Members {
			if m.Gone || other.NodeDown(n) {
				t.Fatalf("node %d is well, and gone: %+v", n, v)
			}
		}
	}
	eventually(t, "another candidate leads an idle view", func() bool {
		r, _, ok := other.Master()
		return ok && r.Owner != was.Owner && !other.View().Busy
	})
}

// TestCutOffIsNoDeath has two processes that reach different nodes: neither is dead for the other.
func TestCutOffIsNoDeath(t *testing.T) {
	t.Parallel()
	f, works, proxies := shared(t)
	ep := attach(t, works, "works")
	apart(proxies[2], works.Process())
	apart(proxies[0], f.Process())
	apart(proxies[1], f.Process())
	time.Sleep(2 * control.DefaultLease) // until nodes that have lost a process say so
	if _, err := add(ep, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range f.Clients() {
		if c.ID == ep.Client() && !c.Alive {
			t.Errorf("a client that works with two of three nodes is %+v", c)
		}
	}
}
