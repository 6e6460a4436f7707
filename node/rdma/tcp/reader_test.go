package tcp

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestReaderMinority leaves a change of the view half done, as a master does that dies in the midst of it: one node alone
// has the next state. Who may only read opens the pool all the same; with another node dead, too, once somebody who may write
// has looked.
func TestReaderMinority(t *testing.T) {
	s := Security{Token: []byte("a token of some length"), ReadToken: []byte("another of some length")}
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
	f, err := Create(Options{Addresses: addrs, Security: Security{Token: s.Token}}, Geometry{3, 1 << 20, 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1}); !ok {
		t.Fatal(err)
	}
	p := nodes[0].pool.Load()
	p.boardMu.Lock()
	e := p.acceptor.Peek("view").Entries[0]
	e.Ballot.Counter++
	e.State.Version++
	p.acceptor.Accept("view", e.Ballot, e.State)
	p.boardMu.Unlock()
	r, err := Open(Options{Addresses: addrs, Security: Security{ReadToken: s.ReadToken}})
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
	if _, err := f.view(); err != nil {
		t.Fatal(err)
	}
	reads("somebody has looked")
}
