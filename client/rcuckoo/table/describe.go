package table

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe names the part that has an address, with its index and its shard. Parts end at their
// last byte, so the padding between parts belongs to none.
func (l *Layout) Describe(a rdma.Addr) string {
	off := a.Offset()
	if off < node.HeaderBytes {
		return "header"
	}
	perNode := uint64(l.PerNode)
	for _, part := range []struct {
		Area
		what func(off uint64) string
	}{
		{l.Areas.locks, func(off uint64) string { return fmt.Sprintf("lock word %d", off/8) }},
		{l.Areas.leases, func(off uint64) string { return fmt.Sprintf("repair lease of lock word %d", off/8) }},
		{l.Areas.Counts, func(uint64) string { return "count of slabs" }},
		{l.Areas.intents, func(off uint64) string { return fmt.Sprintf("intent of client %d", off/IntentBytes+1) }},
		{l.Areas.Redos, func(off uint64) string { return fmt.Sprintf("redo of client %d", off/l.RedoBytes+1) }},
		{l.Areas.Claims, func(off uint64) string { return fmt.Sprintf("claims of client %d", off/l.ClaimsBytes()+1) }},
		{l.Areas.Growths, func(uint64) string { return "growth word" }},
		{l.Areas.Roles, func(uint64) string { return "role" }},
		{l.Areas.Rows, func(off uint64) string { return fmt.Sprintf("row %d", off/uint64(l.RowBytes)) }},
		{l.Areas.Slabs, l.describeSlab},
		{l.Areas.Queues, func(off uint64) string { return fmt.Sprintf("queue %d", off/queueBytes) }},
	} {
		if part.Each == 0 || off < part.Base || off >= part.Base+part.Each*perNode {
			continue
		}
		at := off - part.Base
		return part.what(at%part.Each) + l.describeCopy(a.Node(), int(at/part.Each))
	}
	return ""
}

// describeSlab names what lies at an offset in the slabs of a shard: a mark, or an extent.
func (l *Layout) describeSlab(off uint64) string {
	slab, in := off/l.SlabBytes, off%l.SlabBytes
	first, what := slab*uint64(l.SlabExtents), "extent"
	if l.Classes > 1 { // the address alone does not say which extents the unit has
		what = "extents in unit"
	}
	if marks := uint64(l.SlabMarks()) * MarkBytes; in >= marks {
		return fmt.Sprintf("%s %d", what, first+(in-marks)/l.UnitBytes)
	}
	n := in / MarkBytes
	return fmt.Sprintf("mark of extent %d", l.ExtentIn(first+n%uint64(l.SlabExtents), int(n)/l.SlabExtents))
}

// describeCopy names the shard that has its copy in the index-th part of a node, and the copy's
// role if there are replicas.
func (l *Layout) describeCopy(n, index int) string {
	for shard := range l.Copies {
		for k, at := range l.Copies[shard] {
			switch {
			case at.Node != n || at.Index != index:
			case l.Replicas == 1:
				return fmt.Sprintf(" of shard %d", shard)
			case k == 0:
				return fmt.Sprintf(" of shard %d, leader", shard)
			default:
				return fmt.Sprintf(" of shard %d, backup %d", shard, k)
			}
		}
	}
	return ""
}
