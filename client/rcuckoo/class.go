package rcuckoo

import (
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
)

// Extents come in size classes, so that a pair takes at most twice its room, or the smallest
// extent. A slab consists of units, each as large as the largest extent. A unit of class k has
// 2^k extents, each of the unit's size / 2^k. All extents of a unit are of one class, and
// carve.go changes it. If the sizes of pairs are drawn evenly, powers of two take a third more
// memory than the pairs. Classes half way between would save 3 % of the memory, but each class
// costs each client a hand.
//
// A live pair, or an extent in a hand, prevents at most one unit from changing its class. So a
// pool that has a unit for each of its pairs, and for each extent in a hand, has room for its
// pairs in all sizes, whatever sizes were there before.
//
// An extent's number is the number of its unit, times the most extents that a unit may have, plus
// its place in the unit. Each place has a mark, which all classes share. The mark's stamp has the
// class. So a ref names a class, and a claim, which is a CAS of one mark, fails if the class has
// changed since the client read the mark.
const (
	classBits  = 5
	classShift = 58 // of a stamp; above the number of a use

	// converting is the class of marks that a client holds while it changes the class of their
	// unit: see carve.go.
	converting = 1<<classBits - 1

	// mostClasses bounds the extents of a unit to 256.
	mostClasses = 9
	// leastExtent is the size of the smallest extents in bytes, unless mostClasses or the largest
	// extent prevents it.
	leastExtent = 64
	// mostMarks bounds the marks of a slab, which one READ returns.
	mostMarks = 8 << 10
)

// classesFor is how many classes a pool has if its largest extents have so many bytes: at least
// 1, and no extent is smaller than leastExtent.
func classesFor(extent uint64) int {
	return min(max(bits.Len64(extent/leastExtent), 1), mostClasses)
}

// most is how many extents a unit has at most. A unit has as many marks, whatever its class is.
func (l *layout) most() int { return 1 << (l.Classes - 1) }

// class returns the class in a stamp. In a pool with one class these bits belong to the number of
// the use.
func (l *layout) class(stamp uint64) int {
	if l.Classes == 1 {
		return 0
	}
	return int(stamp >> classShift & converting)
}

// withClass returns a stamp with its class replaced.
func withClass(stamp uint64, class int) uint64 {
	return stamp&(1<<classShift-1) | uint64(class)<<classShift
}

// sizeOf is how many bytes an extent of a class has, in whole words.
func (l *layout) sizeOf(class int) uint64 { return l.extent >> class &^ 7 }

// share is how many of the smallest extents take as much room as one of a class. A mark that is
// held to change a unit's class counts as one.
func (l *layout) share(class int) uint64 { return 1 << max(l.Classes-1-class, 0) }

// classFor returns the class of the smallest extents that have room for a key and a value of so
// many bytes together. They must fit the largest.
func (l *layout) classFor(pair int) int {
	class := l.Classes - 1
	for class > 0 && l.sizeOf(class) < uint64(extentHeader+pair) {
		class--
	}
	return class
}

// unitOf returns the unit of an extent, and its place there.
func (l *layout) unitOf(extent uint64) (unit uint64, place int) {
	return extent >> (l.Classes - 1), int(extent) & (l.most() - 1)
}

// extentIn returns the number of a place in a unit.
func (l *layout) extentIn(unit uint64, place int) uint64 {
	return unit<<(l.Classes-1) | uint64(place)
}

// allUnits is how many units a shard has.
func (l *layout) allUnits() uint64 { return uint64(l.Slabs) * uint64(l.SlabExtents) }

// slabMarks is how many marks a slab has. They lie place by place: the marks of all units for
// place 0 come first. So one READ of the first places has all marks of the classes of large
// extents.
func (l *layout) slabMarks() int { return l.SlabExtents * l.most() }

// markOf returns the mark of a place of a unit, from the marks of a slab. The unit counts from
// the slab's first.
func (l *layout) markOf(marks []uint64, unit, place int) uint64 {
	return marks[place*l.SlabExtents+unit]
}

// real reports whether a unit of a class has an extent at a place. converting is no class of the
// pool, and has none.
func (l *layout) real(class, place int) bool { return class < l.Classes && place < 1<<class }

// markAt is where the mark of an extent lies.
func (l *layout) markAt(shard int, extent uint64) rdma.Addr {
	unit, place := l.unitOf(extent)
	slab, i := l.slabOf(unit)
	return l.slabAt(shard, slab).Add(uint64(place*l.SlabExtents+i) * markBytes)
}

// extentOff is where an extent's content lies in the slabs of a shard: behind the marks of its
// slab.
func (l *layout) extentOff(r ref) uint64 {
	unit, place := l.unitOf(r.extent)
	slab, i := l.slabOf(unit)
	return uint64(slab)*l.slab + uint64(l.slabMarks())*markBytes +
		uint64(i)*l.extent + uint64(place)*l.sizeOf(l.class(r.stamp))
}
