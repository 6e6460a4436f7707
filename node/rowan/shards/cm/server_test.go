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

// TestTold: a server that is told of a term reads the registers, and adopts what is there unless it cannot note it.
func TestTold(t *testing.T) {
	s := sim.New(sim.Options{})
	defer s.Close()
	ep, err := s.Open("server")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	role, _, err := s.TryMaster(ep.Client(), calm)
	if err != nil {
		t.Fatal(err)
	}
	version := uint64(0)
	put := func(c *shards.Config) {
		t.Helper()
		if ok, err := s.SwapConfig(role, version, c.Encode()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		version++
	}
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
	server = cm.NewServer(ep, s, 0, store) // which is started anew
	server.Restart(2)
	server.Told(2)
	expect(nil, 0, false)
	next, err = next.Fail()
	if err != nil {
		t.Fatal(err)
	}
	put(next)
	put(next.Commit())
	server.Told(3)
	expect(nil, 0, false) // it is recovering
	server.Recovered()
	server.Told(3)
	expect(nil, 3, true)
}
