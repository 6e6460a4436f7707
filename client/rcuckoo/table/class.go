package table

import (
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
)

// Extents come in size classes, so that a pair takes at most twice its room, or the smallest
// extent. A slab consists of units, each as large as the largest extent. A unit of class k has
// 2^k extents, each of the unit's size / 2^k. All extents of a unit are of one class, and
// carve.go of package extents changes it. If the sizes of pairs are drawn evenly, powers of two
// take a third more memory than the pairs. Classes half way between would save 3 % of the memory,
// but each class costs each client a claim list.
//
// A live pair, or an extent in a claim list, prevents at most one unit from changing its class. So
// a pool that has a unit for each of its pairs, and for each extent in a claim list, has room for
// its pairs in all sizes, whatever sizes were there before.
//
// An extent's number is the number of its unit, times the most extents that a unit may have, plus
// its place in the unit. Each place has a mark, which all classes share. The mark's stamp has the
// class. So a ref names a class, and a claim, which is a CAS of one mark, fails if the class has
// changed since the client read the mark.
const (
	classBits  = 5
	classShift = 58 // of a stamp; above the number of a use

	// Converting is the class of marks that a client holds while it changes the class of their
	// unit: see carve.go of package extents.
	Converting = 1<<classBits - 1

	// mostClasses bounds the extents of a unit to 256.
	mostClasses = 9
	// leastExtent is the size of the smallest extents in bytes, unless mostClasses or the largest
	// extent prevents it.
	leastExtent = 64
	// mostMarks bounds the marks of a slab, which one READ returns.
	mostMarks = 8 << 10
)

// Units is how slabs of extents are laid out. A pool without extents has no slabs.
type Units struct {
	// The parameters of the extents: see Params.
	classes, slabs, slabExtents, extentBytes int
	// unit is how many bytes a unit has, and one of the largest extents; slab is how many bytes a
	// slab has, with its marks. Both are multiples of 8.
	UnitBytes, SlabBytes uint64
}

// newUnits computes how slabs are laid out.
func newUnits(p Params) Units {
	u := Units{classes: p.Classes, slabs: p.Slabs, slabExtents: p.SlabExtents, extentBytes: p.ExtentBytes,
		UnitBytes: extentBytes(p)}
	u.SlabBytes = uint64(u.SlabMarks())*MarkBytes + uint64(p.SlabExtents)*u.UnitBytes
	return u
}

// classesFor is how many classes a pool has if its largest extents have so many bytes: at least
// 1, and no extent is smaller than leastExtent.
func classesFor(extent uint64) int {
	return min(max(bits.Len64(extent/leastExtent), 1), mostClasses)
}

// Most is how many extents a unit has at most. A unit has as many marks, whatever its class is.
func (u *Units) Most() int { return 1 << (u.classes - 1) }

// Class returns the class in a stamp. In a pool with one class these bits belong to the number of
// the use.
func (u *Units) Class(stamp uint64) int {
	if u.classes == 1 {
		return 0
	}
	return int(stamp >> classShift & Converting)
}

// WithClass returns a stamp with its class replaced.
func WithClass(stamp uint64, class int) uint64 {
	return stamp&(1<<classShift-1) | uint64(class)<<classShift
}

// SizeOf is how many bytes an extent of a class has, in whole words.
func (u *Units) SizeOf(class int) uint64 { return u.UnitBytes >> class &^ 7 }

// Share is how many of the smallest extents take as much room as one of a class. A mark that is
// held to change a unit's class counts as one.
func (u *Units) Share(class int) uint64 { return 1 << max(u.classes-1-class, 0) }

// ClassFor returns the class of the smallest extents that have room for a key and a value of so
// many bytes together. They must fit the largest.
func (u *Units) ClassFor(pair int) int {
	class := u.classes - 1
	for class > 0 && u.SizeOf(class) < uint64(ExtentHeader+pair) {
		class--
	}
	return class
}

// UnitOf returns the unit of an extent, and its place there.
func (u *Units) UnitOf(extent uint64) (unit uint64, place int) {
	return extent >> (u.classes - 1), int(extent) & (u.Most() - 1)
}

// ExtentIn returns the number of a place in a unit.
func (u *Units) ExtentIn(unit uint64, place int) uint64 {
	return unit<<(u.classes-1) | uint64(place)
}

// AllUnits is how many units a shard has.
func (u *Units) AllUnits() uint64 { return uint64(u.slabs) * uint64(u.slabExtents) }

// SlabMarks is how many marks a slab has. They lie place by place: the marks of all units for
// place 0 come first. So one READ of the first places has all marks of the classes of large
// extents.
func (u *Units) SlabMarks() int { return u.slabExtents * u.Most() }

// MarkOf returns the mark of a place of a unit, from the marks of a slab. The unit counts from
// the slab's first.
func (u *Units) MarkOf(marks []uint64, unit, place int) uint64 {
	return marks[place*u.slabExtents+unit]
}

// Real reports whether a unit of a class has an extent at a place. converting is no class of the
// pool, and has none.
func (u *Units) Real(class, place int) bool { return class < u.classes && place < 1<<class }

// MarkAt is where the mark of an extent lies.
func (l *Layout) MarkAt(shard int, extent uint64) rdma.Addr {
	unit, place := l.UnitOf(extent)
	slab, i := l.slabOf(unit)
	return l.SlabAt(shard, slab).Add(uint64(place*l.SlabExtents+i) * MarkBytes)
}

// ExtentOff is where an extent's content lies in the slabs of a shard: behind the marks of its
// slab.
func (u *Units) ExtentOff(r Ref) uint64 {
	unit, place := u.UnitOf(r.Extent)
	slab, i := u.slabOf(unit)
	return uint64(slab)*u.SlabBytes + uint64(u.SlabMarks())*MarkBytes +
		uint64(i)*u.UnitBytes + uint64(place)*u.SizeOf(u.Class(r.Stamp))
}
