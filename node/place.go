package node

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// Replica is where one copy of a placed item lies: the node, and the how-manieth item of its kind
// it is there.
type Replica struct{ Node, Index int }

const virtualPoints = 32 // ring positions a node: enough that successors vary between items

type ringPoint struct {
	at   uint64
	node int
}

func ring(nodes int) []ringPoint {
	points := make([]ringPoint, 0, nodes*virtualPoints)
	var key [16]byte
	for n := range nodes {
		for v := range virtualPoints {
			key[0], key[1], key[2] = byte(n), byte(n>>8), byte(v)
			points = append(points, ringPoint{xxhash.Sum64(key[:3]), n})
		}
	}
	slices.SortFunc(points, func(a, b ringPoint) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.node, b.node))
	})
	return points
}

// Place maps items to r distinct nodes each by consistent hashing (FUSEE 4.4): an item's primary is
// the first node behind its position on the ring, its backups the next ones. Loads are bounded: a
// node that already has more than its share is passed over, so that primaries and copies are spread
// to within one or two. A node takes at most capacity items; where fewer than r nodes have room the
// list ends. The list depends on the arguments only, so that all clients and nodes compute the same
// one.
func Place(items, replicas, nodes, capacity int) [][]Replica {
	points := ring(nodes)
	primaries, copies := make([]int, nodes), make([]int, nodes)
	placed := make([][]Replica, 0, items)
	for i := range items {
		key := [5]byte{'i', byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}
		at := xxhash.Sum64(key[:])
		start := sort.Search(len(points), func(j int) bool { return points[j].at >= at })
		var chosen []Replica
		for len(chosen) < replicas {
			load := copies
			if len(chosen) == 0 {
				load = primaries
			}
			n := leastFrom(points, start, chosen, load, copies, capacity)
			if n < 0 {
				return placed
			}
			chosen = append(chosen, Replica{n, copies[n]})
			load[n]++
			if len(chosen) == 1 {
				copies[n]++
			}
		}
		placed = append(placed, chosen)
	}
	return placed
}

// leastFrom walks the ring from start and returns the first node that has room, is not chosen yet
// and has the least load among such nodes, or -1.
func leastFrom(points []ringPoint, start int, chosen []Replica, load, copies []int, capacity int) int {
	free := func(n int) bool {
		return copies[n] < capacity && !slices.ContainsFunc(chosen, func(r Replica) bool { return r.Node == n })
	}
	least := math.MaxInt
	for n := range load {
		if free(n) {
			least = min(least, load[n])
		}
	}
	for k := range points {
		if n := points[(start+k)%len(points)].node; load[n] == least && free(n) {
			return n
		}
	}
	return -1
}
