package extendible

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die without loss: none, as everything has one copy. It
// returns -1 if a node is dead or gone.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, _, v, err := client.Look(f, "count the copies", readLayout)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.OneCopy(&v.View, dead), nil
}
