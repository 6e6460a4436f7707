package rowan_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rowan/kv"
)

// overTCP is nodes of this process, each with its server beside it.
func overTCP(o kv.Options) (_ *place, err error) {
	p := &place{}
	var ends []func() error
	p.end = func() (err error) {
		for i := len(ends) - 1; i >= 0; i-- {
			err = errors.Join(err, ends[i]())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	security := tcp.Security{Token: []byte("a token that is long enough")}
	pool := tcp.Options{Security: security, MTU: mtu, Lease: 10 * time.Second}
	var nodes []*tcp.Node
	for range servers {
		n, err := tcp.Listen(tcp.Config{Listen: "127.0.0.1:0", Memory: o.Size() + 2*floorBytes + 4096,
			Security: security})
		if err != nil {
			return nil, err
		}
		nodes, ends = append(nodes, n), append(ends, n.Close)
		pool.Addresses = append(pool.Addresses, n.Addr())
	}
	f, err := tcp.Create(pool, tcp.Geometry{Nodes: servers, Memory: o.Size() + 2*floorBytes, Clients: 64}, nil)
	if err != nil {
		return nil, err
	}
	p.clients, ends = f, append(ends, f.Close)
	for _, n := range nodes {
		o, err := n.Beside()
		if err != nil {
			return nil, err
		}
		f, err := tcp.Open(o)
		if err != nil {
			return nil, err
		}
		p.servers, ends = append(p.servers, rdma.Fabric(f)), append(ends, f.Close)
	}
	return p, nil
}

// overTCPToo are the kinds that are tested over TCP as well: one whose servers append, and one whose servers send
// messages to each other; all with FARKV_LONG=1.
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
