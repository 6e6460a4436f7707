package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// use is a use of an extent that a row names, with the entry's key.
type use struct {
	table.Ref
	key string
}

// name notes that a key's row names an extent. Only one key may name an extent; while a key is in
// both its rows, both name the same use. A use is compared with its stamp, so an earlier use of
// the same extent is another one.
func (c *checker) name(shard int, n uint32, key []byte, r table.Ref) {
	switch old, ok := c.uses[r.Extent]; {
	case !c.s.session.Table.Names(r, len(key)):
		c.r.Damaged("key %.40q in row %d of shard %d has its value in extent %d with stamp %d: there is none",
			key, n, shard, r.Extent, r.Stamp)
	case ok && (old.key != string(key) || old.Ref != r):
		c.r.Damaged("extent %d of shard %d is key %.40q's and key %.40q's", r.Extent, shard, old.key, key)
	default:
		c.uses[r.Extent] = use{r, string(key)}
	}
}

// extents checks all slabs of a shard: an extent that a row names is used, and has the key's
// value; an extent that is used is named by a row, or is in a client's claim list; all extents of a
// unit are of one class. The order of the checks matters: what rows name is known before marks are
// read. No client is at work, so a use that no row and no claim list names can have no owner.
func (c *checker) extents(shard int) error {
	s := c.s
	if !s.session.Table.HasExtents() {
		return nil
	}
	h, err := c.claimLists(shard)
	if err != nil {
		return err
	}
	seen := 0
	err = s.extents.Walk(shard, func(slab int, marks []uint64) error {
		c.slabs++
		for i := range s.session.Table.SlabExtents {
			unit := uint64(slab*s.session.Table.SlabExtents + i)
			if !c.unit(shard, unit, i, marks, h) {
				continue
			}
			for place := range s.session.Table.Most() {
				named, err := c.extent(shard, s.session.Table.ExtentIn(unit, place),
					s.session.Table.MarkOf(marks, i, place), h)
				if err != nil {
					return err
				}
				if named {
					seen++
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A ref to an extent that Walk did not reach is in a slab beyond the count.
	if seen < len(c.uses) {
		c.r.Damaged("%d extents of shard %d are named, and their slabs were not handed out", len(c.uses)-seen, shard)
	}
	return nil
}

// unit checks that the marks of a unit are of one class, or held by a client with moves that name
// the unit. false: they are not, and the extents of the unit are not checked.
//
// The first mark has the unit's class, as each class has an extent at the first place. The marks
// of all extents in that class have it, too. Each other mark has a class in which it belongs to
// no extent, either. If it had one in which it does, a scan would find an extent there, which
// overlaps others: see carve.go of package extents.
func (c *checker) unit(shard int, unit uint64, i int, marks []uint64, h claimLists) bool {
	s := c.s
	// The class of the unit, or converting while a client holds the first mark.
	class := s.session.Table.Class(s.session.Table.MarkOf(marks, i, 0) >> 1)
	for place := range s.session.Table.Most() {
		m := s.session.Table.MarkOf(marks, i, place)
		of := s.session.Table.Class(m >> 1)
		id := rdma.ClientID(m >> 1)
		switch {
		// The holder completes the change of class, or takes it back, from its moves.
		case of == table.Converting && m&1 != 0 && h.moves[unit][id]:
			c.r.Waits("client %d changes the size of extents in unit %d of shard %d", id, unit, shard)
			class = table.Converting
		// No moves of its holder name the unit, so no recovery finds the mark.
		case of == table.Converting && s.session.Table.Classes > 1:
			c.r.Damaged("place %d of unit %d of shard %d is lost: client %d holds it, and does not say so",
				place, unit, shard, id)
			return false
		case class != table.Converting && s.session.Table.Real(class, place) && of != class,
			class != table.Converting && !s.session.Table.Real(class, place) && s.session.Table.Real(of, place):
			c.r.Damaged("unit %d of shard %d has extents of class %d, and at place %d of class %d",
				unit, shard, class, place, of)
			return false
		}
	}
	return true
}

// extent checks that an extent is named by a row, free, or in a client's claim list. named: a row
// names it. A claim list names a use, with its stamp: an extent that was freed and claimed by
// another client since is not excused by it.
func (c *checker) extent(shard int, extent, m uint64, h claimLists) (named bool, err error) {
	s := c.s
	stamp, class := m>>1, s.session.Table.Class(m>>1)
	u, named := c.uses[extent]
	_, place := s.session.Table.UnitOf(extent)
	id := h.of[table.Ref{Extent: extent, Stamp: stamp}]
	switch {
	case named:
		return true, c.use(shard, u, m)
	case !s.session.Table.Real(class, place): // there is no extent in the unit's class
	case m&1 == 0:
		c.free.add(s.session.Table.SizeOf(class))
	case id != 0:
		c.held.add(s.session.Table.SizeOf(class))
		c.r.Waits("client %d has claimed extent %d of shard %d", id, extent, shard)
	case c.begun: // an operation may be cut off between the row without the ref and the mark
		c.r.Waits("extent %d of shard %d is used, and no row names it: an operation may be at that", extent, shard)
	default:
		c.r.Damaged("extent %d of shard %d is lost: use %#x of it goes on, and no row names it", extent, shard, stamp)
	}
	return false, nil
}

// claimLists are what the claim lists of all clients name in a shard. moves are by unit: the
// clients that change the unit's class.
//
// A torn claim list may name some of its extents, or none: nothing that it was to name is claimed
// then (claims.go of package table).
type claimLists struct {
	of    map[table.Ref]rdma.ClientID
	moves map[uint64]map[rdma.ClientID]bool
}

// claimLists reads the claim lists of all clients.
func (c *checker) claimLists(shard int) (claimLists, error) {
	s := c.s
	h := claimLists{map[table.Ref]rdma.ClientID{}, map[uint64]map[rdma.ClientID]bool{}}
	for id := rdma.ClientID(1); int(id) <= s.session.Table.Clients; id++ {
		b := s.session.EP.Batch()
		read := b.Read(s.session.Table.ClaimsAt(shard, id, 0), int(s.session.Table.ClaimsBytes()))
		err := s.op.Do(steps.ReadClaims, b)
		if err == nil {
			err = s.session.Table.EachClaims(read.Buf, func(class int, p []byte) error {
				if class == s.session.Table.Classes {
					for _, u := range s.extents.MovesOf(p) {
						if h.moves[u.Unit] == nil {
							h.moves[u.Unit] = map[rdma.ClientID]bool{}
						}
						h.moves[u.Unit][id] = true
					}
					return nil
				}
				for _, r := range s.session.Table.ClaimsOf(p) {
					h.of[r] = id
				}
				return nil
			})
		}
		b.Release()
		if err != nil {
			return h, fmt.Errorf("read the claims of client %d: %w", id, err)
		}
	}
	return h, nil
}

// use checks an extent that a row names: its mark says that this use goes on, and it has the
// key's value. The value lies at the leader here; for the other copies see sameContents.
func (c *checker) use(shard int, u use, m uint64) error {
	s := c.s
	if m != table.Mark(u.Stamp, true) {
		c.r.Damaged("extent %d of shard %d has mark %#x, and key %.40q's row names its use %#x",
			u.Extent, shard, m, u.key, u.Stamp)
		return nil
	}
	b := s.session.EP.Batch()
	defer b.Release()
	op := s.session.Table.AddRead(b, s.session.Table.Leads[shard], u.Ref, []byte(u.key))
	if err := s.op.Do(steps.ReadExtent, b); err != nil {
		return fmt.Errorf("read extent %d: %w", u.Extent, err)
	}
	if _, ok := s.session.Table.ValueOf(op.Buf, shard, u.Ref, []byte(u.key)); !ok {
		c.r.Damaged("extent %d of shard %d has no value of key %.40q", u.Extent, shard, u.key)
	}
	return nil
}
