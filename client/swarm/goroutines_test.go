package swarm

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/workloads/check"
)

// TestGoroutines lets clients meet on shared memory, where nothing is atomic but words. Their
// answers are linearizable, and buffers are used again at once.
func TestGoroutines(t *testing.T) {
	for _, s := range []Shape{
		{Replicas: 3, Words: 6, Locks: 6, Writers: 6, MaxValue: 400},
		{Replicas: 3, Words: 1, Locks: 6, Writers: 6, MaxValue: 400},
		{Replicas: 5, Words: 2, Locks: 3, Writers: 6, MaxValue: 16},
	} {
		t.Run(fmt.Sprintf("%d words, %d locks", s.Words, s.Locks), func(t *testing.T) {
			f, a := pool(t, s, 5, 2, fewBuffers)
			a.recycle()
			must(t, crowd(t, f, a, 300, Options{}, func() {}))
		})
	}
}

// TestNodesOverTCP: one of three nodes ends in the midst of it, and no operation fails.
func TestNodesOverTCP(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 4, Locks: 3, Writers: 4, MaxValue: 400})
	must(t, err)
	a := newArena(l, 3, 2, 1<<12)
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
	err = crowd(t, f, a, 150, Options{Timeout: 30 * time.Second}, func() {
		if done.Add(1) == 200 {
			nodes[0].Close()
		}
	})
	must(t, err)
}

// crowd lets each writer of the shape do so many operations at the same time, calling after behind
// each, and checks what they answer.
func crowd(t *testing.T, f rdma.Fabric, a *arena, ops int, o Options, after func()) error {
	recorders := make([]*check.Recorder, a.Writers+1)
	first := worker(t, f, a, o)
	recorders[a.Writers] = check.NewRecorder(a.Writers, first, first.ep.Now)
	for n := range a.keys {
		must(t, recorders[a.Writers].Insert(fmt.Appendf(nil, "key-%d", n), check.MakeValue(nil, a.Writers, n+1, 16)))
	}
	var g errgroup.Group
	for w := range a.Writers {
		o.Writer = w
		k := worker(t, f, a, o)
		recorders[w] = check.NewRecorder(w, k, k.ep.Now)
		if w == 0 { // the number was the first one's
			for n := range k.keys {
				k.keys[n] = NewRegister(k.keys[n].Object, first.keys[n].Floor())
			}
		}
		g.Go(func() error { return mix(recorders[w], w, ops, k, after) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return judge(recorders, false)
}

func mix(s client.Store, w, ops int, k *registers, after func()) error {
	rng := k.ep.Rand()
	for n := range ops {
		key := fmt.Appendf(nil, "key-%d", rng.IntN(2))
		var err error
		if rng.IntN(2) == 0 {
			err = s.Update(key, check.MakeValue(nil, w, n+1, k.MaxValue))
		} else {
			_, err = s.Get(key)
		}
		if err != nil {
			return err
		}
		after()
	}
	return nil
}
