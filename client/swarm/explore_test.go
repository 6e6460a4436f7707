package swarm

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tiny is a pool that is made and checked at once: exploring makes thousands of them. Its keys
// share few buckets.
func tiny(s explore.Shape, apart bool) Params {
	p := Params{Replicas: s.Data, Words: 3, Locks: 4, Clients: 24, PairBytes: 320, Apart: apart,
		Regions: s.Nodes, Objects: 300, Values: Buffers{1, 1000}, Index: Buffers{1, 1000}, Buckets: 2,
		Timeout: 20 * time.Millisecond}
	if apart {
		p.Words, p.Locks = 1, 0
	}
	return p
}

// explored is the store as the explorer sees it. There is no recoverer, and no client may have to
// wait for one.
func explored(apart bool) *explore.Subject {
	return &explore.Subject{
		Name: formatName(false, apart), Handler: node.Serve, Clients: 24, MaxValue: 300,
		Timeout: 20 * time.Millisecond, Majority: true,
		Replicas: [][2]int{{1, 1}, {3, 3}, {5, 5}},
		Memory: func(s explore.Shape) (uint64, error) {
			l, err := newPlan(tiny(s, apart), s.Nodes)
			if err != nil {
				return 0, err
			}
			return l.bytes, nil
		},
		Format: func(f rdma.Fabric, s explore.Shape) error { return Make(f, tiny(s, apart)) },
		Open: func(ep rdma.Endpoint, cache bool) (client.Store, error) {
			o := StoreOptions{CacheBytes: new(64 << 10), Apart: apart}
			if !cache {
				o.CacheBytes = new(0)
			}
			return OpenStore(ep, o)
		},
		Check: Check,
	}
}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(formatName(false, apart), func(t *testing.T) { explore.Seeds(t, explored(apart), 200) })
	}
}

// TestEnumerate lets clients and memory nodes crash at every verb of every operation: no operation
// of another client fails or waits. With $FARKV_SEEDS it does so with 1 and 5 replicas, too.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: " +
			"run without -race")
	}
	for _, apart := range []bool{false, true} {
		s := explored(apart)
		if os.Getenv("FARKV_SEEDS") == "" {
			s.Replicas = [][2]int{{3, 3}}
		}
		t.Run(formatName(false, apart), func(t *testing.T) { explore.Enumerate(t, s) })
	}
}
