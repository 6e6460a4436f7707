package fusee

import (
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tiny is a pool that is made and checked at once: exploring makes thousands of them.
func tiny(s explore.Shape) layout.Params {
	return layout.Params{IndexReplicas: s.Index, DataReplicas: s.Data, Spares: s.Spares,
		Subtables: 1, Groups: 2, MaxSubtables: 1 << s.Levels,
		Regions: 2*s.Nodes + 6, RegionBytes: 64 << 10, BlockBytes: 4 << 10, Clients: 24, TagBits: race.MaxTagBits,
		Timeout: 20 * time.Millisecond}
}

// explored is FUSEE as the explorer sees it.
func explored(sequential bool) *explore.Subject {
	params := func(s explore.Shape) layout.Params {
		p := tiny(s)
		p.Sequential = sequential
		return p
	}
	return &explore.Subject{
		Name: layout.FormatName(sequential), Handler: node.Serve, Clients: 24, MaxValue: 900,
		Timeout: 20 * time.Millisecond, Levels: 2,
		Replicas: [][2]int{{1, 1}, {2, 2}, {1, 2}, {3, 3}, {3, 2}, {5, 5}, {5, 3}},
		Memory: func(s explore.Shape) (uint64, error) {
			l, err := layout.New(params(s), s.Nodes, 1<<40)
			if err != nil {
				return 0, err
			}
			return l.Bytes, nil
		},
		Format: func(f rdma.Fabric, s explore.Shape) error { return session.Make(f, params(s)) },
		Open: func(ep rdma.Endpoint, cache bool) (client.Store, error) {
			o := Options{CacheBytes: new(64 << 10), CacheThreshold: new(0.9), Sequential: sequential, Splits: 0.2}
			if !cache {
				o.CacheBytes = new(0)
			}
			return Open(ep, o)
		},
		Check: Check,
		Recoverer: func(rdma.Configs) cluster.NewRecoverer {
			return func(ep rdma.Endpoint) (cluster.Recoverer, error) { return recovery.NewRecoverer(ep) }
		},
	}
}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	share := uint64(1)
	if teeth.UnderRace { // see seeds.Few
		share = 30
	}
	t.Run("snapshot", func(t *testing.T) { explore.Seeds(t, explored(false), 600/share) })
	t.Run("cr", func(t *testing.T) { explore.Seeds(t, explored(true), 300/share) })
}

// TestFailedOnce runs the plans that found what has been mended since.
func TestFailedOnce(t *testing.T) {
	explore.Plans(t, explored(false), explore.File(t, "testdata/plans.txt")...)
}

// TestEnumerate lets clients and memory nodes crash at every verb of every operation, with 2
// replicas. With $FARKV_LONG it does so with 1 and 3, too, with $FARKV_SEEDS with 1, 3 and 5.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: " +
			"run without -race")
	}
	s := explored(false)
	switch {
	case os.Getenv("FARKV_SEEDS") != "":
	case os.Getenv("FARKV_LONG") == "":
		s.Replicas = [][2]int{{2, 2}}
	default:
		s.Replicas = [][2]int{{1, 1}, {2, 2}, {3, 3}}
	}
	explore.Enumerate(t, s)
}
