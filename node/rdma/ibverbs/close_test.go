package ibverbs

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// A fabric that closes waits for its tasks before it says goodbye, so that these give back what is
// theirs. A client that left in peace needs no recovery.
func TestCloseJoinsTasks(t *testing.T) {
	f := newPool(t, shape{nodes: 1, memory: 4096, lease: lease})
	ep, err := f.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	err = ep.Go("task", func(own rdma.Endpoint) {
		for own.(*Endpoint).Usable() == nil {
			own.Sleep(time.Millisecond)
		}
		left <- own.Close()
	})
	if err := errors.Join(err, ep.Close(), f.Pool.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-left; err != nil {
		t.Errorf("the task's endpoint: %v", err)
	}
	again, err := control.Open(control.Options{Addresses: []string{f.nodes[0].Addr()}, Fabric: Name})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if all, err := again.ListClients(); err != nil || len(all) > 0 {
		t.Errorf("clients are left: %+v, %v", all, err)
	}
}
