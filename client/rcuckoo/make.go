package rcuckoo

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/recovery"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Make writes an empty store into the zeroed memory of a new pool. The error wraps ErrParams, or
// rdma.ErrFull when there is not enough memory. Zero is the empty state of all parts, so only the
// header is written, and with replicas the roles of the first leaders.
//
// Each node's header has a checksum, so a crash before the first one is whole leaves a pool in
// which clients find no store. The roles come before it: no client uses a shard that has no leader.
func Make(f rdma.Fabric, p table.Params) error {
	l, err := table.New(p, f.Nodes())
	if err != nil {
		return err
	}
	if l.Bytes > f.Size() {
		return fmt.Errorf("make an %s pool: it needs %d bytes a node, each has %d: %w",
			table.Format, l.Bytes, f.Size(), rdma.ErrFull)
	}
	params, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("make an %s pool: %w", table.Format, err)
	}
	// Memory comes before the header, by which clients find the store.
	for n := range l.Nodes {
		if err := commit(l, f, n); err != nil {
			return fmt.Errorf("make an %s pool: %w", table.Format, err)
		}
	}
	ep, err := f.Open("format")
	if err != nil {
		return fmt.Errorf("make an %s pool: %w", table.Format, err)
	}
	for shard := 0; err == nil && l.Replicas > 1 && shard < l.Shards; shard++ {
		err = recovery.MakeLeader(l, ep, shard)
	}
	if err == nil {
		err = node.WriteHeader(f, ep, node.Header{Store: table.Format, Version: l.FormatVersion(), Params: params})
	}
	return errors.Join(err, ep.Close())
}

// commit backs with memory what a new pool needs on a node: all but slabs, and the rows of later
// segments. Clients ask the nodes for the rest when they need it (node.ProcGrow), and read none
// of it before: the counts and growth words say how far memory is backed.
func commit(l *table.Layout, f rdma.Fabric, n int) error {
	if l.Replicas > 1 { // the copies would have to agree on when to back more
		return node.Commit(f, n, 0, l.Bytes)
	}
	// The queues lie behind the slabs, so no range below has them.
	if l.Tickets > 0 {
		if err := node.Commit(f, n, l.Areas.Queues.Base, l.Areas.Queues.Each*uint64(l.PerNode)); err != nil {
			return err
		}
	}
	// In a table that cannot grow all rows are needed, and lie ahead of the slabs in one range.
	if l.Levels == 0 {
		return node.Commit(f, n, 0, l.Areas.Slabs.Base)
	}
	if err := node.Commit(f, n, 0, l.Areas.Rows.Base); err != nil {
		return err
	}
	// Of each table the first segment: backLevel asks for those of later levels.
	for i := range l.PerNode {
		if err := node.Commit(f, n, l.Areas.Rows.Of(i), uint64(l.Rows)*uint64(l.RowBytes)); err != nil {
			return err
		}
	}
	return nil
}
