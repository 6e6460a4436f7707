package rcuckoo

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/storetest"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// replicated is the store with replicas, kept, as the explorer sees it.
func replicated(far bool) *explore.Subject {
	s := subject(far, true, 80*time.Millisecond) // failure timers are longer than slow nodes take for a verb
	s.Replicas = [][2]int{{2, 2}, {3, 3}}
	return s
}

// TestExploreReplicas is TestExplore of pools with replicas: memory nodes die, too, and spares take
// their places.
func TestExploreReplicas(t *testing.T) {
	runs := uint64(100)
	if teeth.UnderRace {
		runs = 5
	}
	t.Run("inline", func(t *testing.T) { explore.Seeds(t, replicated(false), runs) })
	t.Run("extents", func(t *testing.T) { explore.Seeds(t, replicated(true), runs) })
	t.Run("extents, growing", func(t *testing.T) {
		var divided atomic.Uint64
		explore.Seeds(t, growingToo(&divided), runs/2)
		if divided.Load() == 0 {
			t.Error("no row was divided")
		}
	})
}

// growingToo is replicated with tables that grow, too.
func growingToo(divided *atomic.Uint64) *explore.Subject {
	s := exploredGrowing(true, true, divided)
	s.Replicas = [][2]int{{2, 2}, {3, 3}}
	s.Timeout = 150 * time.Millisecond
	params := func(shape explore.Shape) table.Params {
		p := tinyGrowing(true, s.Timeout)
		p.Replicas, p.Spares = shape.Data, shape.Spares
		return p
	}
	s.Memory = func(shape explore.Shape) (uint64, error) {
		l, err := table.New(params(shape), shape.Nodes)
		if err != nil {
			return 0, err
		}
		return l.Bytes, nil
	}
	s.Format = func(f rdma.Fabric, shape explore.Shape) error { return Make(f, params(shape)) }
	return s
}

// TestEnumerateReplicas lets clients and memory nodes crash at every verb of every operation, with
// 2 replicas. With $FARKV_LONG or $FARKV_SEEDS it does so with 3, too.
func TestEnumerateReplicas(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one coroutine runs at a time, so the race detector finds nothing here, and takes minutes: " +
			"run without -race")
	}
	s := replicated(true)
	if os.Getenv("FARKV_LONG") == "" && os.Getenv("FARKV_SEEDS") == "" {
		s.Replicas = [][2]int{{2, 2}}
	}
	explore.Enumerate(t, s)
}

// TestStoreReplicas is TestStore of pools with replicas.
func TestStoreReplicas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		nodes    int
		replicas int
		p        table.Params
	}{{"inline, 2 replicas", 3, 2, inlinePool(3)}, {"extents, 3 replicas", 3, 3, extentPool(2)}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits, mostly
			c.p.Replicas = c.replicas
			h := harness(c.nodes, c.p, session.Options{Failure: 3 * time.Second})
			h.Alike, h.MinSeeds = c.replicas == 2, 30
			storetest.Run(t, h)
		})
	}
}

// TestTripsReplicas: replicas cost a change one trip, with one doorbell to each backup, and cost
// reads nothing. A backup gets the value of an extent in the first trip.
func TestTripsReplicas(t *testing.T) {
	for _, replicas := range []uint64{1, 2, 3} {
		p := extentPool(1)
		p.Replicas = int(replicas)
		p.RowsPerLock, p.LockWords = p.Rows, 1
		s := storeOn(t, memPool(t, 3, p), session.Options{})
		backups := replicas - 1
		trips := min(backups, 1)
		for _, size := range []int{4, 100} {
			values := uint64(0) // doorbells
			if size > p.InlineBytes {
				values = backups
			}
			key, value := fmt.Appendf(nil, "key of %d", size), make([]byte, size)
			must(t, s.Insert(key, value)) // which claims extents
			fetch := cost{1, 1}
			if size > p.InlineBytes {
				fetch = cost{2, 2}
			}
			for _, c := range []struct {
				what string
				f    func() error
				fail error
				want cost
			}{
				{"get", func() error { _, err := s.Get(key); return err }, nil, fetch},
				{"update", func() error { return s.Update(key, value) }, nil, cost{3 + backups + values, 3 + trips}},
				{"insert again", func() error { return s.Insert(key, value) }, client.ErrExists, cost{3 + values, 3}},
				{"delete", func() error { return s.Delete(key) }, nil, cost{3 + backups, 3 + trips}},
				{"insert", func() error { return s.Insert(key, value) }, nil, cost{3 + backups + values, 3 + trips}},
			} {
				if got := s.costs(t, c.f, c.fail); got != c.want {
					t.Errorf("%s of %d bytes with %d replicas: %+v, want %+v", c.what, size, replicas, got, c.want)
				}
			}
		}
	}
}

// TestLayoutAlone: a pool with one replica has the layout of a pool from before replicas.
func TestLayoutAlone(t *testing.T) {
	p := small()
	alone := lay(t, p, 3)
	p.Replicas = 1
	if one := lay(t, p, 3); one.Bytes != alone.Bytes || one.Areas.Rows != alone.Areas.Rows ||
		one.Areas.Roles != (table.Area{}) {
		t.Errorf("%+v, and %+v", one, alone)
	}
	for shard := range p.Shards {
		if at := alone.Leads[shard]; at != (node.Replica{Node: shard % 3, Index: shard / 3}) {
			t.Errorf("shard %d lies at %+v", shard, at)
		}
	}
	for _, bad := range []table.Params{{Replicas: -1}, {Replicas: 4}, {Spares: 1}, {Replicas: 3, Spares: 1},
		{Replicas: 9}} {
		p := small()
		p.Replicas, p.Spares = bad.Replicas, bad.Spares
		if _, err := table.New(p, 3); !errors.Is(err, table.ErrParams) {
			t.Errorf("%d replicas on 3 nodes with %d spares: %v", p.Replicas, p.Spares, err)
		}
	}
}

// TestPlacement: copies of a shard lie on different nodes, and no two copies overlap. A leader
// stays the leader as long as its node lives, and a stand-in comes last.
func TestPlacement(t *testing.T) {
	p := small()
	p.Shards, p.Replicas, p.Spares = 7, 3, 1
	l := lay(t, p, 5)
	seen := map[node.Replica]bool{}
	for shard := range p.Shards {
		nodes := map[int]bool{}
		for _, at := range l.Copies[shard] {
			if seen[at] || nodes[at.Node] || at.Node > 3 || at.Index >= l.PerNode {
				t.Errorf("shard %d lies at %v", shard, l.Copies[shard])
			}
			seen[at], nodes[at.Node] = true, true
		}
	}
	v := rdma.View{Members: make([]rdma.Member, 5)}
	v.Members[0].Gone = true
	l.ApplyView(&v)
	if got := fmt.Sprint(l.Copies[0]); got != "[{1 2} {2 4}]" {
		t.Errorf("without node 0 shard 0 lies at %s", got)
	}
	v.Members[4] = rdma.Member{Replaces: 1, Since: 7}
	l.ApplyView(&v)
	if got := fmt.Sprint(l.Copies[0]); got != "[{1 2} {2 4} {4 0}]" {
		t.Errorf("with a stand-in shard 0 lies at %s", got)
	}
	v.Members[1].Gone, v.Members[2].Gone = true, true
	l.ApplyView(&v)
	if l.Leads[0] != (node.Replica{Node: 4}) || l.Orphan[0] {
		t.Errorf("with a stand-in alone shard 0 lies at %v", l.Copies[0])
	}
	v.Members[4].Gone = true
	if l.ApplyView(&v); !l.Orphan[0] || l.Leads[0] != (node.Replica{}) {
		t.Errorf("shard 0 lies at %v, and nothing is left of it", l.Copies[0])
	}
}
