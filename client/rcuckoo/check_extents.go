package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// use is what a row names.
type use struct {
	ref
	key string
}

// name notes that a key's row names an extent.
func (c *checker) name(shard int, n uint32, key []byte, r ref) {
	switch old, ok := c.uses[r.extent]; {
	case !c.s.names(r):
		c.r.Damaged("key %.40q in row %d of shard %d has its value in extent %d with stamp %d: there is none", key, n, shard, r.extent, r.stamp)
	case ok && (old.key != string(key) || old.ref != r):
		c.r.Damaged("extent %d of shard %d is key %.40q's and key %.40q's", r.extent, shard, old.key, key)
	default:
		c.uses[r.extent] = use{r, string(key)}
	}
}

// extents looks at all slabs of a shard: what is named bears its stamp and no mark, and has the key's value.
func (c *checker) extents(shard int) error {
	s := c.s
	if !s.layout.extents() {
		return nil
	}
	seen := 0
	err := s.extents.walk(shard, func(slab int, owner rdma.ClientID, marks, stamps []uint64) error {
		if c.slabs++; owner == node.Left {
			c.left++
		}
		for i := range marks {
			extent := uint64(slab*s.SlabExtents + i)
			u, named := c.uses[extent]
			switch {
			case named:
				seen++
				if err := c.use(shard, u, marks[i], stamps[i]); err != nil {
					return err
				}
			case marks[i] == stamps[i]:
				c.free++
			default:
				c.lost++
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if seen < len(c.uses) {
		c.r.Damaged("%d extents of shard %d are named, and their slabs were not handed out", len(c.uses)-seen, shard)
	}
	return nil
}

func (c *checker) use(shard int, u use, mark, stamp uint64) error {
	s := c.s
	if stamp != u.stamp || mark == u.stamp {
		c.r.Damaged("extent %d of shard %d bears stamp %d and mark %d, and key %.40q's row names its use %d", u.extent, shard, stamp, mark, u.key, u.stamp)
		return nil
	}
	b := s.ep.Batch()
	defer b.Release()
	op := s.addRead(b, shard, u.ref, []byte(u.key))
	if err := s.do("read extent", b); err != nil {
		return fmt.Errorf("read extent %d: %w", u.extent, err)
	}
	if _, ok := s.valueOf(op.Buf, shard, u.ref, []byte(u.key)); !ok {
		c.r.Damaged("extent %d of shard %d has no value of key %.40q", u.extent, shard, u.key)
	}
	return nil
}
