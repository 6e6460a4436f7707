package fusee

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once so that each part of the index and each region keeps a copy:
// one less than the fewest copies there are. -1: something has none.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", readLayoutInView)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	fewest := maxReplicas
	for _, items := range [][][]node.Replica{l.original.index, l.original.space} {
		for _, places := range items {
			nodes := make([]int, 0, maxReplicas)
			for _, r := range places {
				nodes = append(nodes, r.Node)
			}
			fewest = min(fewest, client.Copies(&v.View, dead, nodes...))
		}
	}
	return fewest - 1, nil
}
