package rpc_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/workloads/check/teeth"
)

const patience = 20 * time.Second

var serverBox = rdma.BoxAt(0, 1)

// run runs a server beside node 0 and clients of a pool of two nodes.
type run func(t testing.TB, server func(rdma.Endpoint), clients ...func(rdma.Endpoint))

// inSim runs them in virtual time, with the options of a simulation.
func inSim(o sim.Options) run {
	return func(t testing.TB, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
		o.Nodes = 2
		s := sim.New(o)
		defer s.Close()
		s.GoAt(0, "server", server)
		for i, c := range clients {
			s.Go(fmt.Sprint("client ", i), c)
		}
		if err := s.Run(); err != nil {
			t.Error(err)
		}
	}
}

// inMem runs them as goroutines.
func inMem(t testing.TB, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inFabric(t, f, server, clients...)
}

func inFabric(t testing.TB, f rdma.Fabric, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
	var group sync.WaitGroup
	for _, w := range append(clients, server) {
		ep, err := f.Open("worker")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer ep.Close()
			w(ep)
		})
	}
	group.Wait()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// inTCP runs them as goroutines, with nodes in this process.
func inTCP(t testing.TB, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
	var addrs []string
	for range 2 {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		addrs = append(addrs, n.Addr())
	}
	o := control.Options{Addresses: addrs, Lease: 10 * time.Second} // long: leases allocate
	f, err := tcp.Create(o, control.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inFabric(t, f, server, clients...)
}

// everywhere runs a test in memory, over TCP, and in virtual time.
func everywhere(t *testing.T, test func(t *testing.T, r run)) {
	t.Run("mem", func(t *testing.T) { test(t, inMem) })
	t.Run("tcp", func(t *testing.T) { test(t, inTCP) })
	if teeth.UnderRace {
		return // one task runs at a time in virtual time
	}
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("sim/", seed), func(t *testing.T) { test(t, inSim(sim.Hostile(seed))) })
	}
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	t.Run(p.Name, func(t *testing.T) { test(t, inSim(p.Options(1, 2))) })
}

// open opens a peer that is closed with the test's worker.
func open(t testing.TB, ep rdma.Endpoint, o rpc.Options) *rpc.Peer {
	p, err := rpc.Open(ep, o)
	if err != nil {
		t.Error(err)
	}
	return p
}

// pending is a request with a verb in flight.
type pending struct {
	r *rpc.Request
	b *rdma.Batch
}

// counting is a server that adds one to a word for each request, and answers with its body and the
// sum once the FAA is complete; it goes on with others meanwhile. It ends when over says so.
func counting(t testing.TB, o rpc.Options, over *atomic.Int32) func(rdma.Endpoint) {
	o.Box.Node, o.Box.Number = 0, serverBox.Number()
	return func(ep rdma.Endpoint) {
		p := open(t, ep, o)
		defer p.Close()
		var flying []pending
		for over.Load() > 0 {
			r, err := p.Next(time.Millisecond)
			if err != nil && !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
				return
			}
			if r != nil {
				b := ep.Batch()
				b.FetchAdd(rdma.At(1, 8*uint64(r.Proc)), 1)
				if err := ep.Post(b); err != nil {
					t.Error(err)
					return
				}
				flying = append(flying, pending{r, b})
			}
			left := flying[:0]
			for _, f := range flying {
				if !f.b.Finished() {
					left = append(left, f)
					continue
				}
				sum := binary.LittleEndian.AppendUint64(nil, f.b.Op(0).Result+1)
				if err := f.r.Answer(f.r.Proc+1, append(sum, f.r.Body...)); err != nil {
					t.Error(err)
				}
				f.b.Release()
			}
			flying = left
		}
	}
}

// ask calls until the server has its mailbox.
func ask(p *rpc.Peer, ep rdma.Endpoint, proc uint16, body []byte) (*rpc.Call, error) {
	for until := ep.Now() + patience; ; ep.Sleep(20 * time.Microsecond) {
		c, err := p.Call(serverBox, proc, patience, body)
		if !errors.Is(err, rdma.ErrNoBox) || ep.Now() > until {
			return c, err
		}
	}
}

// TestCalls has clients with many requests in flight at a server with handlers that post verbs, and
// with a mailbox that is too small for all of them. Each request runs once, and has its own answer.
func TestCalls(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		const clients, calls, window = 3, 100, 8
		var over atomic.Int32
		over.Store(clients)
		client := func(ep rdma.Endpoint) {
			defer over.Add(-1)
			p := open(t, ep, rpc.Options{Window: window})
			defer p.Close()
			first, err := ask(p, ep, 3, nil)
			if err != nil {
				t.Error(err)
				return
			}
			first.Release()
			var flying []*rpc.Call
			var bodies [][]byte
			for sent := 1; sent < calls || len(flying) > 0; {
				for sent < calls && len(flying) < window {
					body := bytes.Repeat([]byte{byte(sent), byte(ep.Client())}, sent%50)
					c, err := p.Start(serverBox, 3, patience, body)
					if err != nil {
						t.Error(err)
						return
					}
					flying, bodies = append(flying, c), append(bodies, body)
					sent++
				}
				if len(flying) == window {
					if _, err := p.Start(serverBox, 3, patience, nil); !errors.Is(err, rpc.ErrWindow) {
						t.Errorf("a call beyond the window: %v", err)
					}
				}
				if err := p.Wait(flying[0]); err != nil {
					t.Error(err)
					return
				}
				c := flying[0]
				if c.Status != 4 || len(c.Body) < 8 || !bytes.Equal(c.Body[8:], bodies[0]) {
					t.Errorf("answer %d, %x, want 4, %x", c.Status, c.Body, bodies[0])
				}
				c.Release()
				flying, bodies = flying[1:], bodies[1:]
			}
			if over.Load() == 1 { // the last one
				c, err := ask(p, ep, 3, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if sum := binary.LittleEndian.Uint64(c.Body); sum != clients*calls+1 {
					t.Errorf("%d requests ran %d times", clients*calls+1, sum)
				}
				c.Release()
			}
		}
		r(t, counting(t, rpc.Options{Box: rdma.BoxOptions{Slots: 4}}, &over), client, client, client)
	})
}

// TestServers: peers with mailboxes at one node each ask each other.
func TestServers(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		var over atomic.Int32
		over.Store(1)
		r(t, counting(t, rpc.Options{}, &over), func(ep rdma.Endpoint) {
			defer over.Add(-1)
			p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: 1, Number: 1}})
			defer p.Close()
			c, err := ask(p, ep, 3, []byte("body"))
			if err != nil || c.Status != 4 || string(c.Body[8:]) != "body" {
				t.Errorf("answer of another server: %v", err)
				return
			}
			c.Release()
		})
	})
}

// TestClosed: a server outlives requests of peers at one node that closed their mailboxes
// meanwhile.
func TestClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		var over atomic.Int32
		over.Store(1)
		r(t, counting(t, rpc.Options{}, &over), func(ep rdma.Endpoint) {
			defer over.Add(-1)
			for i := range 20 {
				p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: 1, Number: 1}})
				c, err := ask(p, ep, 3, nil)
				if err != nil {
					t.Error(err)
					return
				}
				c.Release()
				if _, err := p.Start(serverBox, 3, patience, nil); err != nil {
					t.Error(err)
				}
				ep.Sleep(time.Duration(i) * 100 * time.Nanosecond)
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				ep.Sleep(20 * time.Microsecond) // what was on its way is delivered
			}
		})
	})
}

// TestDeadlines: a request that is not answered in time is uncertain, and its late answer harms no
// other; one that never came into the server's mailbox is certain not to have run.
func TestDeadlines(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		var stage atomic.Int32
		server := func(ep rdma.Endpoint) {
			p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1, Slots: 2}})
			defer p.Close()
			var held []*rpc.Request
			for stage.Load() < 2 {
				q, err := p.Next(100 * time.Microsecond)
				switch {
				case err != nil && !errors.Is(err, rdma.ErrTimeout):
					t.Error(err)
					return
				case q != nil && q.Proc == 9: // the client has given the others up
					q.Answer(0, []byte("now"))
				case q != nil:
					held = append(held, q)
				}
				if stage.Load() == 1 {
					for _, q := range held {
						q.Answer(0, []byte("late"))
					}
					held = nil
				}
			}
		}
		client := func(ep rdma.Endpoint) {
			defer stage.Store(2)
			p := open(t, ep, rpc.Options{})
			defer p.Close()
			brief := 3 * time.Millisecond
			for range 2 { // until the server's mailbox is full
				_, err := p.Call(serverBox, 1, brief, nil)
				for until := ep.Now() + patience; errors.Is(err, rdma.ErrNoBox) && ep.Now() < until; {
					ep.Sleep(20 * time.Microsecond)
					_, err = p.Call(serverBox, 1, brief, nil)
				}
				if !errors.Is(err, rpc.ErrUncertain) || !errors.Is(err, rdma.ErrTimeout) {
					t.Errorf("a request that is not answered: %v", err)
				}
			}
			_, err := p.Call(serverBox, 1, brief, nil)
			for until := ep.Now() + patience; errors.Is(err, rpc.ErrUncertain) && ep.Now() < until; {
				_, err = p.Call(serverBox, 1, brief, nil) // word of the refusal was late
			}
			if errors.Is(err, rpc.ErrUncertain) || !errors.Is(err, rdma.ErrTimeout) ||
				!errors.Is(err, rdma.ErrBoxFull) {
				t.Errorf("a request to a full mailbox: %v", err)
			}
			stage.Store(1)
			c, err := p.Call(serverBox, 9, patience, nil)
			if err != nil || string(c.Body) != "now" {
				t.Errorf("behind requests that were given up: %v", err)
				return
			}
			c.Release()
			if late := p.Stats().Late; late > 2 {
				t.Errorf("%d late answers to 2 requests", late)
			}
		}
		r(t, server, client)
	})
}

// TestNoMailbox: a request for a mailbox that is not there, or one that is too long, is certain not
// to have run, and a client that is closed has no calls.
func TestNoMailbox(t *testing.T) {
	everywhere(t, func(t *testing.T, r run) {
		r(t, func(rdma.Endpoint) {}, func(ep rdma.Endpoint) {
			if _, err := rpc.Open(ep, rpc.Options{Window: 33}); !errors.Is(err, rdma.ErrAccess) {
				t.Errorf("a window beyond half of the buffers: %v", err)
			}
			p := open(t, ep, rpc.Options{})
			_, err := p.Call(rdma.BoxAt(1, 77), 1, patience, nil)
			if !errors.Is(err, rdma.ErrNoBox) || errors.Is(err, rpc.ErrUncertain) {
				t.Errorf("ask where there is no mailbox: %v", err)
			}
			_, err = p.Call(p.Box().Addr(1), 1, patience, make([]byte, 5000))
			if !errors.Is(err, rdma.ErrMessageSize) || errors.Is(err, rpc.ErrUncertain) {
				t.Errorf("ask too much: %v", err)
			}
			c, err := p.Start(p.Box().Addr(1), 1, patience, []byte("to myself"))
			if err != nil {
				t.Error(err)
				return
			}
			var q *rpc.Request
			for q == nil && err == nil {
				q, err = p.Next(patience)
			}
			if err != nil || string(q.Body) != "to myself" || q.Proc != 1 {
				t.Errorf("asked by myself: %+v, %v", q, err)
			}
			if err := p.Close(); err != nil || !errors.Is(c.Err, rpc.ErrUncertain) ||
				!errors.Is(c.Err, rdma.ErrClosed) {
				t.Errorf("close: %v; the call in flight ended in %v", err, c.Err)
			}
		})
	})
}

// TestOnceOrUncertain kills the server's node at moments all over a run, on a network on which
// answers and acknowledgements are late: no request runs twice, one that is answered ran, and one
// that certainly did not run did not.
func TestOnceOrUncertain(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for seed := range uint64(60) {
		if said := once(seed, func(ep rdma.Endpoint) rdma.Endpoint { return ep }); said != "" {
			t.Errorf("seed %d: %s", seed, said)
		}
	}
}

// once returns what went wrong in one such run. The clients' endpoints are decorated.
func once(seed uint64, decorate func(rdma.Endpoint) rdma.Endpoint) (said string) {
	o := sim.Hostile(seed)
	o.Nodes, o.FlyProb, o.Limit = 2, 0.1, time.Second
	s := sim.New(o)
	defer s.Close()
	ran := map[uint32]int{}
	s.GoAt(0, "server", func(ep rdma.Endpoint) {
		p, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1, Slots: 4}})
		for err == nil || errors.Is(err, rdma.ErrTimeout) {
			var r *rpc.Request
			if r, err = p.Next(time.Millisecond); r != nil {
				ran[binary.LittleEndian.Uint32(r.Body)]++
				r.Answer(0, nil)
			}
		}
	})
	s.KillNodeAfter(0, 200*time.Microsecond+time.Duration(seed)*11*time.Microsecond)
	failed := func(format string, a ...any) {
		if said == "" {
			said = fmt.Sprintf(format, a...)
		}
	}
	uncertain := 0
	for k := range uint32(3) {
		s.Go("client", func(ep rdma.Endpoint) {
			p, err := rpc.Open(decorate(ep), rpc.Options{})
			if err != nil {
				failed("%v", err)
				return
			}
			for i := range uint32(100) {
				id := k<<16 | i
				c, err := p.Call(serverBox, 1, 2*time.Millisecond, binary.LittleEndian.AppendUint32(nil, id))
				n := ran[id]
				switch {
				case n > 1:
					failed("request %x ran %d times", id, n)
				case err == nil && n != 1:
					failed("request %x was answered, and ran %d times", id, n)
				case err != nil && !errors.Is(err, rpc.ErrUncertain) && n != 0:
					failed("request %x certainly did not run, and did: %v", id, err)
				case err == nil:
					c.Release()
				case errors.Is(err, rpc.ErrUncertain):
					uncertain++
					if ep.Now() > 5*time.Millisecond {
						return
					}
				}
			}
		})
	}
	if err := s.Run(); err != nil {
		failed("%v", err)
	}
	for id, n := range ran {
		if n > 1 {
			failed("request %x ran %d times", id, n)
		}
	}
	if uncertain == 0 {
		failed("no request met the node's death")
	}
	return said
}

// TestCallsAllocateNothing measures a call and its answer in memory, and over TCP with the nodes'
// part, in steady state.
func TestCallsAllocateNothing(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("the race detector allocates")
	}
	t.Run("mem", func(t *testing.T) { callsAllocateNothing(t, inMem) })
	t.Run("tcp", func(t *testing.T) { callsAllocateNothing(t, inTCP) })
}

func callsAllocateNothing(t *testing.T, r run) {
	body := bytes.Repeat([]byte("b"), 300)
	r(t, func(ep rdma.Endpoint) {
		p := open(t, ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1}})
		defer p.Close()
		for {
			r, err := p.Next(patience)
			if err != nil {
				t.Error(err)
				return
			}
			if r != nil && r.Proc == 0 {
				return
			}
			if r != nil {
				r.Answer(0, r.Body)
			}
		}
	}, func(ep rdma.Endpoint) {
		p := open(t, ep, rpc.Options{})
		defer p.Close()
		c, err := ask(p, ep, 1, body)
		if err != nil {
			t.Error(err)
			return
		}
		c.Release()
		round := func() {
			c, err := p.Call(serverBox, 1, patience, body)
			if err != nil {
				t.Error(err)
				return
			}
			c.Release()
		}
		least := 1.0
		for range 5 { // what the process does beside them is rarer than rounds
			least = min(least, testing.AllocsPerRun(200, round))
		}
		if least != 0 {
			t.Errorf("a call and its answer allocate %v times", least)
		}
		if before := ep.Counters().Trips; before == 0 {
			t.Error("calls take no trips")
		}
		p.Start(serverBox, 0, patience, nil)
	})
}

// FuzzMessages gives a peer messages that are no peer's, and some that are.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 5, 0, 0, 0, 0, 0, 'b'})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 'b'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = raw[:min(len(raw), 4096)]
		s := sim.New(sim.Options{Nodes: 1})
		defer s.Close()
		s.Go("peer", func(ep rdma.Endpoint) {
			p := open(t, ep, rpc.Options{})
			c, err := p.Start(p.Box().Addr(0), 1, 100*time.Microsecond, nil)
			if err != nil {
				t.Fatal(err)
			}
			b := ep.Batch()
			b.Send(p.Box().Addr(0), append(b.Alloc(len(raw))[:0], raw...))
			if err := rdma.Do(ep, b, time.Second); err != nil {
				t.Fatal(err)
			}
			for !c.Over() {
				r, err := p.Next(time.Millisecond)
				if err != nil && !errors.Is(err, rdma.ErrTimeout) {
					t.Fatal(err)
				}
				if r != nil {
					r.Drop()
				}
			}
			c.Release()
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	})
}
