package fusee

import (
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once so that each part of the index and each
// region keeps a copy: one less than the fewest copies there are. -1: something has none.
//
// Copies count by what the view says: a spare that is being filled is no copy yet, since it is in
// no view.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", session.ReadLayoutInView)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.Fewest(&v.View, dead, slices.Concat(l.Original.Index, l.Original.Space)) - 1, nil
}
