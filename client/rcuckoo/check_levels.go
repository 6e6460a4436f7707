package rcuckoo

import (
	"github.com/farkv/farkv/client/rcuckoo/table"
)

// growth checks that all rows of a table's level have memory, and that no row has a higher level.
func (c *checker) growth(shard int) error {
	s := c.s
	if s.table.Levels == 0 {
		return nil
	}
	word, err := s.readWord(s.table.GrowthAt(shard))
	if err != nil {
		return err
	}
	level, _ := table.GrowthOf(word)
	if segments := len(c.rows) / s.table.Rows; segments < 1<<level {
		c.r.Damaged("the table of shard %d has grown to level %d, and %d segments have memory", shard, level, segments)
	}
	for n, r := range c.rows {
		if s.table.Valid(r, shard, uint32(n)) && s.table.Level(r) > level {
			c.r.Damaged("row %d of shard %d is of level %d, and the table of level %d", n, shard, s.table.Level(r),
				level)
		}
	}
	return nil
}

// cut reports whether an operation that was cut off may have locked a row: an intent names the
// row's lock.
func (c *checker) cut(n uint32) bool { return c.named[c.s.table.Number(n)] }

// made reports whether a valid row is part of the table, and checks that it is made exactly if
// its parent has been divided for it. The exception is a division that was cut off between its
// two rows: the old row still has all entries then, and repair makes the new one again.
func (c *checker) made(shard int, n uint32) bool {
	s, r := c.s, c.rows[n]
	if s.table.Birth(n) == 0 {
		return true
	}
	parent := c.rows[s.table.Parent(n)]
	divided := s.table.Valid(parent, shard, s.table.Parent(n)) && s.table.Level(parent) >= s.table.Birth(n)
	switch {
	case divided && s.table.Made(n, r):
		c.grown++
		return true
	case !divided && s.table.Version(r) == 0:
		return false
	case c.cut(n):
		c.r.Waits("row %d of shard %d was being made from row %d", n, shard, s.table.Parent(n))
	case divided:
		c.r.Damaged("row %d of shard %d was divided, and row %d is not there", s.table.Parent(n), shard, n)
	default:
		c.r.Damaged("row %d of shard %d is there, and row %d was not divided for it", n, shard, s.table.Parent(n))
	}
	return false
}

// leaf returns the row of a number where entries with these bits belong. If a row on the way is
// torn, it returns that row.
func (c *checker) leaf(shard int, number, bits uint32) uint32 {
	id := number
	for int(id) < len(c.rows) && c.s.table.Valid(c.rows[id], shard, id) { // ends: each row is of a later segment
		next, ok := c.s.table.Right(id, bits, c.rows[id])
		if ok || next < id || int(next) >= len(c.rows) {
			break
		}
		id = next
	}
	return id
}
