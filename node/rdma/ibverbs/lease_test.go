package ibverbs

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// gated is a pool of three nodes behind gateways. While one is shut off the other two need each
// other for their leases: so these are no shorter than a busy machine can renew.
type gated struct {
	*pool
	gates []*gateway
}

func newGated(t *testing.T) *gated {
	needsSoft(t)
	g := &gated{}
	g.pool = newPool(t, shape{nodes: 3, lease: control.DefaultLease, via: func(_ int, addr string) string {
		g.gates = append(g.gates, newGateway(t, addr))
		return g.gates[len(g.gates)-1].addr()
	}})
	return g
}

// overdue waits until the process does not know a node to serve any more.
func (g *gated) overdue(t *testing.T, node int) {
	eventually(t, "what the node said of its lease is over", func() bool {
		until, _ := g.Served(node)
		return realtime.Boot() > until
	})
}

// TestHeldBack shuts a node off from all others while its device goes on: what the device does is
// done, but its result is not taken. Once the node says that it serves it is; when it does not in a
// second, it is lost with the connection.
func TestHeldBack(t *testing.T) {
	for what, shut := range map[string]func(g *gated) []*gateway{
		"from its clients": func(g *gated) []*gateway { return g.gates[1:2] },
		"from its peers":   func(g *gated) []*gateway { return []*gateway{g.gates[0], g.gates[2]} },
	} {
		for _, again := range []bool{true, false} {
			name := what
			if again {
				name += ", and back"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newGated(t)
				ep := worker(t, g.Fabric)
				mustAdd(t, ep, rdma.At(1, 8), 0)
				for _, gate := range shut(g) {
					gate.close()
				}
				if what == "from its peers" {
					// This process can still ask the node, which has its lease for a while.
					eventually(t, "the node's lease is over", func() bool { return g.nodes[1].Info().Lease == 0 })
				}
				g.overdue(t, 1)
				base, b := ep.peers[1].base, ep.Batch()
				op := b.FetchAdd(rdma.At(1, 8), 1)
				before := g.net.word(base + 8)
				if err := ep.Post(b); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the device has done it", func() bool { return g.net.word(base+8) == before+1 })
				for range 5 {
					ep.progress(0)
				}
				if b.Completed(0) {
					t.Fatalf("a result is taken of a node that is not known to serve: %d, %v", op.Result, op.Err)
				}
				if again {
					for _, gate := range g.gates {
						gate.open()
					}
					ends(t, ep, b, nil)
					if op.Result != before {
						t.Errorf("the word was %d, want %d", op.Result, before)
					}
					return
				}
				begun := realtime.Now()
				ends(t, ep, b, rdma.ErrNodeDown)
				if took := realtime.Now() - begun; took > testPatience/2 {
					t.Errorf("that takes %v", took)
				}
				for _, gate := range g.gates {
					gate.open()
				}
			})
		}
	}
}

// TestLeaseEndsMeanwhile has the device do something behind the end of the node's lease, for a
// worker that looks for nothing else since before it: the time counts behind the completion.
func TestLeaseEndsMeanwhile(t *testing.T) {
	g := newGated(t)
	ep := worker(t, g.Fabric)
	mustAdd(t, ep, rdma.At(1, 8), 0)
	g.gates[1].close()
	g.net.fail(func(_ *softPair, q request) status {
		for until, _ := g.Served(1); realtime.Boot() <= until; until, _ = g.Served(1) {
			time.Sleep(time.Millisecond)
		}
		return statusSuccess
	})
	b := posted(t, ep, rdma.At(1, 8), 7)
	ep.progress(testPatience)
	if b.Completed(0) {
		t.Error("a result is taken from a node that had no lease any more when its device was done")
	}
	g.net.fail(nil)
	g.gates[1].open()
	ends(t, ep, b, nil)
}

// TestExpelSilentNode expels a node that answers no process, while its device goes on. Whatever a
// worker posts from then on fails, and what was in flight then fails, too.
func TestExpelSilentNode(t *testing.T) {
	g := newGated(t)
	ep := worker(t, g.Fabric)
	mustAdd(t, ep, rdma.At(1, 8), 0)
	g.gates[1].close()
	gate := make(chan struct{})
	g.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Read) {
			<-gate
		}
		return statusSuccess
	})
	b := ep.Batch()
	b.Read(rdma.At(1, 8), 8)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	if ok, err := g.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := g.Expel(1, 1); err != nil {
		t.Fatal(err)
	}
	close(gate)
	g.net.fail(nil)
	ends(t, ep, b, rdma.ErrNodeDown)
	if got, err := add(ep, rdma.At(1, 8)); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a node that was expelled says %d, %v", got, err)
	}
	mustAdd(t, ep, rdma.At(0, 8), 0)
	g.gates[1].open()
	for range 20 { // it hears of the rest only now
		if got, err := add(ep, rdma.At(1, 8)); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("a node that was expelled says %d, %v", got, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestWaitIsBounded waits for nodes that answer no process: not for much longer than it was told
// to, however many they are.
func TestWaitIsBounded(t *testing.T) {
	g := newGated(t)
	ep := worker(t, g.Fabric)
	for node := range 3 {
		mustAdd(t, ep, rdma.At(node, 8), 0)
		g.gates[node].close()
	}
	g.net.fail(func(*softPair, request) status { return silent })
	b := ep.Batch()
	for node := range 3 {
		b.FetchAdd(rdma.At(node, 8), 1)
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	begun := realtime.Now()
	err := ep.Wait(b, rdma.All, 10*time.Millisecond)
	// a second for the first: the others are given up by then
	if took := realtime.Now() - begun; took > testPatience/2 {
		t.Errorf("a wait of 10 ms takes %v", took)
	}
	if err == nil {
		ends(t, ep, b, rdma.ErrNodeDown)
	} else if !errors.Is(err, rdma.ErrTimeout) {
		t.Error(err)
	}
	g.net.fail(nil)
	for node := range 3 {
		g.gates[node].open()
	}
}
