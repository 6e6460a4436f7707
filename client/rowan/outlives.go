package rowan

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Outlives returns how many memory nodes may die at once such that each shard keeps a complete
// replica.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	c, err := readConfig(f)
	if err != nil {
		return 0, fmt.Errorf("count the replicas: %w", err)
	}
	v := f.View()
	// No shard has more complete replicas than that.
	fewest := c.Replication
	for i := range c.Shards {
		s := &c.Shards[i]
		left := 0
		// A replica that copies does not have all, so it does not count.
		for _, n := range s.Complete() {
			// A node that is gone may have a copy elsewhere, or none.
			left += client.Copies(&v, dead, n)
		}
		fewest = min(fewest, left)
	}
	return fewest - 1, nil
}
