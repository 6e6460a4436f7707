package rcuckoo

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once while each shard keeps a copy: one less
// than the fewest copies that any shard has on nodes that are not dead. -1: a shard has none. A
// spare counts once it has taken a place: before that it has no copy.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, l, v, err := client.Look(f, "count the copies", table.Read)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	return client.Fewest(&v.View, dead, l.Originals) - 1, nil
}
