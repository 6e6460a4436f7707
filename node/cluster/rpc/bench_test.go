package rpc_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
)

// BenchmarkRoundTrip compares a call and its answer, and a message and one back, in memory, with the same bytes written to a
// socket and back by two goroutines.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range []int{64, 1024} {
		body := make([]byte, n)
		b.Run(fmt.Sprint("socket/", n), func(b *testing.B) { overSocket(b, n+16) })
		b.Run(fmt.Sprint("message/", n), func(b *testing.B) { byMessages(b, make([]byte, n+16)) })
		b.Run(fmt.Sprint("call/", n), func(b *testing.B) {
			inMem(b, func(ep rdma.Endpoint) { // until a request for procedure 0
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
		})
	}
}

// overSocket sends n bytes to another goroutine over TCP, which sends them back.
func overSocket(b *testing.B, n int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			for p := make([]byte, n); err == nil; {
				if _, err = io.ReadFull(c, p); err == nil {
					_, err = c.Write(p)
				}
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	for p := make([]byte, n); b.Loop(); {
		if _, err := c.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, p); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	<-done
}

// byMessages sends p to another worker, which sends it back, until it gets an empty one.
func byMessages(b *testing.B, p []byte) {
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
	inMem(b, func(ep rdma.Endpoint) {
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
