package ibverbs

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/transport"
)

// host is where the tests' nodes listen, and with it the device that they use; without it they use
// one in software.
var host = flag.String("rdma", "", "run over the RDMA device with this IP address, instead of one in software")

func TestMain(m *testing.M) {
	child.Main(childMain)
	flag.Parse()
	if *host != "" && !Built {
		fmt.Println(ErrNotBuilt)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// pool is a pool with its nodes in this process.
type pool struct {
	*Fabric
	*adapters
	nodes []*memnode.Node
	addrs []string
}

// shape is that of a pool.
type shape struct {
	nodes     int
	memory    uint64
	telemetry uint64 // bytes behind the memory
	lease     time.Duration
	handler   rdma.Handler
	own       Options
	unfenced  bool  // devices in software that keep no fences
	nodeMTU   uint8 // of those of the nodes, as network.mtu
	security  transport.Security
	via       func(node int, addr string) string // how a node is reached; nil: by its own address
}

// devices makes adapters.
type adapters struct {
	t   testing.TB
	net *network
}

func newAdapters(t testing.TB) *adapters {
	a := &adapters{t: t}
	if *host == "" {
		a.net = newNetwork(t)
		t.Cleanup(func() {
			if n := a.net.open.Load(); n != 0 {
				t.Errorf("%d things of the device were not closed", n)
			}
		})
	}
	return a
}

func (a *adapters) open() adapter {
	a.t.Helper()
	if a.net != nil {
		return a.net.adapter()
	}
	d, err := OpenDevice(Choice{}, *host+":0")
	if err != nil {
		a.t.Fatal(err)
	}
	return d.a
}

// start starts a node that ends with the test.
func start(t testing.TB, a *adapters, s *shape, at string) *memnode.Node {
	t.Helper()
	d := &Device{a.open()}
	node, err := memnode.Listen(memnode.Config{
		Listen: at, Memory: max(s.memory, 4096), Telemetry: s.telemetry, Handler: s.handler, Device: d,
		Conns: 4096, Security: s.security,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

// witnesses is how many nodes without memory let a pool of n nodes lose one.
func witnesses(n int) int {
	if n == 2 {
		return 1
	}
	return 0
}

func newPool(t testing.TB, s shape) *pool {
	t.Helper()
	if s.memory == 0 {
		s.memory = 1 << 20
	}
	if s.lease == 0 {
		s.lease = lease
	}
	p, n := &pool{adapters: newAdapters(t)}, s.nodes
	if p.net != nil {
		p.net.fenceless, p.net.mtu = s.unfenced, s.nodeMTU
	}
	for i := range n + witnesses(n) {
		node := start(t, p.adapters, &s, "127.0.0.1:0")
		addr := node.Addr()
		if s.via != nil {
			addr = s.via(i, addr)
		}
		p.nodes, p.addrs = append(p.nodes, node), append(p.addrs, addr)
	}
	o := control.Options{Addresses: p.addrs[:n], Witnesses: p.addrs[n:], Lease: s.lease, Fabric: Name,
		Security: s.security}
	f, err := control.Create(o, control.Geometry{Nodes: n, Memory: s.memory, Telemetry: s.telemetry, Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.net != nil {
		p.net.mtu = 0
	}
	p.Fabric = newFabric(f, p.open(), s.own)
	closeAtEnd(t, p)
	return p
}

// options are those by which others open the pool.
func (p *pool) options() control.Options {
	return control.Options{Addresses: p.addrs[:p.Nodes()], Fabric: Name}
}

func closeAtEnd(t testing.TB, f interface{ Close() error }) {
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// lease is long: what nodes and clients say to each other meanwhile would count as allocations of
// verbs.
const lease = 10 * time.Second

func harness() rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			return newPool(t, shape{nodes: nodes, memory: memory, handler: h})
		},
		Parallel: rdmatest.Goroutines,
		Beside: func(t testing.TB, f rdma.Fabric, _ int, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
			rdmatest.Goroutines(t, f, append([]func(rdma.Endpoint){server}, clients...)...)
		},
		KillNode:     func(t testing.TB, f rdma.Fabric, node int) { f.(*pool).nodes[node].Close() },
		Lease:        40 * time.Millisecond,
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, AllocFree: true, PastNodes: true, Rings: true},
	}
}

func TestFabric(t *testing.T) { rdmatest.Run(t, harness()) }
