package fusee

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// small returns the parameters of a pool that is quickly made, with small blocks.
func small(nodes, indexReplicas, dataReplicas int) layout.Params {
	return layout.Params{IndexReplicas: indexReplicas, DataReplicas: dataReplicas, Subtables: 2, Groups: 128,
		Regions: 2*nodes + 8, RegionBytes: 1 << 20, BlockBytes: 8 << 10, Clients: 64, TagBits: 13,
		Timeout: 3 * time.Second}
}

func harness(nodes int, p layout.Params, o Options) storetest.Harness {
	l, err := layout.New(p, nodes, 1<<40)
	if err != nil {
		panic(err)
	}
	return storetest.Harness{
		Nodes: nodes, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve,
		Format: func(f rdma.Fabric) error { return session.Make(f, p) },
		Open:   func(ep rdma.Endpoint) (client.Store, error) { return Open(ep, o) },
		Impatient: func(ep rdma.Endpoint) (client.Store, error) {
			hasty := o
			hasty.Timeout = 500 * time.Millisecond
			return Open(ep, hasty)
		},
		Check:     Check,
		Recoverer: func(ep rdma.Endpoint) (cluster.Recoverer, error) { return recovery.NewRecoverer(ep) },
		MaxKey:    64, MaxValue: l.MaxPair() - 64,
	}
}

func TestStore(t *testing.T) {
	// Real time: a loaded machine stops workers for a while.
	patient := Options{Timeout: 3 * time.Second, CacheBytes: new(64 << 10)}
	for _, r := range []struct{ nodes, index, data int }{{3, 2, 2}, {1, 1, 1}, {3, 3, 3}, {5, 5, 5}, {2, 1, 2}} {
		t.Run(fmt.Sprintf("%d nodes, %d index replicas, %d of data", r.nodes, r.index, r.data), func(t *testing.T) {
			h := harness(r.nodes, small(r.nodes, r.index, r.data), patient)
			h.Alike = r.nodes != 3 || r.index != 2
			storetest.Run(t, h)
		})
	}
	t.Run("cr", func(t *testing.T) {
		o := patient
		o.Sequential = true
		p := small(3, 3, 2)
		p.Sequential = true
		h := harness(3, p, o)
		h.Alike = true
		storetest.Run(t, h)
	})
	t.Run("node-centric allocation", func(t *testing.T) {
		p := small(3, 2, 2)
		p.NodeCentric = true
		h := harness(3, p, patient)
		h.Alike = true
		storetest.Run(t, h)
	})
	t.Run("nc", func(t *testing.T) {
		o := patient
		o.CacheBytes = new(0)
		h := harness(3, small(3, 2, 2), o)
		h.Alike = true
		storetest.Run(t, h)
	})
}
