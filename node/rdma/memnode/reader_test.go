package memnode

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestReaderMinority leaves a change of the view half done, as a master does that dies in the midst
// of it: one node alone has the next state. A reader opens the pool all the same. With another node
// dead, too, it does so once a client has looked.
func TestReaderMinority(t *testing.T) {
	s := transport.Security{Token: []byte("a token of some length"), ReadToken: []byte("another of some length")}
	var nodes []*Node
	var addrs []string
	for range 3 {
		n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 1 << 20, Security: s})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addrs, Security: transport.Security{Token: s.Token}},
		control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1}); !ok {
		t.Fatal(err)
	}
	p := nodes[0].pool.Load()
	p.registryMu.Lock()
	e := p.acceptor.Peek("view").Entries[0]
	e.Ballot.Counter++
	e.State.Version++
	p.acceptor.Accept("view", e.Ballot, e.State)
	p.registryMu.Unlock()
	r, err := tcp.Open(control.Options{Addresses: addrs, Security: transport.Security{ReadToken: s.ReadToken}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	reads := func(what string) {
		t.Helper()
		ep, err := r.Open("reader")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		v, err := ep.Join()
		if err = errors.Join(err, ep.Close()); err != nil || v.Epoch != 1 {
			t.Errorf("%s: the view is %+v, %v", what, v, err)
		}
	}
	for range 10 { // whichever two nodes answer first
		reads("a majority agrees")
	}
	nodes[2].Close()
	if _, err := f.ReadView(); err != nil {
		t.Fatal(err)
	}
	reads("another worker has looked")
}
