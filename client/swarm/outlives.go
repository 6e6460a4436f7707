package swarm

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many more memory nodes may die at once such that each object and each
// bucket of the directory keeps a majority of its replicas; an object of RAW has one replica.
// Dead nodes have no stand-ins. A negative number: some object or bucket has no majority.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, m, err := client.Look(f, "count the replicas", readAnyPlan)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	fewest := quorum.MaxReplicas
	count := func(at []rdma.Addr) {
		nodes := make([]int, len(at))
		for r, a := range at {
			nodes[r] = a.Node()
		}
		fewest = min(fewest, client.Copies(&m.View, dead, nodes...))
	}
	for region := range l.Regions {
		count(l.regions[region][:l.Replicas])
	}
	for _, at := range l.dir.Sections() {
		count(at)
	}
	return fewest - quorum.Majority(l.Replicas), nil
}
