package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Spares lists the nodes that hold nothing until they take a dead one's place.
func (m *Mender) Spares() []int {
	return kit.Spares(m.s.nodes, m.s.Params.Spares)
}

// Mend makes new leaders where leaders' nodes died: see takeover.go. What the fence cut off
// otherwise is its clients' own to settle, or is repaired as ever.
func (m *Mender) Mend(v rdma.View) error {
	s := m.s
	s.view.Enter(v)
	if s.Replicas == 1 {
		return nil
	}
	for shard := range s.Shards {
		if s.orphan[shard] {
			continue
		}
		role, err := s.readWord(s.roleAt(shard))
		if err == nil && role != leading {
			err = s.takeOver(shard)
		}
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

// Restore copies to the spare, from the leaders, what backups hold of all shards of which the node
// had a copy. It lies there as it lay on the node. The spare will be their last copy, which leads
// when no other is left; as its role is zero, like its locks and all that only a leader uses, a
// master makes it a leader then. An operation that has begun, of which the leader does not know
// yet, is brought to its end on the spare as on other backups.
func (m *Mender) Restore(v rdma.View, dead, spare int) error {
	s := m.s
	s.view.Enter(v)
	for _, copying := range []bool{false, true} { // nothing is copied where something is lost: it would seem to be there, and empty
		for shard := range s.Shards {
			index, ok := kit.IndexOn(s.originals[shard], v.Original(dead))
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

// restore copies a shard to a place, or makes sure that it can be.
func (s *Store) restore(shard int, to node.Replica, copying bool) error {
	if s.orphan[shard] {
		return fmt.Errorf("it had its last copy there: %w", client.ErrDamaged)
	}
	if !copying {
		return nil
	}
	c := kit.Copier{Batch: s.ep.Batch, Do: func(b *rdma.Batch) error { return s.do(stepCopyToSpare, b) }}
	defer c.Drop()
	area := func(a area, off, n uint64) error {
		return c.Copy(s.at(a, shard, off), a.at(to, off), n)
	}
	if err := area(s.redos, 0, s.redos.each); err != nil {
		return err
	}
	level := 0
	if s.Levels > 0 {
		growth, err := s.readWord(s.growthAt(shard))
		if err != nil {
			return err
		}
		level, _ = growthOf(growth)
	}
	if err := area(s.rows, 0, uint64(s.Rows)<<level*uint64(s.rowBytes)); err != nil {
		return err
	}
	if s.layout.extents() {
		if err := s.copyExtents(shard, func(off, n uint64) error { return area(s.slabs, off, n) }); err != nil {
			return err
		}
	}
	return c.Flush()
}

// marksAtOnce is how many extents are looked at in a trip.
const marksAtOnce = 512

// copyExtents copies the contents of those that were ever claimed: others have none.
func (s *Store) copyExtents(shard int, extent func(off, n uint64) error) error {
	for from := uint64(0); from < s.allExtents(); from += marksAtOnce {
		b := s.ep.Batch()
		for i := range min(marksAtOnce, s.allExtents()-from) {
			b.Read(s.markAt(shard, from+i), markBytes)
		}
		err := s.do(stepCopyToSpare, b)
		for i := range b.Len() {
			if err == nil && b.Op(i).Word(0) != 0 {
				r := ref{extent: from + uint64(i), stamp: b.Op(i).Word(0) >> 1}
				if _, place := s.unitOf(r.extent); s.real(s.class(r.stamp), place) {
					err = extent(s.extentOff(r), s.sizeOf(s.class(r.stamp)))
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
