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

// Mend makes new leaders where leaders' nodes died: see takeover.go. What the fence cut off otherwise is its clients' own to
// settle, or is repaired as ever.
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

// Restore copies to the spare, from the leaders, what backups hold of all shards of which the node had a copy. It lies there as it
// lay on the node. The spare will be their last copy, which leads when no other is left; as its role is zero, like its locks and
// all that only a leader uses, somebody makes it a leader then. An operation that has begun, of which the leader does not know
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
	c := &copier{s: s, from: s.leads[shard], to: to}
	defer c.drop()
	if err := c.copy(s.redos, 0, s.redos.each); err != nil {
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
	if err := c.copy(s.rows, 0, uint64(s.Rows)<<level*uint64(s.rowBytes)); err != nil {
		return err
	}
	if s.layout.extents() {
		if err := s.copyExtents(shard, c); err != nil {
			return err
		}
	}
	return c.flush()
}

// copyExtents copies the contents of those that were ever claimed: others have none.
func (s *Store) copyExtents(shard int, c *copier) error {
	for from := uint64(0); from < s.allExtents(); from += marksAtOnce {
		b := s.ep.Batch()
		for i := range min(marksAtOnce, s.allExtents()-from) {
			b.Read(s.markAt(shard, from+i), markBytes)
		}
		err := s.do(stepCopyToSpare, b)
		for i := range b.Len() {
			if err == nil && le.Uint64(b.Op(i).Buf) != 0 {
				at := s.extentAt(shard, from+uint64(i)).Offset() - s.slabs.of(c.from.Index)
				err = c.copy(s.slabs, at, s.extent)
			}
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// copier copies parts of one copy's memory to another, many in a trip.
type copier struct {
	s        *Store
	from, to node.Replica
	read     *rdma.Batch // nil: nothing is waiting
	bytes    int
	places   []rdma.Addr // of the READs, where they are to be written
}

// A trip copies so much: in parts that fit a verb.
const (
	copyBytes  = 16 << 10
	copyAtOnce = 256 << 10
)

// copy copies n bytes, of whole words, of an area.
func (c *copier) copy(a area, off, n uint64) error {
	for n > 0 {
		if c.read == nil {
			c.read, c.bytes, c.places = c.s.ep.Batch(), 0, c.places[:0]
		}
		part := min(n, copyBytes)
		c.read.Read(rdma.At(c.from.Node, a.of(c.from.Index)+off), int(part))
		c.places = append(c.places, rdma.At(c.to.Node, a.of(c.to.Index)+off))
		off, n, c.bytes = off+part, n-part, c.bytes+int(part)
		if c.bytes >= copyAtOnce {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop forgets what is waiting.
func (c *copier) drop() {
	if c.read != nil {
		c.read.Release()
	}
}

// flush copies what is waiting.
func (c *copier) flush() error {
	if c.read == nil {
		return nil
	}
	read, write := c.read, c.s.ep.Batch()
	c.read = nil
	defer read.Release()
	defer write.Release()
	if err := c.s.do(stepCopyToSpare, read); err != nil {
		return err
	}
	for i, at := range c.places {
		p := write.Alloc(len(read.Op(i).Buf)) // its own: what times out may land when the READs' are somebody else's
		copy(p, read.Op(i).Buf)
		write.Write(at, p)
	}
	return c.s.do(stepCopyToSpare, write)
}
