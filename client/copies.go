package client

import (
	"math"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Copies returns how many copies are left of something that had one copy on each of the original
// nodes: those on nodes that serve, or on their stand-ins. dead reports the nodes that do not
// serve, beside those that are gone from the view. A node may be dead and still serve in the view:
// until the master has expelled it.
func Copies(v *rdma.View, dead func(node int) bool, originals ...int) (left int) {
	for _, o := range originals {
		if n, _, ok := v.Holder(o); ok && !dead(n) {
			left++
		}
	}
	return left
}

// OneCopy returns how many nodes may die without loss where everything has one copy: none. It
// returns -1 if a node is dead, or gone from the view.
func OneCopy(v *rdma.View, dead func(node int) bool) int {
	for n, member := range v.Members {
		if dead(n) || member.Gone {
			return -1
		}
	}
	return 0
}

// Fewest returns how many copies are left of the item with the fewest. originals has the original
// replicas of each item: see Copies. Without items it returns math.MaxInt.
func Fewest(v *rdma.View, dead func(node int) bool, originals [][]node.Replica) int {
	fewest := math.MaxInt
	for _, replicas := range originals {
		left := 0
		for _, r := range replicas {
			left += Copies(v, dead, r.Node)
		}
		fewest = min(fewest, left)
	}
	return fewest
}
