package memnode

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// lonely is a node's part of a pool of five. Its peers do not answer.
func lonely() *pool {
	n := &Node{log: slog.New(slog.DiscardHandler)}
	return newPool(n, control.Record{ID: "lonely", Addresses: make([]string, 5), Nodes: 5, Clients: 1,
		Lease: control.MaxLease}, "")
}

// TestDisowned: a node that so many peers know to be expelled that the others are no majority ends,
// and one that fewer do goes on: their master may have died before the view said it.
func TestDisowned(t *testing.T) {
	p := lonely()
	for _, peer := range []int{1, 1, 2, 2} {
		p.disowned(peer)
		if p.expelled.Load() {
			t.Fatal("a minority expelled the node")
		}
	}
	p.disowned(3)
	if !p.expelled.Load() || p.until.Load() != 0 {
		t.Error("it goes on")
	}
	select {
	case <-p.gone:
	default:
		t.Error("it goes on asking")
	}
	p.disowned(4)
}

// TestAwaitLease: a connection waits for a lease only as long as its client does.
func TestAwaitLease(t *testing.T) {
	t.Parallel()
	p := lonely()
	p.until.Store(0)
	ended := make(chan error, 1)
	go func() { ended <- p.await() }()
	select {
	case err := <-ended:
		if !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("%v", err)
		}
	case <-time.After(5 * awaitLease):
		p.end()
		t.Errorf("it waits for ever: %v", <-ended)
	}
}
