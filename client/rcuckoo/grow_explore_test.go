package rcuckoo

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// tinyGrowing is a pool of two rows with one entry each, so that the explorer's keys do not fit
// without growth. If values are in extents it has one row.
func tinyGrowing(far bool, timeout time.Duration) table.Params {
	p := tiny(far, timeout)
	p.Shards, p.Rows, p.Entries, p.RowsPerLock, p.Levels = 1, 2, 1, 1, 8
	if far {
		p.Rows = 1
	}
	return p
}

func shapedGrowing(s explore.Shape, far bool, timeout time.Duration) table.Params {
	p := tinyGrowing(far, timeout)
	p.Replicas, p.Spares = s.Data, s.Spares
	return p
}

// exploredGrowing is explored with tables that grow; it counts the rows that were divided.
func exploredGrowing(far, kept bool, divided *atomic.Uint64) *explore.Subject {
	timeout := 200 * time.Millisecond
	if kept {
		timeout /= 2 // all clients want one lock, and two keys are in different rows only at the eighth level
	}
	s := subject(far, kept, timeout)
	s.Memory = func(shape explore.Shape) (uint64, error) {
		l, err := table.New(shapedGrowing(shape, far, s.Timeout), shape.Nodes)
		if err != nil {
			return 0, err
		}
		return l.Bytes, nil
	}
	s.Format = func(f rdma.Fabric, shape explore.Shape) error { return Make(f, shapedGrowing(shape, far, s.Timeout)) }
	open := s.OpenOn
	s.OpenOn = func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error) {
		st, err := open(f, ep, cache)
		if err != nil {
			return nil, err
		}
		return counting{st.(*Store), divided}, nil
	}
	return s
}

type counting struct {
	*Store
	divided *atomic.Uint64
}

func (c counting) Close() error {
	c.divided.Add(c.session.Stats.Divided)
	return c.Store.Close()
}

// TestExploreGrowing is TestExplore with tables that grow.
func TestExploreGrowing(t *testing.T) {
	runs := uint64(100)
	if teeth.UnderRace {
		runs = 5
	}
	for _, c := range explorations {
		t.Run(c.name, func(t *testing.T) {
			var divided atomic.Uint64
			explore.Seeds(t, exploredGrowing(c.far, c.kept, &divided), runs)
			if divided.Load() == 0 {
				t.Error("no row was divided")
			}
		})
	}
}

// TestExploreGrowingReplicas is TestExploreReplicas with tables that grow.
func TestExploreGrowingReplicas(t *testing.T) {
	runs := uint64(60)
	if teeth.UnderRace {
		runs = 5
	}
	var divided atomic.Uint64
	s := exploredGrowing(true, true, &divided)
	s.Replicas, s.Lone = [][2]int{{2, 2}, {3, 3}}, false
	explore.Seeds(t, s, runs)
	if divided.Load() == 0 {
		t.Error("no row was divided")
	}
}

// TestEnumerateGrowing is TestEnumerate with tables that grow: crashes at every verb of an INSERT
// that divides rows, among them.
func TestEnumerateGrowing(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time: run without -race")
	}
	var divided atomic.Uint64
	explore.Enumerate(t, exploredGrowing(true, false, &divided))
}

// TestKeysPart: the explorer's keys have different segment bits, else a table could not hold them
// all.
func TestKeysPart(t *testing.T) {
	l := lay(t, tinyGrowing(false, time.Second), 1)
	seen := map[uint32]int{}
	for i := range 4 {
		at := l.Place(fmt.Appendf(nil, "key-%d", i))
		if j, ok := seen[at.Bits]; ok {
			t.Errorf("keys %d and %d have segment bits %b", i, j, at.Bits)
		}
		seen[at.Bits] = i
	}
}
