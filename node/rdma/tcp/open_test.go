package tcp_test

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// TestOpenWithSilentNode opens a pool of which one node stands still, by the addresses of all or of
// some: it is given the time after which a node counts as dead, and not that for calling one that
// is needed; it is one that is down, and comes back.
func TestOpenWithSilentNode(t *testing.T) {
	for what, by := range map[string][]int{"all": {0, 1, 2}, "the silent one and another": {1, 2}, "another": {0}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes, all := nodeProcesses(t, 3)
			created(t, control.Options{Addresses: all}, geometry(3))
			var addrs []string
			for _, n := range by {
				addrs = append(addrs, all[n])
			}
			nodes[1].Stop(t)
			asked := make(chan struct{}) // until a call of the silent one is given up
			go func() {
				defer close(asked)
				control.Inspect(t.Context(), control.Options{Addresses: all[1:2]})
			}()
			f := opened(t, control.Options{Addresses: addrs})
			select {
			case <-asked:
				t.Error("it took as long as a call of the silent node")
			default:
			}
			ep := attach(t, f, "client")
			for _, n := range []int{0, 2} {
				if _, err := add(ep, n, 0); err != nil {
					t.Errorf("node %d: %v", n, err)
				}
			}
			if _, err := add(ep, 1, 0); !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("the silent node: %v", err)
			}
			nodes[1].GoOn(t)
			<-asked
			eventually(t, "the node is back", func() bool { _, err := add(ep, 1, 0); return err == nil })
		})
	}
}
