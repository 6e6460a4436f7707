package original

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tiny is a tree of nodes with two entries that share four locks: four keys have
// splits on two levels.
func tiny(nodes int, timeout time.Duration) Params {
	p, _, err := Size(Shape{Nodes: nodes, Records: 100, NodeBytes: 192, KeyBytes: 16, ValueBytes: 200, Locks: 4,
		Clients: 24, Workers: 1, Timeout: timeout})
	if err != nil {
		panic(err)
	}
	return p
}

// explored is the store as the explorer sees it: with a keeper, or with none, where what depends on
// dead clients ends at its timeout.
func explored(kept bool) *explore.Subject {
	timeout := 200 * time.Millisecond
	if kept {
		timeout = 60 * time.Millisecond
	}
	s := &explore.Subject{
		Name: Format, Handler: node.Serve, Clients: 24, MaxValue: 200, Timeout: timeout, Lone: true, Scans: true,
		Memory: func(s explore.Shape) (uint64, error) { return memoryOf(tiny(s.Nodes, timeout), s.Nodes), nil },
		Format: func(f rdma.Fabric, s explore.Shape) error { return Make(f, tiny(s.Nodes, timeout)) },
		Open: func(ep rdma.Endpoint, cache bool) (client.Store, error) {
			if !cache {
				return Open(ep, Options{CacheBytes: new(0)})
			}
			return Open(ep, Options{CacheBytes: new(64 << 10)})
		},
		Check: Check,
	}
	if kept {
		s.Recoverer = func(rdma.Configs) cluster.NewRecoverer {
			return func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep) }
		}
	}
	return s
}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	runs := uint64(150)
	if teeth.UnderRace {
		runs = 5
	}
	t.Run("kept", func(t *testing.T) { explore.Seeds(t, explored(true), runs) })
	t.Run("alone", func(t *testing.T) { explore.Seeds(t, explored(false), runs) })
}

// TestEnumerate lets clients crash at every verb of every operation.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: run " +
			"without -race")
	}
	explore.Enumerate(t, explored(true))
}
