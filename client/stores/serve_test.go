package stores

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/telemetry"
)

// greeter says which node it is beside, from that node's memory.
type greeter struct {
	node    int
	stopped atomic.Bool
	broken  error // of its Run, once it is stopped
}

func (g *greeter) Stop() { g.stopped.Store(true) }

func (*greeter) Ready() bool                                       { return true }
func (*greeter) Counts(to []telemetry.Counter) []telemetry.Counter { return to }

func (g *greeter) Run(ep rdma.Endpoint) error {
	box, err := rdma.Listen(ep, rdma.BoxOptions{Node: g.node, Number: 1})
	if err != nil {
		return err
	}
	defer box.Close()
	for !g.stopped.Load() {
		for m := box.Next(); m != nil; m = box.Next() {
			b := ep.Batch()
			b.Send(m.From, nil, rdma.Span{Addr: rdma.At(g.node, 0), Len: 8})
			err := rdma.Do(ep, b, time.Second)
			b.Release()
			box.Release(m)
			if err != nil {
				return err
			}
		}
		if err := box.Await(100 * time.Microsecond); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
	}
	return g.broken
}

func greeters(broken error) *Kind {
	return &Kind{Serve: func(_ rdma.Endpoint, _ rdma.Configs, node int) (Server, error) {
		return &greeter{node: node, broken: broken}, nil
	}}
}

// greeted writes a name into the memory of each of two nodes, sends the node's server a request,
// and expects that name as the answer.
func greeted(ep rdma.Endpoint) error {
	box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
	if err != nil {
		return err
	}
	defer box.Close()
	for n := range 2 {
		b := ep.Batch()
		b.Write(rdma.At(n, 0), fmt.Appendf(nil, "I am %03d", n))
		if err := rdma.Do(ep, b, time.Second); err != nil {
			return err
		}
		b.Release()
		for sent := false; !sent; { // it may not have begun yet
			b := ep.Batch()
			b.Send(rdma.BoxAt(n, 1), []byte("?"))
			err := rdma.Do(ep, b, time.Second)
			b.Release()
			if sent = err == nil; !sent && !errors.Is(err, rdma.ErrNoBox) {
				return err
			}
			ep.Sleep(100 * time.Microsecond)
		}
		m := box.Next()
		for ; m == nil; m = box.Next() {
			if err := box.Await(10 * time.Second); err != nil {
				return err
			}
		}
		if want := fmt.Sprintf("I am %03d", n); string(m.Data) != want {
			return fmt.Errorf("server %d says %q, want %q", n, m.Data, want)
		}
		box.Release(m)
	}
	return nil
}

// TestServersOfThisProcess: they run beside their nodes, and end by Stop, and with their fabric,
// which is no failure.
func TestServersOfThisProcess(t *testing.T) {
	for _, stop := range []bool{true, false} {
		f, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 8}, nil)
		must(t, err)
		s, err := greeters(errors.New("broken")).Start(f)
		must(t, err)
		ep, err := f.Open("client")
		must(t, err)
		must(t, greeted(ep))
		must(t, ep.Close())
		if stop {
			s.Stop()
			for len(s.Running()) > 0 {
				time.Sleep(time.Millisecond)
			}
		}
		must(t, f.Close())
		if left := s.Running(); len(left) > 0 || (s.Err() != nil) != stop {
			t.Errorf("stopped %t: those of nodes %d are running, and %v", stop, left, s.Err())
		}
	}
}

// TestServersInVirtualTime: no Run waits for them, and each goes on with them.
func TestServersInVirtualTime(t *testing.T) {
	s := sim.New(sim.Options{Seed: 1, Nodes: 2})
	defer s.Close()
	servers, err := greeters(nil).Start(s)
	must(t, err)
	for range 2 {
		s.Go("client", func(ep rdma.Endpoint) { err = greeted(ep) })
		must(t, errors.Join(s.Run(), err))
	}
	servers.Stop()
	s.Go("wait", func(ep rdma.Endpoint) { ep.Sleep(time.Millisecond) })
	must(t, errors.Join(s.Run(), servers.Err()))
	if left := servers.Running(); len(left) > 0 {
		t.Errorf("the servers of nodes %d have not ended", left)
	}
}

// TestNoServersThere: memory that processes share has no processor beside it.
func TestNoServersThere(t *testing.T) {
	f, err := shm.Create("none", shm.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 8}, nil,
		func(*shm.Fabric) error { return nil })
	if errors.Is(err, rdma.ErrNotSupported) {
		t.Skip(err)
	}
	must(t, err)
	defer func() { must(t, errors.Join(f.Close(), shm.Remove("none", true))) }()
	if _, err := greeters(nil).Start(f); !errors.Is(err, rdma.ErrNotSupported) {
		t.Errorf("servers of shared memory: %v", err)
	}
	if s, err := (&Kind{}).Start(f); s != nil || err != nil {
		t.Errorf("a store without servers has %v, %v", s, err)
	}
}
