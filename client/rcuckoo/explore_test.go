package rcuckoo

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tiny is a pool that is made and checked at once: exploring makes thousands of them. Its keys
// share few rows and locks.
func tiny(far bool, timeout time.Duration) table.Params {
	p := table.Params{Shards: 2, Rows: 6, Entries: 4, KeyBytes: 20, InlineBytes: 200, ExtentBytes: 200, F: 2.3,
		RowsPerLock: 2, LockWords: 1, Tickets: 3, Clients: 24,
		Timeout: timeout}
	if far {
		p.InlineBytes, p.ExtentBytes, p.Slabs, p.SlabExtents, p.Classes = 20, 216, 50, 2, 3
	}
	return p
}

// shaped is tiny with the replicas and spares of a shape.
func shaped(s explore.Shape, far bool, timeout time.Duration) table.Params {
	p := tiny(far, timeout)
	p.Replicas, p.Spares = s.Data, s.Spares
	return p
}

// explored is the store as the explorer sees it: with keepers, or with only the workers to
// repair. Without keepers a worker that was fenced off by mistake is not recovered, so failure
// timers are longer than any fault stops a worker.
func explored(far, kept bool) *explore.Subject {
	timeout := 200 * time.Millisecond
	if kept {
		timeout = 20 * time.Millisecond
	}
	return subject(far, kept, timeout)
}

func subject(far, kept bool, timeout time.Duration) *explore.Subject {
	s := &explore.Subject{
		Name: table.Format, Handler: node.Serve, Clients: 24, MaxValue: 200, Timeout: timeout, Lone: true,
		Memory: func(s explore.Shape) (uint64, error) {
			l, err := table.New(shaped(s, far, timeout), s.Nodes)
			if err != nil {
				return 0, err
			}
			return l.Bytes, nil
		},
		Format: func(f rdma.Fabric, s explore.Shape) error { return Make(f, shaped(s, far, timeout)) },
		OpenOn: func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error) {
			o := session.Options{Pool: f, Failure: timeout / 8}
			if !cache {
				o.CacheBytes = new(0)
			}
			return Open(ep, o)
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

var explorations = []struct {
	name      string
	far, kept bool
}{{"inline", false, false}, {"extents", true, false}, {"inline, kept", false, true}, {"extents, kept", true, true}}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	runs := uint64(100)
	if teeth.UnderRace {
		runs = 5
	}
	for _, c := range explorations {
		t.Run(c.name, func(t *testing.T) { explore.Seeds(t, explored(c.far, c.kept), runs) })
	}
}

// TestEnumerate lets clients crash at every verb of every operation.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: " +
			"run without -race")
	}
	for _, c := range explorations[1:3] {
		t.Run(c.name, func(t *testing.T) { explore.Enumerate(t, explored(c.far, c.kept)) })
	}
}
