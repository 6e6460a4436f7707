package fusee

import (
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
)

// maxClasses bounds the size classes: a block's entry has them in 6 bits (see unclean.go).
const maxClasses = 64

// classes are the sizes of objects (FUSEE 4.4, slab allocation): 1 to 16 units of 64 bytes one by
// one, then eight steps each doubling, so that an object wastes at most an eighth; up to what a
// block and a slot's length can hold.
type classes struct {
	units   []int                    // by class
	objects []int                    // objects a block, by class
	of      [race.MaxUnits + 1]uint8 // class by units needed
}

func makeClasses(s *node.Space) classes {
	var c classes
	limit := min(race.MaxUnits, int((s.BlockBytes-s.BitmapBytes())/node.Unit))
	for units, step := 1, 1; units <= limit; units += step {
		c.add(s, units)
		if units >= 16 && units&(units-1) == 0 {
			step = units / 8
		}
	}
	if last := c.units[len(c.units)-1]; last < limit {
		c.add(s, limit)
	}
	return c
}

func (c *classes) add(s *node.Space, units int) {
	for n := c.largest() + 1; n <= units; n++ {
		c.of[n] = uint8(len(c.units))
	}
	c.units = append(c.units, units)
	c.objects = append(c.objects, s.Objects(units))
}

// largest returns the units of the largest object.
func (c *classes) largest() int {
	if len(c.units) == 0 {
		return 0
	}
	return c.units[len(c.units)-1]
}

// coarse returns the class of the next power of two, or the largest. A client that has few blocks
// has few classes.
func (c *classes) coarse(class int) int {
	for units := 1; units < c.largest(); units *= 2 {
		if units >= c.units[class] {
			return int(c.of[units])
		}
	}
	return len(c.units) - 1
}
