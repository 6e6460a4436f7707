package extendible

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

const tinyMemory = 2 << 20

// tiny is a pool in which a few keys fill a subtable, and in which clients scan
// and pass on memory all the time. It is made and checked at once: exploring
// makes thousands of them.
func tiny(timeout time.Duration) Params {
	return Params{Groups: 2, Slots: 1, Chunks: 12, PairBytes: 320, Depth: 12, Clients: 24, Timeout: timeout}
}

// explored is the store as the explorer sees it: with keepers, or with only the
// workers to repair anything. Its workers split subtables though there is room,
// and forget what memory is free, one time in four. It counts rehashes, and CASes
// that a rehash came before.
func explored(format string, kept bool, seen *Stats) *explore.Subject {
	const timeout = 200 * time.Millisecond
	s := &explore.Subject{
		Name: format, Handler: node.Serve, Clients: 24, MaxValue: 300, Timeout: timeout, Lone: true, NoSpares: true,
		Memory: func(explore.Shape) (uint64, error) { return tinyMemory, nil },
		Format: func(f rdma.Fabric, _ explore.Shape) error { return Make(f, format, tiny(timeout)) },
		Open: func(ep rdma.Endpoint, _ bool) (client.Store, error) {
			s, err := Open(ep, Options{Splits: 0.25})
			if err != nil {
				return nil, err
			}
			s.memory.forgets = func() bool { return ep.Rand().IntN(4) == 0 }
			return counting{s, seen}, nil
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

// counting adds up what workers that close have done.
type counting struct {
	*Store
	seen *Stats
}

func (c counting) Close() error {
	atomic.AddUint64(&c.seen.Splits, c.stats.Splits)
	atomic.AddUint64(&c.seen.Moved, c.stats.Moved)
	atomic.AddUint64(&c.seen.Duplicates, c.stats.Duplicates)
	atomic.AddUint64(&c.seen.Ended, c.stats.Ended)
	atomic.AddUint64(&c.seen.Looks, c.stats.Looks)
	atomic.AddUint64(&c.seen.Swept, c.memory.stats.Found)
	return c.Store.Close()
}

var explorations = []struct {
	name, format string
	kept         bool
}{{"alone", RTX, false}, {"kept", RTX, true}, {"dtx, alone", DTX, false}, {"dtx, kept", DTX, true},
	{"race, alone", Locked, false}, {"race, kept", Locked, true}}

// TestExplore draws pools, networks, work and faults from seeds; $FARKV_SEEDS and $FARKV_SEED
// choose them.
func TestExplore(t *testing.T) {
	runs := uint64(300)
	if teeth.UnderRace {
		runs = 5
	}
	for _, c := range explorations {
		t.Run(c.name, func(t *testing.T) {
			var seen Stats
			explore.Seeds(t, explored(c.format, c.kept, &seen), runs)
			t.Logf("%+v", seen)
			if !teeth.UnderRace && (seen.Splits == 0 || seen.Looks == 0) {
				t.Errorf("there were few rehashes: %+v", seen)
			}
		})
	}
}

// TestEnumerate lets clients crash at every verb of every operation.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: run " +
			"without -race")
	}
	for _, c := range explorations {
		t.Run(c.name, func(t *testing.T) {
			explore.Enumerate(t, explored(c.format, c.kept, new(Stats)))
		})
	}
}
