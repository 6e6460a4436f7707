package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Spares lists the nodes that hold nothing until they take a dead node's place.
func (m *Mender) Spares() []int {
	return kit.Spares(m.s.table.Nodes, m.s.table.Params.Spares)
}

// Mend makes new leaders in shards that lost the leader's node: see takeover.go. It runs under
// the busy view v. Other operations that the fence cut off are settled by their clients, or
// repaired. It may be repeated: shards that have a leader are left as they are.
func (m *Mender) Mend(v rdma.View) error {
	s := m.s
	s.view.Enter(v)
	if s.table.Replicas == 1 {
		return nil
	}
	for shard := range s.table.Shards {
		if s.table.Orphan[shard] {
			continue
		}
		role, err := s.readWord(s.table.RoleAt(shard))
		if err == nil && role != table.Leading {
			err = s.takeOver(shard)
		}
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

// Restore copies to the spare, from the leaders, what a backup holds of all shards of which the
// dead node had a copy. Each copy has the same offsets on the spare as on the dead node. The
// spare will be the last of a shard's copies, which leads when no other is left. Its role is
// zero, like its locks and all that only a leader uses, so a master makes it a leader then. An
// operation may have begun on backups while the leader does not have its redo yet: it is
// completed on the spare as on other backups. A crash leaves a part of the copies on the spare,
// and no view that names it; Restore writes all again. The error wraps client.ErrDamaged if the
// node had the last copy of a shard.
func (m *Mender) Restore(v rdma.View, dead, spare int) error {
	s := m.s
	s.view.Enter(v)
	// If a shard is lost, nothing is copied: the lost shard would seem to be there, and empty.
	for _, copying := range []bool{false, true} {
		for shard := range s.table.Shards {
			index, ok := kit.IndexOn(s.table.Originals[shard], v.Original(dead))
			if !ok {
				continue
			}
			if err := s.restore(shard, node.Replica{Node: spare, Index: index}, copying); err != nil {
				return fmt.Errorf("restore node %d on node %d: shard %d: %w", dead, spare, shard, err)
			}
		}
	}
	return nil
}

// restore copies a shard to a place: redos, rows of segments that are in use, and contents of
// extents. Without copying it only checks that the shard is not lost.
func (s *Store) restore(shard int, to node.Replica, copying bool) error {
	if s.table.Orphan[shard] {
		return fmt.Errorf("it had its last copy there: %w", client.ErrDamaged)
	}
	if !copying {
		return nil
	}
	c := kit.Copier{Batch: s.ep.Batch, Do: func(b *rdma.Batch) error { return s.do(steps.CopyToSpare, b) }}
	defer c.Drop()
	area := func(a table.Area, off, n uint64) error {
		return c.Copy(s.table.At(a, shard, off), a.At(to, off), n)
	}
	if err := area(s.table.Areas.Redos, 0, s.table.Areas.Redos.Each); err != nil {
		return err
	}
	// Segments of higher levels than the table's have no rows yet.
	level := 0
	if s.table.Levels > 0 {
		growth, err := s.readWord(s.table.GrowthAt(shard))
		if err != nil {
			return err
		}
		level, _ = table.GrowthOf(growth)
	}
	if err := area(s.table.Areas.Rows, 0, uint64(s.table.Rows)<<level*uint64(s.table.RowBytes)); err != nil {
		return err
	}
	if s.table.HasExtents() {
		if err := s.copyExtents(shard, func(off, n uint64) error {
			return area(s.table.Areas.Slabs, off,
				n)
		}); err != nil {
			return err
		}
	}
	return c.Flush()
}

// marksAtOnce is how many marks of extents one trip reads.
const marksAtOnce = 512

// copyExtents copies the contents of all extents that were ever claimed; the others have none.
// The view is busy, so no client writes extents meanwhile.
func (s *Store) copyExtents(shard int, extent func(off, n uint64) error) error {
	for from := uint64(0); from < s.table.AllExtents(); from += marksAtOnce {
		b := s.ep.Batch()
		for i := range min(marksAtOnce, s.table.AllExtents()-from) {
			b.Read(s.table.MarkAt(shard, from+i), table.MarkBytes)
		}
		err := s.do(steps.CopyToSpare, b)
		for i := range b.Len() {
			// The mark's class says how large the extent is. A place that is no extent in it has
			// no content.
			if err == nil && b.Op(i).Word(0) != 0 {
				r := table.Ref{Extent: from + uint64(i), Stamp: b.Op(i).Word(0) >> 1}
				if _, place := s.table.UnitOf(r.Extent); s.table.Real(s.table.Class(r.Stamp), place) {
					err = extent(s.table.ExtentOff(r), s.table.SizeOf(s.table.Class(r.Stamp)))
				}
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
