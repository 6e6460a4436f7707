package rcuckoo

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// A unit changes its class when all of its extents are free. For that a client holds all marks that
// are extents' in the old class or in the new one, as if it used them, in a class of their own,
// which no ref has:
//
//  1. WRITE of its moves: the units, each with its class and the one that it is to have
//  2. CAS of each mark: free -> held
//  3. if it has all of a unit: CAS of each mark but the first: held -> free, of the new class
//  4. CAS of the first mark in the same way
//
// 1 lands before 2; 3 is complete before 4 is posted. If it has not all of a unit, 3 and 4 are of the
// old class. In a pool without classes, all of this never happens.
//
// Why no two extents in use overlap: a mark is an extent's only in its unit's class. A client that
// holds the first mark holds what no other has, so the class is its to change; it changes it when it
// holds all extents of the old class, so none is in use, and none can be claimed, as a claim names
// the stamp that the mark had when it was free. From 3 on extents of the new class may be in use,
// and none of the old one is left. Until 4 no other client can begin to change the unit's class.
//
// What a crash leaves is settled by the client that recovers this one, or that has its identity
// next:
//
//   - before 2: nothing is held.
//   - between 2 and 3: no mark has the new class, or the first mark is not held: those that are go back to the old class. As
//     long as one of them is held that is an extent's in the old class, the unit is of that class; and the others are no
//     extents' in it.
//   - between 3 and 4, and in the midst of 3: the first mark is held, and one of the others has the new class. No mark had it
//     before: of the old class's extents all had that one, and the other marks are of classes in which they are no extents',
//     else the unit would be of those. The rest of 3 is done, and then 4.
//   - in the midst of settling: the same, as the first mark goes last there, too.
//
// So it may be done again at any time, also by two clients: each CAS names a stamp that the client
// which is gone gave. Moves that are older than what is held name nothing that is held: a client has
// settled all of them before it writes others, and when these are torn nothing is held yet.
type carving struct {
	unit     uint64
	from, to int
	marks    []uint64 // those that are, or were, held; 0: not
}

const (
	// carveAtOnce bounds how many marks are held at a time, but for a single unit's.
	carveAtOnce = 256
)

func (c *carving) places() int { return 1 << max(c.from, c.to) }

// holdable returns a unit of a slab that can change to a class, as its marks seem to be; false: it
// cannot.
func (l *layout) holdable(marks []uint64, slab, i, class int) (carving, bool) {
	c := carving{unit: uint64(slab*l.SlabExtents + i), from: l.class(l.markOf(marks, i, 0) >> 1), to: class}
	if c.from == class || c.from >= l.Classes {
		return c, false
	}
	for place := range c.places() {
		m := l.markOf(marks, i, place)
		if m&1 != 0 || l.real(c.from, place) && l.class(m>>1) != c.from {
			return c, false
		}
		c.marks = append(c.marks, m)
	}
	return c, true
}

// carve changes the class of some units of a slab, if it finds them free, and notes their extents.
func (x *extents) carve(shard, class, slab int, until time.Duration) error {
	marks, err := x.readMarks(shard, slab, x.most(), until)
	if err != nil {
		return err
	}
	var units []carving
	held, from := 0, x.ep.Rand().IntN(x.SlabExtents)
	for n := 0; n < x.SlabExtents && len(units)<<class < x.want(); n++ {
		c, ok := x.holdable(marks, slab, (from+n)%x.SlabExtents, class)
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

// hold does all steps.
func (x *extents) hold(shard int, units []carving, until time.Duration) error {
	b := x.ep.Batch()
	b.Chain()
	x.addMoves(b, shard, units)
	for _, c := range units {
		for place, m := range c.marks {
			c.marks[place] = mark(withClass(nextStamp(m>>1, x.id), converting), true)
			b.CompareSwap(x.markAt(shard, x.extentIn(c.unit, place)), m, c.marks[place])
		}
	}
	err := x.do(stepHoldUnits, b, until)
	op := 1
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
			x.hint(shard, ref{extent: x.extentIn(c.unit, place), stamp: withClass(c.marks[place]>>1, c.to)})
		}
	}
	return nil
}

// release does steps 3 and 4: what is held of units becomes free, in the class that they are to
// have.
func (x *extents) release(shard int, units []carving, until time.Duration) error {
	for _, last := range []bool{false, true} {
		if err := x.releasePart(shard, units, last, until); err != nil {
			return err
		}
	}
	return nil
}

// releasePart does step 3, or the last one.
func (x *extents) releasePart(shard int, units []carving, last bool, until time.Duration) error {
	b := x.ep.Batch()
	defer b.Release()
	for _, c := range units {
		for place, held := range c.marks {
			if held != 0 && (place == 0) == last {
				b.CompareSwap(x.markAt(shard, x.extentIn(c.unit, place)), held, mark(withClass(held>>1, c.to), false))
			}
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return x.do(stepReleaseUnits, b, until)
}

// addMoves adds the WRITE of the client's moves: step 1. Each is a ref of the unit's first extent,
// whose stamp has the old class, and the new class instead of a length.
func (x *extents) addMoves(b *rdma.Batch, shard int, units []carving) {
	var refs [claimAtOnce]ref
	for i, c := range units {
		refs[i] = ref{extent: x.extentIn(c.unit, 0), length: c.to, stamp: withClass(0, c.from)}
	}
	x.addHand(b, shard, x.Classes, refs[:len(units)])
}

// movesOf returns what moves name that can be one of the pool's.
func (l *layout) movesOf(p []byte) (units []carving) {
	for i := range min(le.Uint64(p), claimAtOnce) {
		r := decodeRef(p[handRefs+i*refBytes:])
		unit, place := l.unitOf(r.extent)
		c := carving{unit: unit, from: l.class(r.stamp), to: r.length}
		if unit < l.allUnits() && place == 0 && c.from < l.Classes && c.to < l.Classes && c.from != c.to {
			units = append(units, c)
		}
	}
	return units
}

// finish settles what a client holds of units, of which nothing lands any more.
func (x *extents) finish(shard int, c rdma.ClientID, units []carving, until time.Duration) error {
	for i := range units {
		if err := x.finishUnit(shard, c, &units[i], until); err != nil {
			return fmt.Errorf("settle the size of extents in unit %d: %w", units[i].unit, err)
		}
	}
	return nil
}

func (x *extents) finishUnit(shard int, c rdma.ClientID, u *carving, until time.Duration) error {
	b := x.ep.Batch()
	defer b.Release()
	for place := range u.places() {
		b.Read(x.markAt(shard, x.extentIn(u.unit, place)), markBytes)
	}
	if err := x.do(stepScanMarks, b, until); err != nil {
		return err
	}
	changed := false
	u.marks = u.marks[:0]
	for place := range u.places() {
		m := le.Uint64(b.Op(place).Buf)
		if !x.heldBy(m, c) {
			changed = changed || x.class(m>>1) == u.to
			m = 0
		}
		u.marks = append(u.marks, m)
	}
	if u.marks[0] == 0 || !changed {
		u.to = u.from
	}
	return x.release(shard, []carving{*u}, until)
}

// heldBy reports whether a mark is held by a client that changes its unit's class.
func (l *layout) heldBy(m uint64, c rdma.ClientID) bool {
	return m&1 != 0 && l.class(m>>1) == converting && rdma.ClientID(m>>1) == c
}
