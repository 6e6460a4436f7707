package original

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die without loss: none, as
// everything has one copy. It returns -1 if a node is dead or gone.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, _, v, err := client.Look(f, "count the copies", readView)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.OneCopy(&v.View, dead), nil
}

// readView is readLayout, for client.Look.
func readView(ep rdma.Endpoint) (*layout, *kit.Member, error) { return readLayout(ep) }
