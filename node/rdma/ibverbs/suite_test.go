package ibverbs

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// host is where the tests' nodes listen, and with it the device that they use; without it they use one in software.
var host = flag.String("rdma", "", "run over the RDMA device with this IP address, instead of one in software")

func TestMain(m *testing.M) {
	flag.Parse()
	if *host != "" && !Built {
		fmt.Println(ErrNotBuilt)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// pool is a pool whose nodes are in this process.
type pool struct {
	*Fabric
	nodes []*tcp.Node
	net   *network // nil with a real device
}

// devices makes adapters.
type adapters struct {
	t   testing.TB
	net *network
}

func newAdapters(t testing.TB) *adapters {
	a := &adapters{t: t}
	if *host == "" {
		a.net = newNetwork()
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

// start starts nodes that end with the test.
func start(t testing.TB, a *adapters, n int, memory uint64, h rdma.Handler) (nodes []*tcp.Node, addrs []string) {
	t.Helper()
	at := "127.0.0.1:0"
	for range n {
		d := &Device{a.open()}
		node, err := tcp.Listen(tcp.Config{Listen: at, Memory: max(memory, 4096), Handler: h, Device: d, Conns: 4096})
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
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
	}
	return nodes, addrs
}

// witnesses is how many nodes without memory let a pool of n nodes lose one.
func witnesses(n int) int {
	if n == 2 {
		return 1
	}
	return 0
}

func newPool(t testing.TB, n int, memory uint64, lease time.Duration, h rdma.Handler) *pool {
	t.Helper()
	a := newAdapters(t)
	nodes, addrs := start(t, a, n+witnesses(n), memory, h)
	o := tcp.Options{Addresses: addrs[:n], Witnesses: addrs[n:], Lease: lease, Fabric: Name}
	p, err := tcp.Create(o, tcp.Geometry{Nodes: n, Memory: memory, Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := newFabric(p, a.open(), Options{})
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return &pool{f, nodes, a.net}
}

// lease is long: what nodes and clients say to each other meanwhile would count as allocations of verbs.
const lease = 10 * time.Second

func harness() rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			return newPool(t, nodes, memory, lease, h)
		},
		Parallel: func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
			t.Helper()
			var group sync.WaitGroup
			for _, w := range workers {
				ep, err := f.Open("worker")
				if err != nil {
					t.Error(err)
					break
				}
				group.Go(func() {
					defer func() {
						if err := ep.Close(); err != nil {
							t.Error(err)
						}
					}()
					w(ep)
				})
			}
			group.Wait()
		},
		KillNode:     func(t testing.TB, f rdma.Fabric, node int) { f.(*pool).nodes[node].Close() },
		Lease:        40 * time.Millisecond,
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, AllocFree: true},
	}
}

func TestFabric(t *testing.T) { rdmatest.Run(t, harness()) }
