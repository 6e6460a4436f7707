package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
)

// given is an allocator that counts what comes back, by node.
type given struct {
	buffers.Allocator
	n map[int]int
}

func (g *given) Give(node int, hash uint64, pointer uint16) {
	if pointer != 0 {
		g.n[node]++
	}
	g.Allocator.Give(node, hash, pointer)
}

// TestFailedChain: it is unknown whether a chain to a node that dies has landed, during the step or
// after it. The chain's buffer has no owner, and is counted.
func TestFailedChain(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 8})
	must(t, err)
	// The timer is shorter than the node takes to fail, or longer.
	for _, slow := range []time.Duration{10 * time.Microsecond, time.Second} {
		a := newArena(l, 3, 2, 100)
		s := sim.New(sim.Options{Nodes: 3, Memory: a.memory(), NodeTimeout: time.Millisecond, Handler: node.Serve})
		s.Go("client", func(ep rdma.Endpoint) {
			x, err := a.open(ep, Options{Slow: slow})
			must(t, err)
			g := &given{x.alloc, map[int]int{}}
			x.alloc = g
			k := &x.keys[0]
			must(t, x.Write(k, []byte("one")))
			must(t, s.KillNode(k.At[k.InPlace].Node()))
			must(t, x.Write(k, []byte("two")))
			ep.Sleep(time.Second)
			must(t, x.Write(&x.keys[1], []byte("other")))
			if n := g.n[k.At[k.InPlace].Node()]; n != 0 || x.Stats().Leaked == 0 {
				t.Errorf("timer %v: %d buffers of a node that died: one is taken, %+v", slow, n, x.Stats())
			}
			x.Close()
		})
		must(t, s.Run())
		s.Close()
	}
}

// cutOnce is an endpoint that a node is out of reach of when a step is posted first.
type cutOnce struct {
	rdma.Endpoint
	step rdma.Step
	node int
}

func (e *cutOnce) Post(b *rdma.Batch) error {
	if b.Step() == e.step {
		e.step = ""
		var faults []fault.Fault
		for i := range b.Len() {
			if b.Op(i).Addr.Node() == e.node {
				faults = append(faults, fault.Fault{At: uint64(i + 1), Err: rdma.NoEffect(rdma.ErrNodeDown)})
			}
		}
		e.Endpoint = fault.New(e.Endpoint, faults...)
	}
	return e.Endpoint.Post(b)
}

// TestUnsentChain: of a chain to a node that is out of reach nothing was sent. Its buffer is the
// client's.
func TestUnsentChain(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 8})
	must(t, err)
	f, a := pool(t, l.Shape, 3, 1, 100)
	ep, err := f.Open("client")
	must(t, err)
	defer ep.Close()
	o := a.object(0)
	at := o.At[o.InPlace].Node()
	x, err := a.open(&cutOnce{ep, stepWriteReadWords, at}, Options{})
	must(t, err)
	defer x.Close()
	g := &given{x.alloc, map[int]int{}}
	x.alloc = g
	k := &x.keys[0]
	must(t, x.Write(k, []byte("value")))
	if n := x.Stats().Leaked; g.n[at] != 1 || n != 0 || x.Stats().Widened == 0 {
		t.Errorf("nothing was sent, and %d buffers have an owner, %d leaked: %+v", g.n[at], n, x.Stats())
	}
}
