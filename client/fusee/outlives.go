package fusee

import (
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once so that each part of the index and each
// region keeps a copy: one less than the fewest copies there are. -1: something has none.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", readLayoutInView)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.Fewest(&v.View, dead, slices.Concat(l.original.index, l.original.space)) - 1, nil
}
