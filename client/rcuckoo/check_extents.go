package rcuckoo

import (
	"fmt"

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

// extents looks at all slabs of a shard: what is named is used, and has the key's value; what is
// used is named, or in some client's hand.
func (c *checker) extents(shard int) error {
	s := c.s
	if !s.layout.extents() {
		return nil
	}
	hands, err := c.hands(shard)
	if err != nil {
		return err
	}
	seen := 0
	err = s.extents.walk(shard, func(slab int, ended, stamps []uint64) error {
		c.slabs++
		for i := range stamps {
			extent := uint64(slab*s.SlabExtents + i)
			u, named := c.uses[extent]
			switch {
			case named:
				seen++
				if err := c.use(shard, u, ended[i], stamps[i]); err != nil {
					return err
				}
			case ended[i] == stamps[i]:
				c.free++
			case hands[ref{extent: extent, stamp: stamps[i]}] != 0:
				c.held++
				c.r.Waits("client %d has extent %d of shard %d in hand", hands[ref{extent: extent, stamp: stamps[i]}], extent, shard)
			case c.begun:
				c.r.Waits("extent %d of shard %d is used, and no row names it: an operation may be at that", extent, shard)
			default:
				c.r.Damaged("extent %d of shard %d is lost: use %#x of it goes on, and no row names it", extent, shard, stamps[i])
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

// hands returns what the clients' hands name in a shard, and the client of each.
func (c *checker) hands(shard int) (map[ref]rdma.ClientID, error) {
	s := c.s
	of := map[ref]rdma.ClientID{}
	for id := rdma.ClientID(1); int(id) <= s.Clients; id++ {
		b := s.ep.Batch()
		read := b.Read(s.handAt(shard, id), handBytes)
		err := s.do(stepReadHand, b)
		if err == nil {
			for _, r := range s.handOf(read.Buf) {
				of[r] = id
			}
		}
		b.Release()
		if err != nil {
			return nil, fmt.Errorf("read the hand of client %d: %w", id, err)
		}
	}
	return of, nil
}

func (c *checker) use(shard int, u use, mark, stamp uint64) error {
	s := c.s
	if stamp != u.stamp || mark == u.stamp {
		c.r.Damaged("extent %d of shard %d bears stamp %d and mark %d, and key %.40q's row names its use %d", u.extent, shard, stamp, mark, u.key, u.stamp)
		return nil
	}
	b := s.ep.Batch()
	defer b.Release()
	op := s.addRead(b, s.leads[shard], u.ref, []byte(u.key))
	if err := s.do(stepReadExtent, b); err != nil {
		return fmt.Errorf("read extent %d: %w", u.extent, err)
	}
	if _, ok := s.valueOf(op.Buf, shard, u.ref, []byte(u.key)); !ok {
		c.r.Damaged("extent %d of shard %d has no value of key %.40q", u.extent, shard, u.key)
	}
	return nil
}
