package tcp_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestOpenWithSilentNode opens a pool of which one node stands still, by the addresses of all or of some: it is given the time
// after which a node counts as dead, and no more; it is one that is down, and comes back.
func TestOpenWithSilentNode(t *testing.T) {
	for what, by := range map[string][]int{"all": {0, 1, 2}, "the silent one and another": {1, 2}, "another": {0}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes, all := nodeProcesses(t, 3)
			created(t, tcp.Options{Addresses: all}, geometry(3))
			var addrs []string
			for _, n := range by {
				addrs = append(addrs, all[n])
			}
			nodes[1].Stop(t)
			began := time.Now()
			f := opened(t, tcp.Options{Addresses: addrs})
			took := time.Since(began)
			ep := attach(t, f, "client")
			t.Logf("opened in %v, and attached %v later", took, time.Since(began)-took)
			if took > 3*time.Second { // less than the silent one may take to answer once
				t.Errorf("it took %v", took)
			}
			for _, n := range []int{0, 2} {
				if _, err := add(ep, n, 0); err != nil {
					t.Errorf("node %d: %v", n, err)
				}
			}
			if _, err := add(ep, 1, 0); !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("the silent node: %v", err)
			}
			nodes[1].GoOn(t)
			eventually(t, "the node is back", func() bool { _, err := add(ep, 1, 0); return err == nil })
		})
	}
}
