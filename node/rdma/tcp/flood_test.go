package tcp

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Flood attacks the nodes of a pool with what may only read, until stop is closed: it keeps so many
// connections to each busy, which ask for 256 KiB again and again and take no answers. One that is
// ended is made again.
func Flood(r control.Record, s transport.Security, conns int, stop <-chan struct{}) {
	var group sync.WaitGroup
	for node := range r.Nodes {
		for range conns {
			group.Go(func() {
				for {
					floodOnce(r, s, node, stop)
					select {
					case <-stop:
						return
					case <-time.After(time.Second):
					}
				}
			})
		}
	}
	group.Wait()
}

// floodOnce is one connection of a flood, until it is refused or ended.
func floodOnce(r control.Record, s transport.Security, node int, stop <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), clientPatience)
	defer cancel()
	c, w, err := transport.Dial(ctx, r.Addresses[node], s, transport.Hello{Purpose: transport.ForVerbs,
		Process: transport.NewID(), Pool: r.ID, Node: node})
	if err != nil {
		return
	}
	defer c.Close()
	defer transport.StopWith(stop, func() { c.Close() })()
	read := framed(transport.KindVerbs, 1, 1, transport.AppendVerb((&transport.Rights{Key: w.Key,
		Life: 1}).Append(nil), &rdma.Op{Verb: rdma.Read}, 0,
		0, transport.MaxData))
	_, err = c.Write(bytes.Repeat(read, 32)) // 8 MiB of answers: more than the kernel holds
	for err == nil {
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Millisecond):
		}
		_, err = c.Write(read) // fails once the node has ended the connection
	}
}

// Stall is a connection with the given rights that asks for so many answers of 256 KiB and takes
// none.
func Stall(r control.Record, s transport.Security, frames int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientPatience)
	defer cancel()
	c, w, err := transport.Dial(ctx, r.Addresses[0], s, transport.Hello{Purpose: transport.ForVerbs,
		Process: transport.NewID(), Pool: r.ID})
	if err != nil {
		return nil, err
	}
	own := transport.Rights{Key: w.Key, Life: 1}
	if s.Token != nil {
		own.Client = 1
	}
	for range frames {
		if _, err := c.Write(framed(transport.KindVerbs, 1, 1,
			transport.AppendVerb(own.Append(nil), &rdma.Op{Verb: rdma.Read}, 0, 0,
				transport.MaxData))); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}
