package tcp_test

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

func TestMain(m *testing.M) {
	child.Main(childMain)
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() == "" &&
		flag.Lookup("test.parallel").Value.String() == fmt.Sprint(runtime.GOMAXPROCS(0)) {
		flag.Set("test.parallel", "16") // they wait for connections more than they work
	}
	goleak.VerifyTestMain(m)
}

// pool is a pool with its nodes in this process.
type pool struct {
	*tcp.Fabric
	nodes []*memnode.Node
}

// start starts nodes that end with the test.
func start(t testing.TB, n int, memory uint64, h rdma.Handler) (nodes []*memnode.Node, addrs []string) {
	t.Helper()
	for range n {
		node, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: max(memory, 4096), Handler: h,
			Conns: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := node.Close(); err != nil {
				t.Error(err)
			}
		})
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
	}
	return nodes, addrs
}

// lease is long: what nodes and clients say to each other meanwhile would count as allocations of
// verbs.
const lease = 10 * time.Second

// witnesses is how many nodes without memory let a pool of n nodes lose one.
func witnesses(n int) int {
	if n == 2 {
		return 1
	}
	return 0
}

func New(t testing.TB, n int, memory uint64, h rdma.Handler) *pool {
	t.Helper()
	nodes, addrs := start(t, n+witnesses(n), memory, h)
	o := control.Options{Addresses: addrs[:n], Witnesses: addrs[n:], Lease: lease, MTU: 256}
	f, err := tcp.Create(o, control.Geometry{Nodes: n, Memory: memory, Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	settle(t, nodes, n)
	return &pool{f, nodes}
}

// settle waits until all nodes of a pool are connected to each other: what they do until then would
// count as allocations of verbs, too.
func settle(t testing.TB, nodes []*memnode.Node, holding int) {
	t.Helper()
	voters := min(len(nodes), 7)
	want := voters*(len(nodes)-1) + len(nodes) + holding // peers, and the maker's connections
	eventually(t, "the nodes are connected", func() bool {
		sum := 0
		for _, n := range nodes {
			sum += n.Stats().Connections
		}
		return sum == want
	})
}

func harness() rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			return New(t, nodes, memory, h)
		},
		Parallel: rdmatest.Goroutines,
		Beside: func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint),
			clients ...func(rdma.Endpoint)) {
			var group sync.WaitGroup
			group.Go(func() { rdmatest.Goroutines(t, besideOf(t, f.(*pool).nodes[node]), server) })
			rdmatest.Goroutines(t, f, clients...)
			group.Wait()
		},
		KillNode:     func(t testing.TB, f rdma.Fabric, node int) { f.(*pool).nodes[node].Close() },
		Lease:        40 * time.Millisecond,
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, AllocFree: true, Rings: true},
	}
}

func TestFabric(t *testing.T) { rdmatest.Run(t, harness()) }

// besideOf opens a node's pool beside it, until the end of the test.
func besideOf(t testing.TB, n *memnode.Node) *tcp.Fabric {
	o, err := n.Beside()
	if err != nil {
		t.Fatal(err)
	}
	f, err := tcp.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestBeside: a fabric that is beside node 0 is as any other.
func TestBeside(t *testing.T) {
	h := harness()
	h.New = func(t testing.TB, nodes int, memory uint64, handler rdma.Handler) rdma.Fabric {
		p := New(t, nodes, memory, handler)
		return &pool{besideOf(t, p.nodes[0]), p.nodes}
	}
	h.Beside = func(t testing.TB, f rdma.Fabric, _ int, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
		rdmatest.Goroutines(t, f, append([]func(rdma.Endpoint){server}, clients...)...)
	}
	rdmatest.Run(t, h)
}
