package cm_test

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// simple is a store with nothing under way.
type simple struct {
	fails   error
	adopted int
}

func (s *simple) Adopt(*shards.Config) error {
	s.adopted++
	return s.fails
}

func (s *simple) Quiet() bool       { return true }
func (s *simple) Report() cm.Report { return cm.Report{} }

// registered returns an endpoint, and what puts configurations into the registers.
func registered(t *testing.T) (*sim.Sim, rdma.Endpoint, func(...*shards.Config)) {
	s := sim.New(sim.Options{})
	t.Cleanup(func() { s.Close() })
	ep, err := s.Open("server")
	if err != nil {
		t.Fatal(err)
	}
	role, _, err := s.TryMaster(ep.Client(), calm)
	if err != nil {
		t.Fatal(err)
	}
	version := uint64(0)
	return s, ep, func(all ...*shards.Config) {
		t.Helper()
		for _, c := range all {
			if ok, err := s.SwapConfig(role, version, c.Encode()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			version++
		}
	}
}

// TestRestart: a server that is started anew goes on in a term behind the one of before, when it
// has recovered.
func TestRestart(t *testing.T) {
	s, ep, put := registered(t)
	c, err := shards.New([]int{0, 1}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	put(c, c.Commit())
	server := cm.NewServer(ep, s, 0, &simple{})
	server.Restart(1)
	expect := func(what string, told, term uint64) {
		t.Helper()
		server.Told(told)
		if err := server.Step(); err != nil {
			t.Fatal(err)
		}
		if c := server.Config(); c == nil != (term == 0) || c != nil && c.Term != term {
			t.Errorf("%s: it knows %+v, want term %d", what, c, term)
		}
	}
	expect("recovering", 2, 0)
	if c, err = c.Fail(); err != nil {
		t.Fatal(err)
	}
	put(c, c.Commit())
	expect("recovering, in another term", 2, 0)
	server.Recovered()
	expect("recovered", 2, 2)
	server = cm.NewServer(ep, s, 0, &simple{})
	server.Restart(2)
	server.Recovered()
	expect("in the term of before", 3, 0)
}

// TestTold: a server that is told of a term reads the registers, and adopts what is there unless it
// cannot note it.
func TestTold(t *testing.T) {
	s, ep, put := registered(t)
	store := &simple{}
	server := cm.NewServer(ep, s, 0, store)
	expect := func(err error, term uint64, serves bool) {
		t.Helper()
		if got := server.Step(); !errors.Is(got, err) {
			t.Fatalf("%v, want %v", got, err)
		}
		known := uint64(0)
		if c := server.Config(); c != nil {
			known = c.Term
		}
		if _, ok := server.Serves(0); known != term || ok != serves {
			t.Fatalf("it knows term %d and serves: %v; want %d, %v", known, ok, term, serves)
		}
	}
	first, err := shards.New([]int{0, 1}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	put(first)
	put(first.Commit())
	server.Told(1)
	store.fails = rdma.ErrFull
	expect(rdma.ErrFull, 0, false)
	store.fails = nil
	expect(nil, 1, true)
	next, err := first.Fail(1)
	if err != nil {
		t.Fatal(err)
	}
	put(next)
	expect(nil, 1, true) // it is not told
	server.Told(1)
	expect(nil, 1, true)
	server.Told(2)
	expect(nil, 2, false)
	put(next.Commit())
	server.Told(1 << 40) // there is no such term
	expect(nil, 2, true)
	before := store.adopted
	server.Told(1 << 40)
	expect(nil, 2, true)
	if store.adopted != before {
		t.Error("it adopts a configuration twice")
	}
}
