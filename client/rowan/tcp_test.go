package rowan_test

import (
	"errors"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/node/rowan/kv"
)

// carrier is a fabric with memory nodes that clients reach over TCP.
type carrier struct {
	device func() (*ibverbs.Device, error) // of a node; nil: it needs none
	create func(o control.Options, g control.Geometry) (rdma.Fabric, error)
	open   func(o control.Options) (rdma.Fabric, error)
}

var (
	byTCP = carrier{
		create: func(o control.Options, g control.Geometry) (rdma.Fabric, error) { return tcp.Create(o, g, nil) },
		open:   func(o control.Options) (rdma.Fabric, error) { return tcp.Open(o) },
	}
	byRDMA = carrier{
		device: func() (*ibverbs.Device, error) { return ibverbs.OpenDevice(ibverbs.Choice{}, *host+":0") },
		create: func(o control.Options, g control.Geometry) (rdma.Fabric, error) {
			return ibverbs.Create(o, g, ibverbs.Options{}, nil)
		},
		open: func(o control.Options) (rdma.Fabric, error) { return ibverbs.Open(o, ibverbs.Options{}) },
	}
)

// overTCP is nodes of this process, each with its server beside it.
func overTCP(o kv.Options) (*place, error) { return byTCP.place(o) }

func (c *carrier) place(o kv.Options) (_ *place, err error) {
	p := &place{}
	var ends []func() error
	p.end = func() (err error) {
		for _, end := range slices.Backward(ends) { // a node before its device
			err = errors.Join(err, end())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	security := transport.Security{Token: []byte("a token that is long enough")}
	pool := control.Options{Security: security, MTU: mtu, Lease: 10 * time.Second}
	var nodes []*memnode.Node
	for range servers {
		config := memnode.Config{Listen: "127.0.0.1:0", Memory: o.Size() + 2*floorBytes + 4096, Security: security}
		if c.device != nil {
			d, err := c.device()
			if err != nil {
				return nil, err
			}
			config.Device, ends = d, append(ends, d.Close)
		}
		n, err := memnode.Listen(config)
		if err != nil {
			return nil, err
		}
		nodes, ends = append(nodes, n), append(ends, n.Close)
		pool.Addresses = append(pool.Addresses, n.Addr())
	}
	f, err := c.create(pool, control.Geometry{Nodes: servers, Memory: o.Size() + 2*floorBytes, Clients: 64})
	if err != nil {
		return nil, err
	}
	p.clients, ends = f, append(ends, f.Close)
	for _, n := range nodes {
		o, err := n.Beside()
		if err != nil {
			return nil, err
		}
		f, err := c.open(o)
		if err != nil {
			return nil, err
		}
		p.servers, ends = append(p.servers, f), append(ends, f.Close)
	}
	return p, nil
}

// overTCPToo are the kinds that are tested over TCP, too: one in which servers append, and one in
// which they send messages to each other; with FARKV_LONG=1 all of them.
func overTCPToo() []kv.Kind {
	if os.Getenv("FARKV_LONG") == "1" {
		return kv.Kinds()
	}
	return []kv.Kind{kv.Rowan, kv.RPC}
}

// TestTCP is TestMem over TCP.
func TestTCP(t *testing.T) { testReal(t, overTCPToo(), overTCP) }

func TestContractTCP(t *testing.T) { testContract(t, overTCPToo(), overTCP) }

func TestAllocationsTCP(t *testing.T) { testAllocations(t, overTCPToo(), overTCP) }

var host = flag.String("rdma", "", "run TestRDMA, on the device with this IP address")

// TestRDMA is TestMem over verbs of a device: go test -tags ibverbs ./client/rowan -run TestRDMA
// -rdma ADDRESS
func TestRDMA(t *testing.T) {
	if *host == "" {
		t.Skip("needs an RDMA device: -rdma ADDRESS names one, and -tags ibverbs builds for it")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		o, n := small(k), rdma.RingStreams(mtu)
		o.Log.Streams, o.Log.Segments, o.Log.Ahead = n, o.Log.Segments+3*n, o.Log.Ahead+3*n
		// As in pools: guests have a slow processor.
		o.StepEvery, o.CommitEvery, o.IdleEvery = 5*time.Millisecond, 15*time.Millisecond, 20*time.Millisecond
		history(t, o, byRDMA.place)
	})
}
