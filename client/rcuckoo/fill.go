package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Fill reads a sample of bounded size, however large the pool is.
const (
	// fillRows is how many rows of all shards together are read, but at least one run of each
	// shard.
	fillRows = 2048
	// fillRun is how many neighbouring rows one READ returns.
	fillRun = 16
	// fillSlabs is how many slabs of all shards together are read, but at least one of each shard.
	fillSlabs = 256
)

// Fill returns how full the tables are, as far as they have grown, and the extents of long values,
// by samples where the pool is large. It may run while clients work: rows that are being written
// are left out, and so are shards of which no copy answers.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	ep, l, _, err := client.Look(f, "see how full the pool is", table.Read)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	all := []client.Fill{{Of: "entries"}}
	if l.HasExtents() {
		all = append(all, client.Fill{Of: "extents"})
	}
	for shard := range l.Shards {
		err := fillShard(l, ep, shard, all)
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return nil, fmt.Errorf("see how full shard %d is: %w", shard, err)
		}
	}
	return all, nil
}

// fillShard adds what a shard has. Rows are read on the first copy with a node that answers. The
// marks of extents are at the leader. The error wraps rdma.ErrNodeDown if no copy answers.
func fillShard(l *table.Layout, ep rdma.Endpoint, shard int, all []client.Fill) error {
	rows := all[0]
	err := error(rdma.ErrNodeDown)
	for _, at := range l.Copies[shard] {
		// It begins again with each copy: what was added on a copy with a node that died
		// meanwhile does not count.
		rows = all[0]
		err = fillSomeRows(l, ep, shard, at, &rows)
		if !errors.Is(err, rdma.ErrNodeDown) {
			break
		}
	}
	if err != nil {
		return err
	}
	all[0] = rows
	if len(all) > 1 {
		return fillExtents(l, ep, shard, &all[1])
	}
	return nil
}

// fillSomeRows adds the entries of a sample of a copy's rows. Rows that are torn or not made yet
// are left out. A row that is not made has no entries: those that will move there are in its
// parent. What is backed is read first: rows behind it may have no memory yet.
func fillSomeRows(l *table.Layout, ep rdma.Endpoint, shard int, at node.Replica, fill *client.Fill) error {
	backed, err := table.Backed(l, ep, shard)
	if err != nil {
		return err
	}
	// The bound on the sample is shared by the shards, so a look at a pool of many shards reads
	// no more.
	spans, whole := client.Sample(uint64(backed), uint64(max(fillRows/l.Shards, fillRun)), fillRun, uint64(backed))
	fill.Sampled = fill.Sampled || !whole
	for _, s := range spans {
		err := table.SomeRows(l, ep, shard, at, int(s.From), int(s.End-s.From), func(n uint32, r table.Row) {
			if l.Valid(r, shard, n) && (l.Birth(n) == 0 || l.Made(n, r)) {
				fill.Add(uint64(l.Used(r)), uint64(l.Slots))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fillExtents adds the extents of a shard. An extent counts as many of the smallest ones as take
// its room: see Units.Share. Extents of slabs that were not handed out are free. A sample of the
// slabs is scaled up.
func fillExtents(l *table.Layout, ep rdma.Endpoint, shard int, fill *client.Fill) error {
	handed, err := table.Handed(l, ep, shard)
	if err != nil {
		return err
	}
	spans, whole := client.Sample(handed, uint64(max(fillSlabs/l.Shards, 1)), 1, 1)
	fill.Sampled = fill.Sampled || !whole
	used := uint64(0)
	for _, s := range spans {
		marks, err := rdma.ReadBytes(ep, steps.ReadTable, l.SlabAt(shard, int(s.From)),
			l.SlabMarks()*table.MarkBytes, l.Timeout)
		if err != nil {
			return fmt.Errorf("read the marks of slab %d: %w", s.From, err)
		}
		for i := range l.SlabMarks() {
			// A mark is set while a row names the extent, while a client has claimed it, and
			// while a client changes the class of its unit.
			if m := le.Uint64(marks[i*table.MarkBytes:]); m&1 != 0 {
				used += l.Share(l.Class(m >> 1))
			}
		}
	}
	if n := uint64(len(spans)); n > 0 {
		// Each slab has as many marks, so the slabs that were read stand for all that were handed
		// out.
		used = used * handed / n
	}
	fill.Add(used, l.AllExtents())
	return nil
}
