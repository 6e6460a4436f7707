package table

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Handed returns how many slabs of a shard were handed out: all of them if the pool has replicas.
func Handed(l *Layout, ep rdma.Endpoint, shard int) (uint64, error) {
	if l.Replicas > 1 {
		return uint64(l.Slabs), nil
	}
	n, err := rdma.ReadWord(ep, steps.ReadTable, l.At(l.Areas.Counts, shard, 0), l.Timeout)
	if err != nil {
		return 0, fmt.Errorf("read how many slabs shard %d has: %w", shard, err)
	}
	return min(n, uint64(l.Slabs)), nil
}

// rowsAtOnce and WalkBytes bound one READ of a walk, in rows and in bytes. A row may be larger
// than WalkBytes; then it is read alone.
const (
	rowsAtOnce = 64
	WalkBytes  = 16 << 10
)

// EachRow reads the rows of a shard on one copy, of all segments that have memory, and calls f
// with each of them, valid or not, in ascending order. f may use the row's memory during the
// call.
func EachRow(l *Layout, ep rdma.Endpoint, shard int, at node.Replica, f func(n uint32, r Row)) error {
	each := max(min(WalkBytes/l.RowBytes, rowsAtOnce), 1)
	rows, err := Backed(l, ep, shard)
	if err != nil {
		return err
	}
	for from := 0; from < rows; from += each {
		if err := SomeRows(l, ep, shard, at, from, min(each, rows-from), f); err != nil {
			return err
		}
	}
	return nil
}

// SomeRows is EachRow for n rows that follow from.
func SomeRows(l *Layout, ep rdma.Endpoint, shard int, at node.Replica, from, n int,
	f func(n uint32, r Row),
) error {
	p, err := rdma.ReadBytes(ep, steps.ReadTable, l.RowAt(at, uint32(from)), n*l.RowBytes, l.Timeout)
	if err != nil {
		return fmt.Errorf("read rows of shard %d: %w", shard, err)
	}
	for i := range n {
		f(uint32(from+i), Row(p[i*l.RowBytes:][:l.RowBytes]))
	}
	return nil
}

// Backed returns how many rows of a shard have memory.
func Backed(l *Layout, ep rdma.Endpoint, shard int) (int, error) {
	if l.Levels == 0 || l.Replicas > 1 {
		return l.AllRows(), nil
	}
	segments, err := rdma.ReadWord(ep, steps.ReadTable, l.GrowthAt(shard).Add(GrowthSegments), l.Timeout)
	if err != nil {
		return 0, fmt.Errorf("read how far shard %d has grown: %w", shard, err)
	}
	return l.Rows * int(min(segments+1, 1<<l.Levels)), nil
}
