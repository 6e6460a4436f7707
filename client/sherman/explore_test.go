package sherman

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

// tiny is a tree of nodes with two entries: four keys have splits on two levels,
// and merges down to an empty root.
func tiny(format string, nodes int) pool {
	return sized(Shape{Format: format, Nodes: nodes, Records: 200, NodeBytes: 160, KeyBytes: 20, ValueBytes: 200,
		Clients: 24, Workers: 2, Timeout: 100 * time.Millisecond, Lease: time.Millisecond})
}

// explored is the store as the explorer sees it: with a keeper, or with only the workers to repair
// anything.
func explored(format string, kept bool) *explore.Subject {
	s := &explore.Subject{
		Name: format, Handler: node.Serve, Clients: 24, MaxValue: 200, Timeout: 100 * time.Millisecond, Lone: true,
		Scans: true, Memory: func(s explore.Shape) (uint64, error) { return tiny(format, s.Nodes).Memory, nil },
		Format: func(f rdma.Fabric, s explore.Shape) error { return tiny(format, s.Nodes).make(f) },
		Open: func(ep rdma.Endpoint, cache bool) (client.Store, error) {
			if !cache {
				return Open(ep, Options{CacheBytes: new(0)})
			}
			return Open(ep, Options{CacheBytes: new(64 << 10)})
		},
		Check: Check,
	}
	if kept {
		s.Recoverer = func(rdma.Configs) cluster.NewRecoverer { return NewRecoverer }
	} else {
		s.Majority = format == RTX // no client has to wait for the dead, whether a master is there or not
	}
	return s
}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	runs := uint64(300)
	if teeth.UnderRace {
		runs = 5
	}
	both(t, func(t *testing.T, format string) {
		t.Run("kept", func(t *testing.T) { explore.Seeds(t, explored(format, true), runs) })
		t.Run("alone", func(t *testing.T) { explore.Seeds(t, explored(format, false), runs) })
	})
}

// TestEnumerate lets clients crash at every verb of every operation.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: run " +
			"without -race")
	}
	both(t, func(t *testing.T, format string) { explore.Enumerate(t, explored(format, true)) })
}
