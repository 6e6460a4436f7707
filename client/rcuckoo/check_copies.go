package rcuckoo

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// led reports whether a shard has a leader that can be checked: a copy with the leader's role. A
// copy without the role may lead in a view that is busy. Its locks, marks and growth word are not
// made yet, so nothing of the shard can be checked against them.
func (c *checker) led(shard int) (bool, error) {
	s := c.s
	if s.session.Table.Replicas == 1 || s.session.Table.Orphan[shard] {
		return true, nil // the READs will fail with rdma.ErrNodeDown
	}
	role, err := s.op.ReadWord(s.session.Table.RoleAt(shard))
	if err == nil && role != table.Leading {
		c.r.Waits("shard %d has no leader: a master makes one", shard)
	}
	return role == table.Leading, err
}

// backups checks a shard's other copies, but for those on dead nodes: they have the rows of the
// leader, and the values in extents that these name (C2), except where an operation was cut off.
// It compares them with what was found at the leader, so it comes last.
func (c *checker) backups(shard int) error {
	s := c.s
	for _, at := range s.session.Table.Backups(shard) {
		err := errors.Join(c.sameRows(shard, at), c.sameContents(shard, at))
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			return fmt.Errorf("the copy on node %d: %w", at.Node, err)
		}
	}
	return nil
}

// sameRows compares the rows of a copy with those of the leader. While no client is at work they
// are equal, as locks are released when all copies have all rows (C3). An operation that was cut
// off between backups and leader holds the locks of the rows in which they differ.
func (c *checker) sameRows(shard int, at node.Replica) error {
	return table.EachRow(c.s.session.Table, c.s.session.EP, shard, at, func(n uint32, r table.Row) {
		switch {
		case bytes.Equal(r, c.rows[n]):
		case c.cut(n):
			c.r.Waits("row %d of shard %d differs on node %d", n, shard, at.Node)
		default:
			c.r.Damaged("row %d of shard %d differs on node %d, and no client has locked it", n, shard, at.Node)
		}
	})
}

// contentsAtOnce is how many values one trip reads.
const contentsAtOnce = 512

// sameContents checks that a copy has the values in extents that rows name. One trip reads up to
// contentsAtOnce of them.
func (c *checker) sameContents(shard int, at node.Replica) error {
	s := c.s
	// Op i of the batch reads the value of uses[i].
	b, uses := s.session.EP.Batch(), make([]use, 0, contentsAtOnce)
	flush := func() error {
		// Released here, with the values. The batch that takes its place is released by the next
		// flush, or at the end.
		defer func() { b, uses = s.session.EP.Batch(), uses[:0] }()
		defer b.Release()
		if err := s.op.Do(steps.ReadExtent, b); err != nil {
			return fmt.Errorf("read extents: %w", err)
		}
		for i, u := range uses {
			if _, ok := s.session.Table.ValueOf(b.Op(i).Buf, shard, u.Ref, []byte(u.key)); !ok {
				c.r.Damaged("extent %d of shard %d has no value of key %.40q on node %d",
					u.Extent, shard, u.key, at.Node)
			}
		}
		return nil
	}
	defer func() { b.Release() }()
	// By number: the order of a map differs between runs.
	for extent := range s.session.Table.AllExtents() {
		u, ok := c.uses[extent]
		if !ok {
			continue
		}
		s.session.Table.AddRead(b, at, u.Ref, []byte(u.key))
		if uses = append(uses, u); len(uses) == cap(uses) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(uses) == 0 {
		return nil
	}
	return flush()
}
