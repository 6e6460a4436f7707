package rowan_test

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// explored is a store for the explorer, set up as users have it: servers beside the nodes of a
// pool, and masters that manage the configuration. Each server has shards in the beginning.
func explored(t *testing.T, kind kv.Kind, shards int) *explore.Subject {
	k, err := stores.Lookup(kind.String())
	if err != nil {
		t.Fatal(err)
	}
	const clients = 24
	params := func(s explore.Shape) stores.Params {
		return k.Size(stores.Params{Nodes: s.Nodes, DataReplicas: s.Data, Records: 16, PairBytes: 400, Memory: 1 << 20,
			Clients: clients, Timeout: 20 * time.Millisecond, Own: stores.Values{"server-shards": shards}})
	}
	servers := params(explore.Shape{Nodes: 6, Data: 5}).Servers
	return &explore.Subject{
		Name: k.Name, Handler: node.Serve, Clients: clients + servers, Servers: servers,
		MaxValue: 300, Timeout: 20 * time.Millisecond, NoSpares: true, Durable: k.Durable,
		Replicas: [][2]int{{1, 1}, {2, 2}, {3, 3}, {5, 5}},
		Memory: func(s explore.Shape) (uint64, error) {
			p := params(s)
			return p.Memory, p.Check(k)
		},
		Format: func(f rdma.Fabric, s explore.Shape) error { return k.Format(f, params(s)) },
		Serve:  func(f rdma.Fabric) (explore.Servers, error) { return k.Start(f) },
		OpenOn: func(f rdma.Fabric, ep rdma.Endpoint, _ bool) (client.Store, error) {
			return k.Open(ep, stores.Options{Fabric: f})
		},
		Check:     k.Check,
		Recoverer: k.ExploredRecoverer,
	}
}

// TestExplore draws pools, networks, work and faults from seeds, deaths of servers among them.
func TestExplore(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		n := uint64(300)
		if k != kv.Rowan {
			n /= 6
		}
		explore.Seeds(t, explored(t, k, rowan.DefaultShards), n)
	})
}

// TestFailedOnce runs the plans that found what has been mended since.
func TestFailedOnce(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		explore.Plans(t, explored(t, k, rowan.DefaultShards), explore.File(t, "testdata/plans.txt")...)
	})
}

// TestEnumerate: a client crashes behind each message of each operation, and a server dies at each
// verb that lands at its node meanwhile.
func TestEnumerate(t *testing.T) {
	if os.Getenv("FARKV_LONG") != "1" {
		t.Skip("takes minutes; run make enumerate")
	}
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) { explore.Enumerate(t, explored(t, k, 2)) })
}
