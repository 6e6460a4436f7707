package rcuckoo

import (
	"github.com/farkv/farkv/client/rcuckoo/table"
)

// growth checks that all rows of a table's level have memory, and that no row has a higher level.
// The memory of a level is there before the growth word names the level, and rows are divided up
// to that level only: see grow.go.
func (c *checker) growth(shard int) error {
	s := c.s
	if s.session.Table.Levels == 0 {
		return nil
	}
	word, err := s.op.ReadWord(s.session.Table.GrowthAt(shard))
	if err != nil {
		return err
	}
	level, _ := table.GrowthOf(word)
	if segments := len(c.rows) / s.session.Table.Rows; segments < 1<<level {
		c.r.Damaged("the table of shard %d has grown to level %d, and %d segments have memory", shard, level, segments)
	}
	for n, r := range c.rows {
		if s.session.Table.Valid(r, shard, uint32(n)) && s.session.Table.Level(r) > level {
			c.r.Damaged("row %d of shard %d is of level %d, and the table of level %d", n, shard,
				s.session.Table.Level(r),
				level)
		}
	}
	return nil
}

// cut reports whether an operation that was cut off may have locked a row: an intent names the
// row's lock.
func (c *checker) cut(n uint32) bool { return c.named[c.s.session.Table.Number(n)] }

// made reports whether a valid row is part of the table, and checks that it is made exactly if
// its parent has been divided for it. The exception is a division that was cut off between its
// two rows: the old row still has all entries then, and repair makes the new one again.
func (c *checker) made(shard int, n uint32) bool {
	s, r := c.s, c.rows[n]
	if s.session.Table.Birth(n) == 0 {
		return true
	}
	parent := c.rows[s.session.Table.Parent(n)]
	divided := s.session.Table.Valid(parent, shard, s.session.Table.Parent(n)) &&
		s.session.Table.Level(parent) >= s.session.Table.Birth(n)
	switch {
	case divided && s.session.Table.Made(n, r):
		c.grown++
		return true
	// Memory as it was in a new pool.
	case !divided && s.session.Table.Version(r) == 0:
		return false
	// The new row is written ahead of the old one, so a crash between them leaves it without its
	// parent having been divided.
	case c.cut(n):
		c.r.Waits("row %d of shard %d was being made from row %d", n, shard, s.session.Table.Parent(n))
	case divided:
		c.r.Damaged("row %d of shard %d was divided, and row %d is not there", s.session.Table.Parent(n), shard, n)
	default:
		c.r.Damaged("row %d of shard %d is there, and row %d was not divided for it", n, shard,
			s.session.Table.Parent(n))
	}
	return false
}

// leaf returns the row of a number where entries with these bits belong. If a row on the way is
// torn, it returns that row. It goes from the first segment to the child that the bits name, as
// often as rows were divided.
func (c *checker) leaf(shard int, number, bits uint32) uint32 {
	id := number
	for int(id) < len(c.rows) && c.s.session.Table.Valid(c.rows[id], shard,
		id) { // ends: each row is of a later segment
		next, ok := c.s.session.Table.Right(id, bits, c.rows[id])
		if ok || next < id || int(next) >= len(c.rows) {
			break
		}
		id = next
	}
	return id
}
