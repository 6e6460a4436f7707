package recovery

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Restore copies a shard to a place: redos, rows of segments that are in use, and contents of
// extents. Without copying it only checks that the shard is not lost. What a copy needs as a
// backup, and as a leader later:
//
//	redos, rows, contents     copied from the leader; the view is busy, so nothing changes them
//	marks, growth word        made from the rows when the copy becomes a leader
//	intents                   made from the redos then, and idle
//	locks, leases, claims     zero: only a leader has any
//
// A crash leaves some of this on a spare that no view names. All is written again then: what the
// former try left is overwritten, or nothing names it.
func Restore(o *session.Op, shard int, to node.Replica, copying bool) error {
	if o.Table.Orphan[shard] {
		return fmt.Errorf("it had its last copy there: %w", client.ErrDamaged)
	}
	if !copying {
		return nil
	}
	c := kit.Copier{Batch: o.EP.Batch, Do: func(b *rdma.Batch) error { return o.Do(steps.CopyToSpare, b) }}
	// After an error it releases the READs that were not copied.
	defer c.Drop()
	area := func(a table.Area, off, n uint64) error {
		return c.Copy(o.Table.At(a, shard, off), a.At(to, off), n)
	}
	if err := area(o.Table.Areas.Redos, 0, o.Table.Areas.Redos.Each); err != nil {
		return err
	}
	// Segments of higher levels than the table's have no rows yet.
	level := 0
	if o.Table.Levels > 0 {
		growth, err := o.ReadWord(o.Table.GrowthAt(shard))
		if err != nil {
			return err
		}
		level, _ = table.GrowthOf(growth)
	}
	if err := area(o.Table.Areas.Rows, 0, uint64(o.Table.Rows)<<level*uint64(o.Table.RowBytes)); err != nil {
		return err
	}
	if o.Table.HasExtents() {
		err := copyExtents(o, shard, func(off, n uint64) error { return area(o.Table.Areas.Slabs, off, n) })
		if err != nil {
			return err
		}
	}
	return c.Flush()
}

// copyExtents copies the contents of all extents that were ever claimed; the others have none.
// The view is busy, so no client writes extents meanwhile. An extent that was claimed and never
// written is copied, too: no row names it.
func copyExtents(o *session.Op, shard int, extent func(off, n uint64) error) error {
	units := o.Table.SlabExtents
	for slab := range o.Table.Slabs {
		b := o.EP.Batch()
		b.Read(o.Table.SlabAt(shard, slab), o.Table.SlabMarks()*table.MarkBytes)
		err := o.Do(steps.CopyToSpare, b)
		for n := 0; err == nil && n < o.Table.SlabMarks(); n++ {
			// Marks lie place by place. The mark's class says how large the extent is. A place that
			// is no extent in it has no content.
			mark, place := b.Op(0).Word(n), n/units
			if mark != 0 && o.Table.Real(o.Table.Class(mark>>1), place) {
				r := table.Ref{Extent: o.Table.ExtentIn(uint64(slab*units+n%units), place), Stamp: mark >> 1}
				err = extent(o.Table.ExtentOff(r), o.Table.SizeOf(o.Table.Class(r.Stamp)))
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
