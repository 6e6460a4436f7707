package memnode

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestPlacesApart fills a node's connections: readers leave half of them to writers, and writers
// some to administrators, which know the full token. The node has no pool, so the test's
// connections are all that it has.
func TestPlacesApart(t *testing.T) {
	const conns = 12
	begin := func() *Node {
		n, err := Listen(Config{
			Listen: "127.0.0.1:0", Memory: 1 << 20, Conns: conns,
			Security: transport.Security{Token: []byte("all"), ReadToken: []byte("read")},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	writer, reader := transport.Security{Token: []byte("all")}, transport.Security{ReadToken: []byte("read")}
	admin, adminReader := writer, reader
	admin.Admin, adminReader.Admin = true, true
	n := begin()
	fill := func(s transport.Security) (in int) {
		for ; in < 2*(conns+adminConns); in++ {
			ctx, cancel := context.WithTimeout(t.Context(), rawPatience)
			c, _, err := transport.Dial(ctx, n.Addr(), s, transport.Hello{Purpose: transport.ForControl,
				Process: transport.NewID()})
			cancel()
			if err != nil {
				if !errors.Is(err, transport.ErrConnections) {
					t.Fatalf("connection %d: %v", in, err)
				}
				break
			}
			t.Cleanup(func() { c.Close() })
		}
		return in
	}
	expect := func(what string, s transport.Security, want int) {
		t.Helper()
		if in := fill(s); in != want {
			t.Errorf("%d %s got in, want %d", in, what, want)
		}
	}
	expect("readers", reader, conns/2)
	expect("writers beside readers", writer, conns/2)
	expect("administrators", admin, adminConns)
	if s := n.Stats(); s.RefusedRoom == 0 || s.AuthFailures != 0 {
		t.Errorf("the node counts %+v", s)
	}
	n = begin() // that writers fill
	expect("writers", writer, conns)
	expect("readers beside writers", reader, 0)
	expect("administrators with the read token", adminReader, 0)
}

// TestProcessesAreForgotten: a process that had connections about the pool, and some about none,
// which do not count, is forgotten once all have ended.
func TestProcessesAreForgotten(t *testing.T) {
	n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	f, err := tcp.Create(control.Options{Addresses: []string{n.Addr()}},
		control.Geometry{Nodes: 1, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const process = "process"
	enter := func(why transport.Purpose, pool string) net.Conn {
		c, _, err := transport.Dial(t.Context(), n.Addr(), transport.Security{},
			transport.Hello{Purpose: why, Process: process, Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	about, looks := enter(transport.ForVerbs, f.Record().ID), enter(transport.ForControl, "")
	about.Close()
	looks.Close()
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		enter(transport.ForControl, "").Close() // the end of any connection has the node look
		conns, known := 0, false
		n.mu.Lock()
		if p := n.processes[process]; p != nil {
			conns, known = p.conns, true
		}
		n.mu.Unlock()
		if !known {
			return
		}
		if conns < 0 || time.Now().After(until) {
			t.Fatalf("the process is known with %d connections", conns)
		}
	}
}
