package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once so that each part of the index and each region keeps a copy:
// one less than the fewest copies there are. -1: something has none.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, err := f.Open("status")
	if err != nil {
		return 0, fmt.Errorf("count the copies: %w", err)
	}
	defer ep.Close()
	v, err := ep.Join()
	if err != nil {
		return 0, fmt.Errorf("count the copies: %w", err)
	}
	l, err := readLayout(ep, len(v.Members))
	if err != nil {
		return 0, fmt.Errorf("count the copies: %w", err)
	}
	fewest := maxReplicas
	for _, items := range [][][]node.Replica{l.original.index, l.original.space} {
		for _, places := range items {
			nodes := make([]int, 0, maxReplicas)
			for _, r := range places {
				nodes = append(nodes, r.Node)
			}
			fewest = min(fewest, client.Copies(&v, dead, nodes...))
		}
	}
	return fewest - 1, nil
}
