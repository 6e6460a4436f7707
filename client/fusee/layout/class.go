package layout

import (
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
)

// maxClasses bounds the size classes. A block's entry has 6 bits for a class: the 2 above mark
// unclean and vacant blocks (see entry.go).
const maxClasses = 64

// classes are the sizes of objects (FUSEE 4.4, slab allocation): 1 to 16 units of 64 bytes one by
// one, then eight steps each doubling, so that an object wastes at most an eighth. They end at
// what a block and a slot's length can hold. All clients compute the same from the pool's
// parameters.
type classes struct {
	Units   []int // of an object, by class; they ascend
	Objects []int // that a block has, by class
	// Of is the smallest class for an object of so many units. It is 0 for 0 units.
	Of [race.MaxUnits + 1]uint8
}

// makeClasses returns the classes for blocks of a space. The last class has exactly the largest
// size, though it is no full step above the one before.
func makeClasses(s *node.Space) classes {
	var c classes
	for _, units := range classUnits(min(race.MaxUnits, int((s.BlockBytes-s.BitmapBytes())/node.Unit))) {
		c.add(s, units)
	}
	return c
}

// classUnits lists the units of the classes for objects of so many units at most.
func classUnits(limit int) []int {
	var list []int
	for units, step := 1, 1; units < limit; units += step {
		list = append(list, units)
		if units >= 16 && units&(units-1) == 0 {
			step = units / 8
		}
	}
	return append(list, limit)
}

// add appends a class. The caller adds classes in the order of their sizes.
func (c *classes) add(s *node.Space, units int) {
	for n := c.Largest() + 1; n <= units; n++ {
		c.Of[n] = uint8(len(c.Units))
	}
	c.Units = append(c.Units, units)
	c.Objects = append(c.Objects, s.Objects(units))
}

// Largest returns the units of the largest object; 0 while there is no class.
func (c *classes) Largest() int {
	if len(c.Units) == 0 {
		return 0
	}
	return c.Units[len(c.Units)-1]
}
