package rowan_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rowan/kv"
)

// BenchmarkCall is a GET and a PUT of 100 bytes by one client, and the floor of each: a call with
// as many bytes to a server that does only what has to be done with them. For a GET it gathers the
// answer; for a PUT it posts a WRITE and a READ at its own node, and an APPEND to two others.
// cpu-ns/op is the processor time of this process, beyond what it uses when nothing is asked: on a
// busy machine it says more than ns/op.
func BenchmarkCall(b *testing.B) {
	for name, in := range map[string]func(kv.Options) (*place, error){"mem": inMem, "tcp": overTCP} {
		b.Run(name, func(b *testing.B) {
			c := newReal(b, large(kv.Rowan), in)
			s, _, end := c.client()
			defer end()
			value := make([]byte, 100)
			keys := make([][]byte, 100)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "key-%d", i)
				if err := s.Insert(keys[i], value); err != nil {
					b.Fatal(err)
				}
			}
			f := c.newFloor(b)
			defer f.end()
			began, used := time.Now(), realtime.CPU()
			time.Sleep(500 * time.Millisecond)
			idle := float64(realtime.CPU()-used) / float64(time.Since(began))
			for _, call := range []struct {
				name string
				do   func(s client.Store, key []byte) error
			}{
				{"get", func(s client.Store, key []byte) error { _, err := s.Get(key); return err }},
				{"get-floor", func(_ client.Store, key []byte) error { return f.call(floorGet, key) }},
				{"put", func(s client.Store, key []byte) error { return s.Update(key, value) }},
				{"put-floor", func(client.Store, []byte) error { return f.call(floorPut, value) }},
			} {
				b.Run(call.name, func(b *testing.B) {
					b.ReportAllocs()
					began, used := time.Now(), realtime.CPU()
					for i := 0; b.Loop(); i++ {
						if err := call.do(s, keys[i%len(keys)]); err != nil {
							b.Fatal(err)
						}
					}
					busy := float64(realtime.CPU()-used) - idle*float64(time.Since(began))
					b.ReportMetric(busy/float64(b.N), "cpu-ns/op")
				})
			}
		})
	}
}

const (
	floorBox  = 99
	floorRing = 9
	floorGet  = 1
	floorPut  = 2
	// floorBytes of each node's memory are behind the servers'. Entries of the floor land there.
	floorBytes   = 64 << 10
	floorBuffers = 64  // of a ring, which are posted again before they are used up
	entryBytes   = 192 // of a record of 100 bytes
)

// floor is a server beside node 0, its client, and rings beside the other nodes.
type floor struct {
	peer  *rpc.Peer
	box   rdma.BoxAddr
	rings [servers]rdma.Ring // of the server, once it serves
	stop  atomic.Bool
	end   func()
}

func (c *real) newFloor(b *testing.B) *floor {
	f := &floor{box: rdma.BoxAt(0, floorBox)}
	at := func(node int) rdma.Addr { return rdma.At(node, (c.o.Size()+rdma.Stride-1)/rdma.Stride*rdma.Stride) }
	var ends []func()
	for n := 1; n < servers; n++ {
		ep := c.endpoint(c.place.servers[n], "ring")
		ring, err := rdma.OpenRing(ep, rdma.RingOptions{Node: n, Number: floorRing})
		for range floorBuffers {
			if err == nil {
				err = ring.Post(rdma.Span{Addr: at(n), Len: floorBytes})
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		f.rings[n] = ring
		ends = append(ends, func() { ring.Close(); ep.Close() })
	}
	done := make(chan error, 1)
	server := c.endpoint(c.place.servers[0], "floor")
	peer, err := rpc.Open(server, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: floorBox}})
	if err != nil {
		b.Fatal(err)
	}
	go func() { done <- f.serve(server, peer, at) }()
	ep := c.endpoint(c.place.clients, "client of floor")
	if f.peer, err = rpc.Open(ep, rpc.Options{}); err != nil {
		b.Fatal(err)
	}
	f.end = func() {
		f.stop.Store(true)
		err := errors.Join(<-done, peer.Close(), f.peer.Close())
		if err != nil {
			b.Error(err)
		}
		server.Close()
		ep.Close()
		for _, end := range ends {
			end()
		}
	}
	return f
}

// serve does what has to be done.
func (f *floor) serve(ep rdma.Endpoint, peer *rpc.Peer, at func(node int) rdma.Addr) error {
	own := at(0)
	var write *rdma.Batch
	var asked *rpc.Request
	var written int
	for !f.stop.Load() {
		r, err := peer.Next(time.Millisecond)
		switch {
		case errors.Is(err, rdma.ErrTimeout):
		case err != nil:
			return err
		case r != nil && r.Proc == floorGet:
			err = r.Answer(kv.StatusOK, nil, rdma.Span{Addr: own, Len: 100})
		case r != nil:
			asked, write = r, ep.Batch()
			write.Chain()
			write.Write(own, write.Alloc(entryBytes))
			write.Read(own, 8)
			for n := 1; n < servers; n++ {
				write.Chain()
				write.Append(rdma.RingAt(n, floorRing), write.Alloc(entryBytes))
			}
			err = ep.Post(write)
		}
		if err == nil && write != nil && write.Finished() {
			if err = write.Err(); err == nil {
				err = asked.Answer(kv.StatusOK, nil)
			}
			write.Release()
			write = nil
			if written++; written%(floorBytes/entryBytes) == 0 {
				for n := 1; n < servers && err == nil; n++ {
					err = f.rings[n].Post(rdma.Span{Addr: at(n), Len: floorBytes})
				}
			}
		}
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
	}
	return nil
}

func (f *floor) call(proc uint16, body []byte) error {
	c, err := f.peer.Call(f.box, proc, patience, body)
	if err == nil {
		c.Release()
	}
	return err
}
