package rpc_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
)

// BenchmarkRoundTrip compares a call and its answer, and a message and one back, in memory and over
// TCP, with the same bytes written to a socket and back by two goroutines, and, as over TCP a node
// is between the two workers, by way of a third one. Two WRITEs, which go to the node and back
// each, go as far.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range []int{64, 1024} {
		p := make([]byte, n+16)
		b.Run(fmt.Sprint("socket/", n), func(b *testing.B) { overSockets(b, n+16, 0) })
		b.Run(fmt.Sprint("relay/", n), func(b *testing.B) { overSockets(b, n+16, 1) })
		b.Run(fmt.Sprint("writes/", n), func(b *testing.B) { byWrites(b, p) })
		for name, r := range map[string]run{"mem": inMem, "tcp": inTCP} {
			b.Run(fmt.Sprint("message/", name, "/", n), func(b *testing.B) { byMessages(b, r, p) })
			b.Run(fmt.Sprint("call/", name, "/", n), func(b *testing.B) { byCalls(b, r, p[:n]) })
		}
	}
}

// byWrites writes p to a node, twice.
func byWrites(b *testing.B, p []byte) {
	inTCP(b, func(rdma.Endpoint) {}, func(ep rdma.Endpoint) {
		for b.Loop() {
			for range 2 {
				batch := ep.Batch()
				head := batch.Alloc(len(p))
				copy(head, p)
				batch.Write(rdma.At(0, 0), head)
				if err := rdma.Do(ep, batch, patience); err != nil {
					b.Error(err)
					return
				}
				batch.Release()
			}
		}
	})
}

// byCalls asks for a body, until a request for procedure 0.
func byCalls(b *testing.B, r run, body []byte) {
	r(b, func(ep rdma.Endpoint) {
		p := open(b, ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1}})
		for {
			switch r, err := p.Next(patience); {
			case err != nil || r != nil && r.Proc == 0:
				return
			case r != nil:
				r.Answer(0, r.Body)
			}
		}
	}, func(ep rdma.Endpoint) {
		p := open(b, ep, rpc.Options{})
		if c, err := ask(p, ep, 1, body); err == nil {
			c.Release()
		}
		for b.Loop() {
			c, err := p.Call(serverBox, 1, patience, body)
			if err != nil {
				b.Error(err)
				return
			}
			c.Release()
		}
		p.Start(serverBox, 0, patience, nil)
	})
}

// overSockets sends n bytes to another goroutine over TCP, which sends them back, by way of relays
// between the two.
func overSockets(b *testing.B, n, relays int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	var group sync.WaitGroup
	defer group.Wait()
	pair := func() (ours, theirs net.Conn) {
		ours, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			theirs, err = l.Accept()
		}
		if err != nil {
			b.Fatal(err)
		}
		return ours, theirs
	}
	pass := func(to, from net.Conn) {
		group.Go(func() {
			defer to.Close()
			for p := make([]byte, n); ; {
				if _, err := io.ReadFull(from, p); err != nil {
					return
				}
				if _, err := to.Write(p); err != nil {
					return
				}
			}
		})
	}
	c, last := pair()
	for range relays {
		next, end := pair()
		pass(next, last)
		pass(last, next)
		last = end
	}
	pass(last, last)
	for p := make([]byte, n); b.Loop(); {
		if _, err := c.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, p); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
}

// byMessages sends p to another worker, which sends it back, until it gets an empty one.
func byMessages(b *testing.B, r run, p []byte) {
	next := func(box rdma.Mailbox) *rdma.Message {
		for {
			if m := box.Next(); m != nil {
				return m
			}
			if err := box.Await(patience); err != nil {
				b.Error(err)
				return nil
			}
		}
	}
	send := func(ep rdma.Endpoint, to rdma.BoxAddr, p []byte) error {
		batch := ep.Batch()
		defer batch.Release()
		head := batch.Alloc(len(p))
		copy(head, p)
		batch.Send(to, head)
		return rdma.Do(ep, batch, patience)
	}
	r(b, func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 0, Number: 1})
		if err != nil {
			b.Error(err)
			return
		}
		for m := next(box); m != nil && len(m.Data) > 0; m = next(box) {
			if err := send(ep, m.From, m.Data); err != nil {
				b.Error(err)
			}
			box.Release(m)
		}
	}, func(ep rdma.Endpoint) {
		box, err := rdma.Listen(ep, rdma.BoxOptions{Node: rdma.All})
		if err != nil {
			b.Error(err)
			return
		}
		for until := ep.Now() + patience; send(ep, serverBox, p) != nil && ep.Now() < until; {
			ep.Sleep(20 * time.Microsecond)
		}
		box.Release(next(box))
		for b.Loop() {
			if err := send(ep, serverBox, p); err != nil {
				b.Error(err)
				return
			}
			box.Release(next(box))
		}
		send(ep, serverBox, nil)
	})
}
