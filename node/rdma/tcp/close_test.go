package tcp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestCloseWithoutMajority closes a pool with a keeper and workers of which too few nodes are left,
// dead or silent: it takes the time to be sure of that once, not once for each of them, and what
// cannot be given back is named.
func TestCloseWithoutMajority(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(n *memnode.Node, p *proxy){
		"dead":   func(n *memnode.Node, p *proxy) { n.Close(); p.rule(func(caller) fate { return severed }) },
		"silent": func(_ *memnode.Node, p *proxy) { p.rule(func(caller) fate { return lost }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closeWithout(t, end)
		})
	}
}

func closeWithout(t *testing.T, end func(n *memnode.Node, p *proxy)) {
	nodes, addrs := start(t, 3, 1<<20, nil)
	var proxies []*proxy
	for i, addr := range addrs {
		proxies = append(proxies, newProxy(t, addr))
		addrs[i] = proxies[i].addr()
	}
	f, err := tcp.Create(control.Options{Addresses: addrs}, geometry(3), nil)
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, f)
	var workers []rdma.Endpoint
	for range 4 {
		ep, err := f.Open("worker")
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, ep)
	}
	for i := range 2 {
		end(nodes[i], proxies[i])
	}
	began := time.Now()
	for _, ep := range workers {
		if err := ep.Close(); !errors.Is(err, rdma.ErrUnreachable) {
			t.Errorf("close client %d, which no registry can be told of: %v", ep.Client(), err)
		}
	}
	between := time.Now()
	err = f.Close()
	t.Logf("workers took %v, the pool %v: %v", between.Sub(began), time.Since(between), err)
	if !errors.Is(err, rdma.ErrUnreachable) || errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	for _, ep := range workers {
		if err != nil && !strings.Contains(err.Error(), fmt.Sprint(ep.Client())) {
			t.Errorf("client %d was not given back, and is not named: %v", ep.Client(), err)
		}
	}
	if again := f.Close(); again != err {
		t.Errorf("closed again: %v", again)
	}
	if took := time.Since(began); took > limit/2 { // on a machine that is busy; otherwise 2 to 3 s
		t.Errorf("everything took %v", took)
	}
}

// TestCloseWaitsForMajority closes a worker in the moment in which all connections are down: they
// are made again, and its identity is given back.
func TestCloseWaitsForMajority(t *testing.T) {
	f, proxies := behind(t, 3, short, nil)
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		p.sever(func(c caller) bool { return c.Purpose == "control" })
	}
	if err := ep.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if left := f.Clients(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
