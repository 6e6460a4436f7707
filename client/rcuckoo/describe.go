package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that ep reaches, for
// traces. It knows the leaders of the view in which the layout was read. For an address that
// belongs to nothing it returns "".
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe an %s pool: %w", Format, err)
	}
	return l.describe, nil
}

// describe names the part that has an address, with its index and its shard. Parts end at their
// last byte, so the padding between parts belongs to none.
func (l *layout) describe(a rdma.Addr) string {
	off := a.Offset()
	if off < node.HeaderBytes {
		return "header"
	}
	perNode := uint64(l.perNode)
	for _, part := range []struct {
		area
		what func(off uint64) string
	}{
		{l.locks, func(off uint64) string { return fmt.Sprintf("lock word %d", off/8) }},
		{l.leases, func(off uint64) string { return fmt.Sprintf("repair lease of lock word %d", off/8) }},
		{l.counts, func(uint64) string { return "count of slabs" }},
		{l.intents, func(off uint64) string { return fmt.Sprintf("intent of client %d", off/intentBytes+1) }},
		{l.redos, func(off uint64) string { return fmt.Sprintf("redo of client %d", off/l.redo+1) }},
		{l.hands, func(off uint64) string { return fmt.Sprintf("hand of client %d", off/l.handsBytes()+1) }},
		{l.growths, func(uint64) string { return "growth word" }},
		{l.roles, func(uint64) string { return "role" }},
		{l.rows, func(off uint64) string { return fmt.Sprintf("row %d", off/uint64(l.rowBytes)) }},
		{l.slabs, l.describeSlab},
		{l.tickets, func(off uint64) string { return fmt.Sprintf("queue %d", off/queueBytes) }},
	} {
		if part.each == 0 || off < part.base || off >= part.base+part.each*perNode {
			continue
		}
		at := off - part.base
		return part.what(at%part.each) + l.describeCopy(a.Node(), int(at/part.each))
	}
	return ""
}

// describeSlab names what lies at an offset in the slabs of a shard: a mark, or an extent.
func (l *layout) describeSlab(off uint64) string {
	slab, in := off/l.slab, off%l.slab
	first, what := slab*uint64(l.SlabExtents), "extent"
	if l.Classes > 1 { // the address alone does not say which extents the unit has
		what = "extents in unit"
	}
	if marks := uint64(l.slabMarks()) * markBytes; in >= marks {
		return fmt.Sprintf("%s %d", what, first+(in-marks)/l.extent)
	}
	n := in / markBytes
	return fmt.Sprintf("mark of extent %d", l.extentIn(first+n%uint64(l.SlabExtents), int(n)/l.SlabExtents))
}

// describeCopy names the shard that has its copy in the index-th part of a node, and the copy's
// role if there are replicas.
func (l *layout) describeCopy(n, index int) string {
	for shard := range l.copies {
		for k, at := range l.copies[shard] {
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
