package ibverbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// wire holds back WRITEs and SENDs on their way until it is opened.
type wire struct {
	p    *pool
	gate chan struct{}
}

func (p *pool) hold() *wire {
	w := &wire{p: p, gate: make(chan struct{})}
	p.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Write) || q.op == uint8(rdma.Send) {
			<-w.gate
		}
		return statusSuccess
	})
	return w
}

// open lets what was held back arrive, and waits until it has.
func (w *wire) open(t testing.TB) {
	before := w.p.net.past.Load()
	w.p.net.fail(nil)
	close(w.gate)
	eventually(t, "what was held back arrives", func() bool { return w.p.net.past.Load() > before })
}

// TestLate holds a WRITE back on the wire until its sender has been told that it does not land
// later, in each of the ways in which that is said. Then it arrives.
func TestLate(t *testing.T) {
	needsSoft(t)
	var link *gateway
	for what, c := range map[string]struct {
		end  func(t *testing.T, p *pool, ep *Endpoint) error
		want error
	}{
		"fence": {func(_ *testing.T, p *pool, _ *Endpoint) error {
			return errors.Join(p.advance(1), p.Fence(1))
		}, rdma.ErrStale},
		"revoke": {func(_ *testing.T, p *pool, ep *Endpoint) error { return p.Revoke(ep.Client()) }, rdma.ErrRevoked},
		"revoke a life": {func(_ *testing.T, p *pool, ep *Endpoint) error {
			return p.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
		}, rdma.ErrRevoked},
		"join": {func(_ *testing.T, p *pool, ep *Endpoint) error {
			if err := p.advance(1); err != nil {
				return err
			}
			_, err := ep.Join()
			return err
		}, rdma.ErrStale},
		"attach": {func(_ *testing.T, _ *pool, ep *Endpoint) error {
			ep.drop(&ep.peers[0], rdma.ErrNodeDown)
			_, err := add(ep, rdma.At(0, 0))
			return err
		}, rdma.ErrNodeDown},
		"close": {func(_ *testing.T, _ *pool, ep *Endpoint) error { return ep.Close() }, rdma.ErrClosed},
		"connection": {func(t *testing.T, p *pool, ep *Endpoint) error {
			before, err := p.Reach(0)
			link.sever()
			eventually(t, "the process is connected again", func() bool {
				now, err := p.Reach(0)
				return err == nil && now > before
			})
			if ep.check(&ep.peers[0]); ep.peers[0].qp != nil {
				t.Error("a queue pair is kept that is of an earlier connection of the process's")
			}
			return err
		}, rdma.ErrNodeDown},
		"expel": {func(_ *testing.T, p *pool, _ *Endpoint) error {
			if ok, err := p.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); err != nil || !ok {
				return fmt.Errorf("advance: %v, %w", ok, err)
			}
			return p.Expel(1, 0)
		}, rdma.ErrNodeDown},
	} {
		t.Run(what, func(t *testing.T) {
			nodes := 1
			if what == "expel" {
				nodes = 3
			}
			p := newPool(t, shape{nodes: nodes, via: func(node int, addr string) string {
				if node > 0 {
					return addr
				}
				link = newGateway(t, addr)
				return link.addr()
			}})
			ep := worker(t, p.Fabric)
			mustAdd(t, ep, rdma.At(0, 0), 0)
			w := p.hold()
			b := posted(t, ep, rdma.At(0, 8), 77)
			base := ep.peers[0].base
			if err := c.end(t, p, ep); err != nil {
				t.Fatal(err)
			}
			w.open(t)
			ends(t, ep, b, c.want)
			if got := p.net.word(base + 8); got != 0 {
				t.Errorf("a WRITE that was held back has landed: the word is %d", got)
			}
		})
	}
}

// TestFenceRaces fences epoch after epoch off while workers raise words of their epoch, and connect
// again and again. Behind a fence no word of an epoch before changes.
func TestFenceRaces(t *testing.T) {
	rounds := 12
	if long {
		rounds = 200
	}
	const workers = 3
	p := newPool(t, shape{nodes: 2, memory: 1 << 20})
	at := func(node, w int, epoch uint64) rdma.Addr { return rdma.At(node, 8*(1+uint64(w)+workers*epoch)) }
	stop := make(chan struct{})
	var group sync.WaitGroup
	for w := range workers {
		ep := worker(t, p.Fabric)
		rnd := rand.New(rand.NewPCG(1, uint64(w)))
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				node := rnd.IntN(2)
				_, err := add(ep, at(node, w, ep.Epoch()))
				if errors.Is(err, rdma.ErrStale) {
					_, err = ep.Join()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(8) == 0 {
					ep.drop(&ep.peers[node], rdma.ErrNodeDown)
				}
			}
		})
	}
	ep := worker(t, p.Fabric)
	var seen [][]uint64 // by epoch, what its words were behind its fence
	words := func(epoch uint64) (all []uint64) {
		for w := range workers {
			all = append(all, word(t, ep, at(0, w, epoch)), word(t, ep, at(1, w, epoch)))
		}
		return all
	}
	for epoch := range uint64(rounds) {
		time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		if err := errors.Join(p.advance(epoch+1), p.Fence(epoch+1)); err != nil {
			t.Fatal(err)
		}
		if _, err := ep.Join(); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, words(epoch))
	}
	time.Sleep(5 * time.Millisecond)
	close(stop)
	group.Wait()
	some := uint64(0)
	for epoch, before := range seen {
		for i, now := range words(uint64(epoch)) {
			some += now
			if now != before[i] {
				t.Errorf("word %d of epoch %d was %d behind its fence, and is %d", i, epoch, before[i], now)
			}
		}
	}
	if some == 0 {
		t.Error("no verb landed at all")
	}
}

// TestRevokeRaces fences workers off that raise words, and connect again and again.
func TestRevokeRaces(t *testing.T) {
	rounds := 12
	if long {
		rounds = 300
	}
	p := newPool(t, shape{nodes: 2})
	judge := worker(t, p.Fabric)
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(2, uint64(round)))
		pause := time.Duration(rnd.IntN(2000)) * time.Microsecond
		victim, err := p.Fabric.Open("victim")
		if err != nil {
			t.Fatal(err)
		}
		ep := victim.(*Endpoint)
		a := rdma.At(round%2, 8*uint64(round+1))
		var group sync.WaitGroup
		group.Go(func() {
			for {
				if _, err := add(ep, a); errors.Is(err, rdma.ErrRevoked) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(4) == 0 {
					ep.drop(&ep.peers[a.Node()], rdma.ErrNodeDown)
				}
			}
		})
		time.Sleep(pause)
		if err := p.Revoke(ep.Client()); err != nil {
			t.Fatal(err)
		}
		before := word(t, judge, a)
		group.Wait()
		if now := word(t, judge, a); now != before {
			t.Errorf("round %d: the word was %d when its writer was fenced off, and is %d", round, before, now)
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRemadePool drops a pool and makes another on the same nodes: a client that had the first one
// open changes nothing of the second.
func TestRemadePool(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	opened, err := control.Open(p.options())
	if err != nil {
		t.Fatal(err)
	}
	old := newFabric(opened, p.open(), Options{})
	ep, err := old.Open("old")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ep.Close(), old.Close()); !errors.Is(err, rdma.ErrUnreachable) {
			t.Errorf("a client of a pool that is gone leaves with %v", err)
		}
	})
	mustAdd(t, ep, rdma.At(0, 0), 0)
	w := p.hold()
	b := posted(t, ep, rdma.At(0, 8), 77)
	if err := control.Remove(p.options(), true); err != nil {
		t.Fatal(err)
	}
	f, err := control.Create(p.options(), control.Geometry{Nodes: 1, Memory: p.Size(), Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := newFabric(f, p.open(), Options{})
	closeAtEnd(t, again)
	other := worker(t, again)
	w.open(t)
	ends(t, ep, b, rdma.ErrNodeDown)
	for _, off := range []uint64{0, 8} {
		if got := word(t, other, rdma.At(0, off)); got != 0 {
			t.Errorf("a word of a new pool is %d", got)
		}
	}
	if _, err := add(ep, rdma.At(0, 0)); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("a worker of the old pool goes on with %v", err)
	}
	mustAdd(t, other, rdma.At(0, 0), 0)
}
