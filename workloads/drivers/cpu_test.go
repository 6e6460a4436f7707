package drivers

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/runner"
)

// TestCPU: processor time is told where memory nodes are processes, and not while one of them does
// not tell its own.
func TestCPU(t *testing.T) {
	n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	f, err := fabrics.Create("tcp:"+n.Addr(), fabrics.Geometry{Nodes: 1, Memory: 1 << 20, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var d runner.Database = native{Database: &pool{fabric: f}} // as Create makes it
	here, nodes, ok := d.CPU()
	for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); {
	}
	here2, nodes2, ok2 := d.CPU()
	if !ok || !ok2 || here2 <= here || nodes2 <= nodes || nodes <= 0 {
		t.Errorf("%v %v %v, then %v %v %v", here, nodes, ok, here2, nodes2, ok2)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, _, ok := d.CPU(); ok {
		t.Error("the processor time of a node that is gone is known")
	}
	if err := f.Close(); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
		t.Error(err)
	}
	if _, _, ok := (native{Database: &pool{}}).CPU(); ok {
		t.Error("the processor time of no nodes is known")
	}
}
