package rtx

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestGoroutines lets clients meet on shared memory, where nothing is atomic but words. Some die;
// others repair what they leave.
func TestGoroutines(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f, l := pool(t, Shape{Nodes: nodes, Clients: 64, Roots: 4, Objects: 4096, Sizes: []int{64, 512}})
		crowd(t, f, l, 8, 150, Options{Drift: 5 * time.Millisecond, Timeout: 20 * time.Second,
			Quarantine: time.Microsecond})
	}
}

// TestOverTCP: the same with nodes that are processes, as far as verbs can tell.
func TestOverTCP(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 2, Memory: memMemory, Clients: 64, Roots: 4, Objects: 4096, Sizes: []int{64, 512}})
	must(t, err)
	var addresses []string
	for range 2 {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: memMemory, Handler: node.Serve})
		must(t, err)
		t.Cleanup(func() { n.Close() })
		addresses = append(addresses, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addresses},
		control.Geometry{Nodes: 2, Memory: memMemory, Clients: 64}, nil)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, Prepare(f, l))
	crowd(t, f, l, 5, 60, Options{Drift: 20 * time.Millisecond, Timeout: 30 * time.Second})
}

// crowd lets clients do so many transactions at the same time. Every third one dies in the midst,
// twice, and has a successor; the last ones are not recovered before all have ended.
func crowd(t *testing.T, f rdma.Fabric, l *Layout, clients, ops int, o Options) {
	t.Helper()
	k := newBank(l, 3)
	k.Pad = 30
	first := worker(t, f, l, o)
	must(t, errors.Join(k.Found(customer{first, nil}), first.Close()))
	dead := make([][]*Worker, clients)
	var g errgroup.Group
	for c := range clients {
		g.Go(func() error {
			for life := 0; ; life++ {
				ep, err := f.Open("client")
				if err != nil {
					return err
				}
				rng := rand.New(rand.NewPCG(uint64(c), uint64(life)))
				dies := c%3 == 0 && life < 2
				if dies {
					ep = fault.New(ep, fault.Fault{At: 1 + rng.Uint64N(uint64(10*ops)), Crash: fault.Stop})
				}
				w, err := Open(ep, l, o)
				if dies && errors.Is(err, rdma.ErrClosed) {
					continue
				}
				if err != nil {
					return err
				}
				err = work(k, w, fmt.Sprintf("client %d.%d", c, life), ops, rng)
				if dies && errors.Is(err, rdma.ErrClosed) {
					dead[c] = append(dead[c], w)
					continue
				}
				return errors.Join(err, w.Close())
			}
		})
	}
	must(t, g.Wait())
	w := worker(t, f, l, o)
	must(t, k.End(customer{w, nil}))
	gone := map[rdma.ClientID]bool{}
	for _, list := range dead {
		for _, d := range list {
			gone[d.id] = true
			must(t, f.Revoke(d.id))
			must(t, w.Recover(d.id))
		}
	}
	must(t, k.End(customer{w, nil}))
	u, err := w.Check(func(c rdma.ClientID) bool { return !gone[c] })
	if err != nil || u.Lost > 0 || u.Objects != u.Named {
		t.Errorf("%d clients died: %+v, %v", len(gone), u, err)
	}
	t.Logf("%d transactions, %d clients died: %+v; the last one: %+v", k.Events(), len(gone), u, w.stats)
}

func work(k *accounts, w *Worker, name string, ops int, rng *rand.Rand) error {
	for range ops {
		if err := k.Act(customer{w, nil}, name, rng); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
