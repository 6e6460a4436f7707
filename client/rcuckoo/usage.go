package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Usage returns what the memory of a pool is used for. It reads all rows, and counts each copy.
// It may run while clients work: rows that are being written are not counted, nor are shards of
// which no copy answers.
//
// No two counts are of one moment: rows are read one READ after the other, without locks. An entry
// that a client moves meanwhile is in two rows for a moment, and may count twice; or not at all, if
// it moves to a row that was read before.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	ep, l, _, err := client.Look(f, "read the use of memory", table.Read)
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	used, slabs, grown := uint64(0), uint64(0), uint64(0)
	for shard := range l.Shards {
		c, err := count(l, ep, shard)
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return nil, fmt.Errorf("read the use of memory: %w", err)
		}
		used, slabs, grown = used+c.used, slabs+c.slabs, grown+c.grown
	}
	// What each copy has by the layout alone, and what was counted in one copy of each shard.
	copies, replicas := uint64(l.Shards)*uint64(l.Replicas), uint64(l.Replicas)
	rows := copies*uint64(l.Rows) + grown*replicas
	locks, records := copies*uint64(l.LockWords), copies*uint64(l.Clients)
	// The copies of a shard have the same rows, but for those that are being written (C3 in
	// replicas.go). So one copy stands for all.
	used, slabs = used*replicas, slabs*replicas
	uses := []client.Use{
		{Name: "entries used", Count: used, Bytes: used * uint64(l.EntryBytes)},
		{Name: "entries", Count: rows * uint64(l.Slots), Bytes: rows * uint64(l.RowBytes)},
		// A lock word, and its repair lease.
		{Name: "lock words", Count: locks, Bytes: 16 * locks},
		{Name: "queues of locks", Count: copies * uint64(l.Tickets), Bytes: copies * l.Areas.Queues.Each},
		{Name: "intents, redos and claims", Count: records,
			Bytes: records * (table.IntentBytes + l.RedoBytes + l.ClaimsBytes())},
	}
	if l.Levels > 0 {
		uses = append(uses, client.Use{Name: "rows that tables grew by", Count: grown * replicas,
			Bytes: grown * replicas * uint64(l.RowBytes)})
	}
	if l.HasExtents() {
		all := copies * uint64(l.Slabs)
		uses = append(uses, client.Use{Name: "slabs handed out", Count: slabs, Bytes: slabs * l.SlabBytes},
			client.Use{Name: "slabs", Count: all, Bytes: all * l.SlabBytes})
	}
	return uses, nil
}

// counted are the entries that are used in one copy of a shard, the rows that the table grew by,
// and the slabs that were handed out.
type counted struct{ used, grown, slabs uint64 }

// count counts what a shard has, on the first copy with a node that answers. The error wraps
// rdma.ErrNodeDown if none does.
func count(l *table.Layout, ep rdma.Endpoint, shard int) (c counted, err error) {
	for _, at := range l.Copies[shard] {
		// What was counted on a copy with a node that died meanwhile does not count.
		c = counted{}
		err = table.EachRow(l, ep, shard, at, func(n uint32, r table.Row) {
			if l.Valid(r, shard, n) {
				c.used += uint64(l.Used(r))
				// A row with memory that is not made yet is no part of the table.
				if l.Birth(n) > 0 && l.Made(n, r) {
					c.grown++
				}
			}
		})
		if err == nil && l.HasExtents() {
			c.slabs, err = table.Handed(l, ep, shard)
		}
		if !errors.Is(err, rdma.ErrNodeDown) {
			return c, err
		}
	}
	return counted{}, err
}
