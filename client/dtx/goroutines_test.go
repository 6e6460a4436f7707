package dtx

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

// TestGoroutines lets clients meet on shared memory, where nothing is atomic but words. Some die,
// and are recovered while the others wait for what they left.
func TestGoroutines(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		f, l := pool(t, Shape{Nodes: nodes, Clients: 64, Roots: 4, RootBytes: 512, Sizes: []int{64, 512}})
		crowd(t, f, l, 8, 150)
	}
}

// TestOverTCP: the same with nodes that are processes, as far as verbs can tell.
func TestOverTCP(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 2, Memory: memMemory, Clients: 64, Roots: 4, RootBytes: 512,
		Sizes: []int{64, 512}})
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
	crowd(t, f, l, 5, 60)
}

// crowd lets clients do so many transactions at the same time. Every third one dies in the midst,
// twice, and has a successor.
func crowd(t *testing.T, f rdma.Fabric, l *Layout, clients, ops int) {
	t.Helper()
	k := newBank(l, 3)
	k.Pad = 300
	o := Options{Timeout: 30 * time.Second}
	first := worker(t, f, l, o)
	must(t, errors.Join(k.Found(customer{first, nil}), first.Close()))
	dead := make(chan *Worker, 2*clients)
	var reaper errgroup.Group
	gone := map[rdma.ClientID]bool{}
	w := worker(t, f, l, o)
	reaper.Go(func() error {
		for d := range dead {
			time.Sleep(Detection)
			if err := errors.Join(f.Revoke(d.id), w.Recover(d.id)); err != nil {
				return err
			}
			gone[d.id] = true
		}
		return nil
	})
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
					ep = fault.New(ep, fault.Fault{At: 20 + rng.Uint64N(uint64(8*ops)), Crash: fault.Stop})
				}
				w, err := Open(ep, l, o)
				if err != nil {
					return err
				}
				err = work(k, w, fmt.Sprintf("client %d.%d", c, life), ops, rng)
				if dies && errors.Is(err, rdma.ErrClosed) {
					dead <- w
					continue
				}
				return errors.Join(err, w.Close())
			}
		})
	}
	must(t, g.Wait())
	close(dead)
	must(t, reaper.Wait())
	must(t, k.End(customer{w, nil}))
	u, err := w.Check(func(c rdma.ClientID) bool { return !gone[c] })
	if err != nil || u.Lost > 0 || u.Waiting > 0 {
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
