package sim_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// message sends p and waits until it was delivered.
func message(ep rdma.Endpoint, to rdma.BoxAddr, p string) error {
	b := ep.Batch()
	defer b.Release()
	head := b.Alloc(len(p))
	copy(head, p)
	b.Send(to, head)
	return rdma.Do(ep, b, time.Second)
}

// next waits for a message.
func next(box rdma.Mailbox) (*rdma.Message, error) {
	for {
		if m := box.Next(); m != nil {
			return m, nil
		}
		if err := box.Await(time.Second); err != nil {
			return nil, err
		}
	}
}

// serve starts a server at node 0 that answers every message, for ever.
func serve(t *testing.T, s *sim.Sim) *sim.Worker {
	return s.GoAt(0, "server", func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 0, Number: 1, Slots: 256})
		for err == nil {
			var m *rdma.Message
			if m, err = next(box); err == nil {
				b := ep.Batch()
				b.Send(m.From, append(b.Alloc(len(m.Data))[:0], m.Data...))
				err = ep.Post(b)
				b.Release()
				box.Release(m)
			}
		}
		if !errors.Is(err, rdma.ErrTimeout) && !errors.Is(err, rdma.ErrClosed) {
			t.Error(err)
		}
	})
}

// ask is a call: a message and its answer.
func ask(ep rdma.Endpoint, box rdma.Mailbox, p string) error {
	if err := message(ep, rdma.BoxAt(0, 1), p); err != nil {
		return err
	}
	m, err := next(box)
	if err == nil {
		box.Release(m)
	}
	return err
}

// TestMessageTakesItsWay: on a cluster's machines a message and its answer take two ways, the
// server's time, and what the two CPUs spend on posting and polling; as many servers as there are
// bound what they do together.
func TestMessageTakesItsWay(t *testing.T) {
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	h := &p.Hardware
	s := open(t, p.Options(1, 1))
	serve(t, s)
	var one, all time.Duration
	const clients, each = 40, 50
	s.Go("lone", func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
		if err != nil {
			t.Error(err)
			return
		}
		ep.Sleep(100 * time.Microsecond)
		start := ep.Now()
		if err := ask(ep, box, "12345678"); err != nil {
			t.Error(err)
		}
		one = ep.Now() - start
		start = ep.Now()
		left := clients
		for i := range clients {
			ep.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
				defer func() { left-- }()
				box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
				for range each {
					if err == nil {
						err = ask(ep, box, "12345678")
					}
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		for left > 0 {
			ep.Sleep(time.Microsecond)
		}
		all = ep.Now() - start
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	least := 2*h.Propagation + h.ServiceTime + 2*(h.Doorbell+h.Verb)
	if one < least || one > least+time.Microsecond {
		t.Errorf("a message and its answer take %v, their ways and CPUs %v", one, least)
	}
	if least := clients * each * h.ServiceTime; all < least || all > least+least/2 {
		t.Errorf("%d messages took %v: one server spends %v on them", clients*each, all, least)
	}
	if u := s.Usage()[0]; u.CPU < clients*each*h.ServiceTime {
		t.Errorf("the node's CPU was used for %v", u.CPU)
	}
}

// TestMessagesOfPeers: messages of workers of other nodes take a worker PeerTime.
func TestMessagesOfPeers(t *testing.T) {
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	const messages = 20
	o := p.Options(1, 2)
	o.Hardware.PeerTime = 400
	for _, peer := range []bool{false, true} {
		s := open(t, o)
		s.GoAt(0, "server", func(ep rdma.Endpoint) {
			box, err := rdma.Listen(ep, rdma.BoxOptions{Number: 1})
			for n := 0; n < messages && err == nil; n++ {
				var m *rdma.Message
				if m, err = next(box); err == nil {
					box.Release(m)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
		send := func(ep rdma.Endpoint) {
			ep.Sleep(100 * time.Microsecond)
			_, err := rdma.Listen(ep, rdma.BoxOptions{Node: 1, Number: 2})
			for n := 0; n < messages && err == nil; n++ {
				err = message(ep, rdma.BoxAt(0, 1), "12345678")
			}
			if err != nil {
				t.Error(err)
			}
		}
		want := o.Hardware.ServiceTime
		if peer {
			want = o.Hardware.PeerTime
			s.GoAt(1, "peer", send)
		} else {
			s.Go("client", send)
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		if u := s.Usage()[0]; u.CPU != messages*want {
			t.Errorf("messages of a peer %t: %d take %v, want %v for each", peer, messages, u.CPU, want)
		}
	}
}

// TestMessagesAreCut: a partition holds up what a client sends and what is sent to it, or has it
// fail when it lasts; other clients do not notice.
func TestMessagesAreCut(t *testing.T) {
	for _, c := range []struct {
		lasts time.Duration
		want  error
	}{{300 * time.Microsecond, nil}, {time.Second, rdma.ErrNodeDown}} {
		s := open(t, sim.Options{Seed: 3, Faults: sim.Faults{
			{Kind: sim.PartitionFault, Client: "cut", Node: 0, At: time.Millisecond, For: c.lasts},
		}})
		serve(t, s)
		s.Go("cut", func(ep rdma.Endpoint) {
			box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
			if err != nil {
				t.Error(err)
				return
			}
			ep.Sleep(time.Millisecond + 10*time.Microsecond - ep.Now())
			err = ask(ep, box, "hello")
			if c.want == nil && (err != nil || ep.Now() < time.Millisecond+c.lasts) || !errors.Is(err, c.want) {
				t.Errorf("cut for %v: %v at %v", c.lasts, err, ep.Now())
			}
		})
		s.Go("well", func(ep rdma.Endpoint) {
			box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
			if err != nil {
				t.Error(err)
				return
			}
			ep.Sleep(time.Millisecond + 10*time.Microsecond - ep.Now())
			for range 20 {
				if err := ask(ep, box, "hello"); err != nil {
					t.Error(err)
				}
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServersDieWithTheirNode: a worker at a node that dies is not resumed, and what it has in
// flight does not arrive; a client that crashes has no mailbox.
func TestServersDieWithTheirNode(t *testing.T) {
	s := open(t, sim.Options{Seed: 1, Nodes: 2})
	server := serve(t, s)
	victim := s.Go("victim", func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 1, Number: 5})
		if err == nil {
			_, err = next(box)
		}
		if !errors.Is(err, rdma.ErrClosed) { // it is unwound at the end
			t.Errorf("the crashed client went on: %v", err)
		}
	})
	s.CrashAfter(victim, 50*time.Microsecond)
	s.Go("client", func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
		if err != nil {
			t.Error(err)
			return
		}
		ep.Sleep(100 * time.Microsecond)
		if err := message(ep, rdma.BoxAt(1, 5), "are you there?"); !errors.Is(err, rdma.ErrNoBox) {
			t.Errorf("a message to a client that crashed: %v", err)
		}
		if err := ask(ep, box, "hello"); err != nil {
			t.Error(err)
		}
		s.KillNode(0)
		if err := message(ep, rdma.BoxAt(0, 1), "hello?"); !errors.Is(err, rdma.ErrNodeDown) {
			t.Errorf("a message to a dead node: %v", err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if u := s.Usage(); len(u) != 2 || u[0].CPU != 0 {
		t.Errorf("without a model of machines the nodes were used: %+v", u)
	}
	if !server.Crashed() {
		t.Error("the server lives on a dead node")
	}
}
