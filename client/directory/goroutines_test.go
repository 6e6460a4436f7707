package directory

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/workloads/check"
)

// TestGoroutines lets clients meet on shared memory, where nothing is atomic but words: their
// answers are linearizable, and every buffer is a bucket's in the end.
func TestGoroutines(t *testing.T) {
	for _, s := range []Shape{{Nodes: 3, Replicas: 3, Buckets: 1}, {Nodes: 6, Replicas: 5, Buckets: 3}} {
		t.Run(fmt.Sprintf("%d replicas", s.Replicas), func(t *testing.T) {
			f, a := pool(t, s, 1000)
			must(t, crowd(t, f, a, 500, func() {}))
			c := worker(t, f, a, Options{})
			held := 0
			must(t, c.Walk(func(f *Found) error {
				held += len(f.Held)
				return nil
			}))
			for _, o := range a.owned {
				held -= len(o)
			}
			if held != 0 || a.breach != nil {
				t.Errorf("%d buffers have no owner: %v", -held, a.breach)
			}
		})
	}
}

// TestNodesOverTCP: one of three nodes ends in the midst of it, and no operation fails.
func TestNodesOverTCP(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: 2})
	must(t, err)
	a := newArena(l, 1000)
	var nodes []*memnode.Node
	var addresses []string
	for range 3 {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: a.memory()})
		must(t, err)
		t.Cleanup(func() { n.Close() })
		nodes, addresses = append(nodes, n), append(addresses, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addresses},
		control.Geometry{Nodes: 3, Memory: a.memory(), Clients: 16},
		nil)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	var done atomic.Int32
	must(t, crowd(t, f, a, 60, func() {
		if done.Add(1) == 100 {
			nodes[0].Close()
		}
	}))
}

// crowd lets four clients do so many operations each, calling after behind each, and checks what
// they answer.
func crowd(t *testing.T, f rdma.Fabric, a *arena, ops int, after func()) error {
	const clients, keys = 4, 4
	recorders := make([]*check.Recorder, clients)
	var g errgroup.Group
	for w := range clients {
		ep, err := f.Open(t.Name())
		must(t, err)
		x := &index{Client: Open(ep, a.Layout, a, Options{Timeout: 30 * time.Second}), worker: w,
			buckets: int(a.Buckets)}
		recorders[w] = check.NewRecorder(w, x, ep.Now)
		r := &run{keys: keys, ops: ops, writes: 6, after: after}
		g.Go(func() error {
			defer ep.Close()
			defer x.Close()
			r.work(w, ep, recorders[w])
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return judge(recorders, new(tally))
}
