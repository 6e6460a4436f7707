package extendible

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// small is a pool of tiny subtables, which is split again and again.
func small(pairBytes int) Params {
	return Params{Groups: 2, PairBytes: pairBytes, Depth: 12, Clients: 64, Timeout: 20 * time.Second}
}

func harness(nodes int, format string, p Params) storetest.Harness {
	return storetest.Harness{
		Nodes: nodes, Memory: 8 << 20, Clients: p.Clients, Handler: node.Serve,
		Format:    func(f rdma.Fabric) error { return Make(f, format, p) },
		Open:      func(ep rdma.Endpoint) (client.Store, error) { return Open(ep, Options{}) },
		Check:     Check,
		Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) },
		MaxKey:    64, MaxValue: p.PairBytes - 64, MinSeeds: 50,
	}
}

func TestStore(t *testing.T) {
	for _, format := range Formats {
		t.Run(format, func(t *testing.T) {
			h := harness(2, format, small(1064))
			h.Alike = format != RTX // they differ in what ends a rehash
			storetest.Run(t, h)
		})
	}
}
