package memnode

import (
	"context"
	"errors"
	"testing"

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
