package extents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"golang.org/x/sync/errgroup"
)

// TestOneOwnerOfExtents: no extent has two owners on real processors, though clients claim
// extents that others have freed.
func TestOneOwnerOfExtents(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents, p.Clients = 2, 5, 9, 64
	l := lay(t, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.Bytes, Clients: 64}, node.Serve)
	must(t, err)
	defer f.Close()
	must(t, node.Commit(f, 0, 0, l.Areas.Slabs.Base))
	owners := make([]atomic.Int32, p.Shards*int(l.AllExtents()))
	var missed atomic.Uint64
	var g errgroup.Group
	for i := range 4 {
		ep, err := f.Open("settler")
		must(t, err)
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(i), 9))
			for range 300 {
				x := openExtents(l, ep)
				if err := takeAndLeave(x, rng, owners, int32(i+1)); err != nil {
					return err
				}
				missed.Add(x.stats.Missed)
			}
			return ep.Close()
		})
	}
	must(t, g.Wait())
	if missed.Load() == 0 {
		t.Error("no client was ever faster than another")
	}
	ep, err := f.Open("audit")
	must(t, err)
	defer ep.Close()
	x := openExtents(l, ep)
	for shard := range p.Shards {
		if got := takeAll(t, x, shard); len(got) != int(l.AllExtents()) {
			t.Errorf("%d of the %d extents of shard %d are free", len(got), l.AllExtents(), shard)
		}
	}
}

// takeAndLeave takes extents, ends their uses in random order, and leaves.
func takeAndLeave(x *Client, rng *rand.Rand, owners []atomic.Int32, me int32) error {
	type mine struct {
		shard int
		r     table.Ref
	}
	var held []mine
	end := func(i int) error {
		h := held[i]
		held[i] = held[len(held)-1]
		held = held[:len(held)-1]
		if !owners[h.shard*int(x.table.AllExtents())+int(h.r.Extent)].CompareAndSwap(me, 0) {
			return fmt.Errorf("extent %+v went to another one", h.r)
		}
		b := x.ep.Batch()
		x.table.AddMark(b, h.shard, h.r)
		err := rdma.Do(x.ep, b, time.Second)
		b.Release()
		if rng.IntN(2) == 0 {
			x.Ended(h.shard, h.r)
		}
		return err
	}
	for range rng.IntN(200) {
		if len(held) > 20 || len(held) > 0 && rng.IntN(2) == 0 {
			if err := end(rng.IntN(len(held))); err != nil {
				return err
			}
			continue
		}
		shard := rng.IntN(x.table.Shards)
		r, err := takeNow(x, shard, 3)
		if errors.Is(err, client.ErrFull) {
			continue
		}
		if err != nil {
			return err
		}
		if !owners[shard*int(x.table.AllExtents())+int(r.Extent)].CompareAndSwap(0, me) {
			return fmt.Errorf("extent %+v is another one's", r)
		}
		b := x.ep.Batch()
		x.table.AddValue(b, shard, r, []byte("key"), []byte("val"))
		err = rdma.Do(x.ep, b, time.Second)
		b.Release()
		if err != nil {
			return err
		}
		held = append(held, mine{shard, r})
	}
	for len(held) > 0 {
		if err := end(0); err != nil {
			return err
		}
	}
	for shard := range x.table.Shards {
		if _, err := x.Leave(shard, x.id); err != nil {
			return err
		}
	}
	return nil
}
