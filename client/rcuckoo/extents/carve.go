package extents

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// A unit changes its class when all of its extents are free. The client that changes it holds all
// marks that belong to an extent in the old class or in the new one. It claims them as if it used
// them, with a class of its own (converting), which no ref has:
//
//  1. WRITE of its moves: the units, each with its class and its new class
//  2. CAS of each mark: free -> held
//  3. if it holds all marks of a unit: CAS of each mark but the first: held -> free, in the new
//     class
//  4. CAS of the first mark in the same way
//
// 1 lands before 2. 3 has completed before 4 is posted. If it does not hold all marks of a unit,
// 3 and 4 return them to the old class. In a pool with one class none of this happens.
//
// Why no two extents in use overlap: a mark belongs to an extent only if the unit's class has an
// extent there. At most one client holds the first mark, and only that client changes the class.
// It does so while it holds the marks of all extents of the old class. So none of these is in
// use, and none can be claimed: a claim names the stamp that the mark had when it was free. From
// 3 on extents of the new class may be in use, and there are none of the old class any more.
// Until 4 no other client can begin to change the unit's class.
//
// What a crash leaves is settled by the client that recovers this one, or by the next holder of
// its identity:
//
//   - before 2: nothing is held.
//   - between 2 and 3: no mark has the new class, or the first mark is not held. The marks that
//     are held return to the old class. As long as one of them belongs to an extent of the old
//     class, the unit keeps that class; the other marks belong to no extent in it.
//   - during 3, and between 3 and 4: the first mark is held, and another mark has the new class.
//     No mark of the unit had that class before: the marks of the old class's extents had the old
//     class, and the other marks have classes in which they belong to no extent. So the new class
//     proves that all marks were held: the rest of 3 is done, and then 4.
//   - during settling: the same, as settling frees the first mark last, too.
//
// So settling may be repeated at any time, and two clients may do it at once: each CAS names a
// stamp that the client which is gone gave. Older moves name nothing that is held: a client has
// settled all of its moves before it writes others, and while the new ones are torn nothing is
// held yet.
type Carving struct {
	Unit uint64
	// from is the old class, and to the class that the unit is to have. They are equal if the
	// change failed, and the marks return to the old class.
	from, to int
	// marks are by place: the values that are held, or are to be held, or 0 if the mark is not
	// held.
	marks []uint64
}

// carveAtOnce bounds how many marks a client holds at a time. A single unit may have more.
const (
	carveAtOnce = 256
)

// places is how many marks must be held: those of the class with more extents.
func (c *Carving) places() int { return 1 << max(c.from, c.to) }

// holdable returns the change of a unit to a class, if the marks that were read allow it: all
// extents are free, and the unit is of another class. The CASes of step 2 decide whether they
// still do.
func (x *Client) holdable(marks []uint64, slab, i, class int) (Carving, bool) {
	from := x.table.Class(x.table.MarkOf(marks, i, 0) >> 1)
	c := Carving{Unit: uint64(slab*x.table.SlabExtents + i), from: from, to: class}
	if c.from == class || c.from >= x.table.Classes {
		return c, false
	}
	for place := range c.places() {
		m := x.table.MarkOf(marks, i, place)
		if m&1 != 0 || x.table.Real(c.from, place) && x.table.Class(m>>1) != c.from {
			return c, false
		}
		c.marks = append(c.marks, m)
	}
	return c, true
}

// carve changes the class of some units of a slab, if it finds them free, and notes their extents
// as hints. If a verb fails, the stock is opened again, which settles the moves.
func (x *Client) carve(shard, class, slab int, until time.Duration) error {
	marks, err := x.readMarks(shard, slab, x.table.Most(), until)
	if err != nil {
		return err
	}
	// The first unit is drawn, so that clients that carve the same slab collide less.
	var units []Carving
	held, from := 0, x.ep.Rand().IntN(x.table.SlabExtents)
	// As many units as give the extents of one claim.
	for n := 0; n < x.table.SlabExtents && len(units)<<class < x.want(); n++ {
		c, ok := x.holdable(marks, slab, (from+n)%x.table.SlabExtents, class)
		if !ok {
			continue
		}
		if len(units) > 0 && held+c.places() > carveAtOnce {
			break
		}
		units, held = append(units, c), held+c.places()
	}
	if len(units) == 0 {
		return nil
	}
	if err := x.hold(shard, units, until); err != nil {
		x.stocks[shard].opened = false // what is held is found by the moves
		return fmt.Errorf("change the size of %d extents: %w", len(units), err)
	}
	return nil
}

// hold does all steps for some units. Of a unit with a mark that it misses, as another client was
// faster, the class stays. It takes three batches: moves and CASes of all marks; the marks but the
// first of each unit; the first ones.
func (x *Client) hold(shard int, units []Carving, until time.Duration) error {
	// One chain: the moves land before the CASes.
	b := x.ep.Batch()
	b.Chain()
	x.addMoves(b, shard, units)
	for _, c := range units {
		for place, m := range c.marks {
			// The mark gets the identity of the client, by which finishUnit tells which marks it
			// holds.
			c.marks[place] = table.Mark(table.WithClass(table.NextStamp(m>>1, x.id), table.Converting), true)
			b.CompareSwap(x.table.MarkAt(shard, x.table.ExtentIn(c.Unit, place)), m, c.marks[place])
		}
	}
	// A CAS that failed held nothing. The marks that did not fail are the client's until release.
	err := x.do(steps.HoldUnits, b, until)
	op := 1 // the first is the WRITE of the moves
	for i := range units {
		c, missed := &units[i], false
		for place := range c.marks {
			if err == nil && !b.Op(op).Swapped() {
				c.marks[place], missed = 0, true
			}
			op++
		}
		if missed {
			c.to = c.from
			x.stats.Collided++
		}
	}
	b.Release()
	if err == nil {
		err = x.release(shard, units, until)
	}
	if err != nil {
		return err
	}
	for _, c := range units {
		if c.to == c.from {
			continue
		}
		x.stats.Carved++
		for place := range 1 << c.to {
			stamp := table.WithClass(c.marks[place]>>1, c.to)
			x.hint(shard, table.Ref{Extent: x.table.ExtentIn(c.Unit, place), Stamp: stamp})
		}
	}
	return nil
}

// release does steps 3 and 4: the marks that are held become free, in the class that the unit is
// to have.
func (x *Client) release(shard int, units []Carving, until time.Duration) error {
	// The first mark goes last: until then no other client can change the class.
	for _, last := range []bool{false, true} {
		if err := x.releasePart(shard, units, last, until); err != nil {
			return err
		}
	}
	return nil
}

// releasePart does step 3, or step 4 (last).
func (x *Client) releasePart(shard int, units []Carving, last bool, until time.Duration) error {
	b := x.ep.Batch()
	defer b.Release()
	for _, c := range units {
		for place, held := range c.marks {
			if held != 0 && (place == 0) == last {
				b.CompareSwap(x.table.MarkAt(shard, x.table.ExtentIn(c.Unit, place)), held,
					table.Mark(table.WithClass(held>>1, c.to), false))
			}
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return x.do(steps.ReleaseUnits, b, until)
}

// addMoves adds the WRITE of the client's moves: step 1. Each is encoded as a ref: the unit's
// first extent, a stamp with the old class, and the new class instead of a length.
func (x *Client) addMoves(b *rdma.Batch, shard int, units []Carving) {
	var refs [table.ClaimAtOnce]table.Ref
	for i, c := range units {
		refs[i] = table.Ref{Extent: x.table.ExtentIn(c.Unit, 0), Length: c.to, Stamp: table.WithClass(0, c.from)}
	}
	x.addClaims(b, shard, x.table.Classes, refs[:len(units)])
}

// MovesOf returns the moves in a record, but for those that cannot be moves of the pool: the
// record may be torn.
func (x *Client) MovesOf(p []byte) (units []Carving) {
	for i := range min(le.Uint64(p), table.ClaimAtOnce) {
		r := table.DecodeRef(p[table.ClaimRefs+i*table.RefBytes:])
		unit, place := x.table.UnitOf(r.Extent)
		c := Carving{Unit: unit, from: x.table.Class(r.Stamp), to: r.Length}
		if unit < x.table.AllUnits() && place == 0 && max(c.from, c.to) < x.table.Classes && c.from != c.to {
			units = append(units, c)
		}
	}
	return units
}

// finish settles the units that a client's moves name. No verb of the client may land any more.
func (x *Client) finish(shard int, c rdma.ClientID, units []Carving, until time.Duration) error {
	for i := range units {
		if err := x.finishUnit(shard, c, &units[i], until); err != nil {
			return fmt.Errorf("settle the size of extents in unit %d: %w", units[i].Unit, err)
		}
	}
	return nil
}

// finishUnit settles one unit. It reads all marks of the unit in one batch. The new class is
// completed if the first mark is held and another mark has that class, else the old class stays.
func (x *Client) finishUnit(shard int, c rdma.ClientID, u *Carving, until time.Duration) error {
	b := x.ep.Batch()
	defer b.Release()
	for place := range u.places() {
		b.Read(x.table.MarkAt(shard, x.table.ExtentIn(u.Unit, place)), table.MarkBytes)
	}
	if err := x.do(steps.ScanMarks, b, until); err != nil {
		return err
	}
	changed := false
	u.marks = u.marks[:0]
	for place := range u.places() {
		m := le.Uint64(b.Op(place).Buf)
		if !x.heldBy(m, c) {
			changed = changed || x.table.Class(m>>1) == u.to
			m = 0
		}
		u.marks = append(u.marks, m)
	}
	// If the first mark is not held, the change is complete, or another client was faster: what
	// is still held returns to the old class.
	if u.marks[0] == 0 || !changed {
		u.to = u.from
	}
	return x.release(shard, []Carving{*u}, until)
}

// heldBy reports whether a client holds a mark to change the class of its unit.
func (x *Client) heldBy(m uint64, c rdma.ClientID) bool {
	return m&1 != 0 && x.table.Class(m>>1) == table.Converting && rdma.ClientID(m>>1) == c
}
