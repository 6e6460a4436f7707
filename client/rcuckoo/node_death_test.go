package rcuckoo

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/check/wait"
)

// mortal is a pool in real time. Its nodes can be killed.
type mortal struct {
	rdma.Fabric
	kill func(node int)
}

func mortalMem(t *testing.T, nodes int, p table.Params) mortal {
	f := memPool(t, nodes, p)
	return mortal{f, func(n int) { must(t, f.KillNode(n)) }}
}

func mortalTCP(t *testing.T, nodes int, p table.Params) mortal {
	l := lay(t, p, nodes)
	var all []*memnode.Node
	var addresses []string
	const witnesses = 3 // so that a majority of the voters is left in the end
	for range nodes + witnesses {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: l.Bytes, Handler: node.Serve})
		must(t, err)
		t.Cleanup(func() { n.Close() })
		all, addresses = append(all, n), append(addresses, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addresses[:nodes], Witnesses: addresses[nodes:]},
		control.Geometry{Nodes: nodes, Memory: l.Bytes, Clients: p.Clients},
		func(f *tcp.Fabric) error { return Make(f, p) })
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return mortal{f, func(n int) { all[n].Close() }}
}

// keep keeps a pool until the returned function is called.
func (f mortal) keep(t *testing.T) (end func()) {
	ep, err := f.Open("keeper")
	must(t, err)
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		o := cluster.Options{Lease: 300 * time.Millisecond, Stop: stop.Load, Log: func(e cluster.Event) { t.Log(e) }}
		recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) }
		done <- cluster.Keep(ep, f.Fabric, recoverer, o)
	}()
	return func() {
		stop.Store(true)
		must(t, <-done)
		must(t, ep.Close())
	}
}

var until = wait.Until

// TestNodesDie: memory nodes die one after the other while workers run, in real time. A spare
// takes the place of the first. No operation fails, and all copies are equal in the end.
func TestNodesDie(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		replicas int
		make     func(*testing.T, int, table.Params) mortal
	}{{"mem, 2 replicas", 2, mortalMem}, {"mem, 3 replicas", 3, mortalMem}, {"tcp, 2 replicas", 2, mortalTCP},
		{"tcp, 3 replicas", 3, mortalTCP}} {
		t.Run(c.name, func(t *testing.T) {
			if teeth.UnderRace && strings.HasPrefix(c.name, "tcp") {
				t.Skip("the nodes take longer than leases; run without -race")
			}
			if (c.name == "mem, 2 replicas" || c.name == "tcp, 3 replicas") && os.Getenv("FARKV_LONG") != "1" {
				t.Skip("takes its time: FARKV_LONG=1 runs it, as .ci/run does")
			}
			t.Parallel() // it waits, mostly
			p := extentPool(3)
			p.Slabs, p.Clients, p.Replicas, p.Spares = 12, 16, c.replicas, 1
			f := c.make(t, 4, p)
			end := f.keep(t)
			stop, histories := f.work(t, 3)
			f.kill(0)
			until(t, "node 3 stands for node 0", func() bool {
				return f.View().Members[3].Replaces == 1 && !f.View().Busy
			})
			f.kill(1)
			until(t, "node 1 is gone", func() bool { return f.View().Members[1].Gone && !f.View().Busy })
			if c.replicas == 3 {
				f.kill(2)
				until(t, "node 2 is gone", func() bool { return f.View().Members[2].Gone && !f.View().Busy })
			}
			stop()
			end()
			h := histories()
			if bad := h.With(check.Failed, check.TimedOut, check.Uncertain); len(bad) > 0 {
				t.Errorf("%d of %d operations failed, such as %s", len(bad), len(h), &bad[0])
			}
			must(t, check.Linearizable(h, check.Options{}))
			r, err := Check(f.Fabric)
			must(t, err)
			if len(r.Damage)+len(r.Waiting) > 0 {
				t.Errorf("%q, waiting: %q", r.Damage, r.Waiting)
			}
		})
	}
}

// work has workers work on few keys until stop; then they have done a few operations more.
func (f mortal) work(t *testing.T, workers int) (stop func(), histories func() check.History) {
	const keys, pause, behind = 5, 200 * time.Microsecond, 30
	var over atomic.Bool
	t.Cleanup(func() { over.Store(true) })
	var all sync.WaitGroup
	recorders := make([]*check.Recorder, workers)
	for w := range workers {
		ep, err := f.Open("worker")
		must(t, err)
		s, err := Open(ep, session.Options{Pool: f.Fabric, Failure: 3 * time.Second})
		must(t, err)
		r := check.NewRecorder(w, s, ep.Now)
		recorders[w] = r
		all.Go(func() {
			left := behind
			for n := 1; left > 0; n++ {
				if over.Load() {
					left--
				}
				key := fmt.Appendf(nil, "key-%d", ep.Rand().IntN(keys))
				value := check.MakeValue(nil, w, n, 16+ep.Rand().IntN(100))
				switch ep.Rand().IntN(5) {
				case 0, 1:
					r.Get(key)
				case 2:
					r.Update(key, value)
				case 3:
					r.Insert(key, value)
				case 4:
					r.Delete(key)
				}
				ep.Sleep(pause)
			}
			if err := client.Leave(s, ep, f.Fabric); err != nil {
				t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond) // operations are probably at work then; nothing depends on that
	return func() { over.Store(true); all.Wait() }, func() (h check.History) {
		for _, r := range recorders {
			h = append(h, r.History()...)
		}
		return h
	}
}
