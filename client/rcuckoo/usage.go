package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage returns what the memory of a pool is used for. It reads all rows, and counts each copy.
// It may run while clients work: rows that are being written are not counted, nor are shards of
// which no copy answers.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", readLayout)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	used, slabs, grown := uint64(0), uint64(0), uint64(0)
	for shard := range l.Shards {
		c, err := l.count(ep, shard)
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return nil, fmt.Errorf("read the use of memory: %w", err)
		}
		used, slabs, grown = used+c.used, slabs+c.slabs, grown+c.grown
	}
	// What each copy has by the layout alone, and what was counted in one copy of each shard.
	copies, replicas := uint64(l.Shards)*uint64(l.Replicas), uint64(l.Replicas)
	rows := copies*uint64(l.Rows) + grown*replicas
	locks, records := copies*uint64(l.LockWords), copies*uint64(l.Clients)
	used, slabs = used*replicas, slabs*replicas
	uses := []client.Use{
		{Name: "entries used", Count: used, Bytes: used * uint64(l.entryBytes)},
		{Name: "entries", Count: rows * uint64(l.entries), Bytes: rows * uint64(l.rowBytes)},
		{Name: "lock words", Count: locks, Bytes: 16 * locks},
		{Name: "queues of locks", Count: copies * uint64(l.Tickets), Bytes: copies * l.tickets.each},
		{Name: "intents, redos and hands", Count: records, Bytes: records * (intentBytes + l.redo + l.handsBytes())},
	}
	if l.Levels > 0 {
		uses = append(uses, client.Use{Name: "rows that tables grew by", Count: grown * replicas,
			Bytes: grown * replicas * uint64(l.rowBytes)})
	}
	if l.extents() {
		all := copies * uint64(l.Slabs)
		uses = append(uses, client.Use{Name: "slabs handed out", Count: slabs, Bytes: slabs * l.slab},
			client.Use{Name: "slabs", Count: all, Bytes: all * l.slab})
	}
	return uses, nil
}

// counted are the entries that are used in one copy of a shard, the rows that the table grew by,
// and the slabs that were handed out.
type counted struct{ used, grown, slabs uint64 }

// count counts what a shard has, on the first copy with a node that answers. The error wraps
// rdma.ErrNodeDown if none does.
func (l *layout) count(ep rdma.Endpoint, shard int) (c counted, err error) {
	for _, at := range l.copies[shard] {
		c = counted{}
		err = l.eachRow(ep, shard, at, func(n uint32, r row) {
			if l.valid(r, shard, n) {
				c.used += uint64(l.used(r))
				if l.birth(n) > 0 && l.made(n, r) {
					c.grown++
				}
			}
		})
		if err == nil && l.extents() {
			c.slabs, err = l.handed(ep, shard)
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			return c, err
		}
	}
	return counted{}, err
}

// handed returns how many slabs of a shard were handed out: all of them if the pool has replicas.
func (l *layout) handed(ep rdma.Endpoint, shard int) (uint64, error) {
	if l.Replicas > 1 {
		return uint64(l.Slabs), nil
	}
	n, err := rdma.ReadWord(ep, stepReadTable, l.at(l.counts, shard, 0), l.Timeout)
	if err != nil {
		return 0, fmt.Errorf("read how many slabs shard %d has: %w", shard, err)
	}
	return min(n, uint64(l.Slabs)), nil
}

// rowsAtOnce and walkBytes bound one READ of a walk, in rows and in bytes. A row may be larger
// than walkBytes; then it is read alone.
const (
	rowsAtOnce = 64
	walkBytes  = 16 << 10
)

// eachRow reads the rows of a shard on one copy, of all segments that have memory, and calls f
// with each of them, valid or not, in ascending order. f may use the row's memory during the
// call.
func (l *layout) eachRow(ep rdma.Endpoint, shard int, at node.Replica, f func(n uint32, r row)) error {
	each := max(min(walkBytes/l.rowBytes, rowsAtOnce), 1)
	rows, err := l.backed(ep, shard)
	if err != nil {
		return err
	}
	for from := 0; from < rows; from += each {
		if err := l.someRows(ep, shard, at, from, min(each, rows-from), f); err != nil {
			return err
		}
	}
	return nil
}

// someRows is eachRow for n rows that follow from.
func (l *layout) someRows(ep rdma.Endpoint, shard int, at node.Replica, from, n int, f func(n uint32, r row)) error {
	p, err := rdma.ReadBytes(ep, stepReadTable, l.rowAt(at, uint32(from)), n*l.rowBytes, l.Timeout)
	if err != nil {
		return fmt.Errorf("read rows of shard %d: %w", shard, err)
	}
	for i := range n {
		f(uint32(from+i), row(p[i*l.rowBytes:][:l.rowBytes]))
	}
	return nil
}

// backed returns how many rows of a shard have memory.
func (l *layout) backed(ep rdma.Endpoint, shard int) (int, error) {
	if l.Levels == 0 || l.Replicas > 1 {
		return l.allRows(), nil
	}
	segments, err := rdma.ReadWord(ep, stepReadTable, l.growthAt(shard).Add(growthSegments), l.Timeout)
	if err != nil {
		return 0, fmt.Errorf("read how far shard %d has grown: %w", shard, err)
	}
	return l.Rows * int(min(segments+1, 1<<l.Levels)), nil
}
