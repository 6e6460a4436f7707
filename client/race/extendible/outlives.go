package extendible

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns 0, or -1 when a node is dead: there is no second copy of
// anything.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", readLayout)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	for n := range l.nodes {
		if client.Copies(&v.View, dead, n) == 0 {
			return -1, nil
		}
	}
	return 0, nil
}
