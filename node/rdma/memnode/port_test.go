package memnode

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestPortOfRegion: a node with a Region has a port to which it can come back.
func TestPortOfRegion(t *testing.T) {
	drawn, err := transport.Listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer drawn.Close()
	const most = 19_999
	if port := drawn.Addr().(*net.TCPAddr).Port; port > most {
		t.Skipf("this system keeps no ports for such nodes: port %d is one of its own", port)
	}
	c := Config{Listen: "127.0.0.1:0", Memory: 4096}
	c.Region, err = pmem.Open(filepath.Join(t.TempDir(), "node"), pmem.Options{Memory: 4096, Table: TableBytes(4096)})
	if err != nil {
		t.Fatal(err)
	}
	n, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	if port := n.listener.Addr().(*net.TCPAddr).Port; port > most {
		t.Errorf("port %d, want %d at most", port, most)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
